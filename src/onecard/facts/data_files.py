"""The shipped data files: CSV tables row by row, and the text of the others.

>>> table("electricity")[0]["region"]
'US'
"""

import csv
from pathlib import Path

_FOLDER = Path(__file__).parent  # not importlib.resources: it costs a tenth of `onecard plan`


def table(name: str) -> list[dict[str, str]]:
    """All rows of facts/NAME.csv; no cell holds a line break."""
    return list(csv.DictReader(fact_file(f"{name}.csv").splitlines()))


def fact_file(name: str) -> str:
    """The text of one file of facts/."""
    return (_FOLDER / name).read_text(encoding="utf-8")
