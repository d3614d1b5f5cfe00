"""The shipped CSV tables, row by row.

>>> table("electricity")[0]["region"]
'US'
"""

import csv
from importlib.resources import files


def table(name: str) -> list[dict[str, str]]:
    """All rows of facts/NAME.csv; no cell holds a line break."""
    return list(csv.DictReader((files("onecard.facts") / f"{name}.csv").read_text(encoding="utf-8").splitlines()))
