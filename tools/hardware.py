"""The table of docs/hardware.md, made of report files: `python tools/hardware.py [REPORT.json …]`.

Reports in docs/hardware/ are always read; more can be named. Without any the table has the CPU of the tests alone.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.reports import read_report  # noqa: E402

PAGE, REPORTS = ROOT / "docs" / "hardware.md", ROOT / "docs" / "hardware"
BEGIN, END = "<!-- table: tools/hardware.py -->", "<!-- end of table -->"
HEAD = "| device | system | torch | driver | seen | ok | fall-back | action |\n|---|---|---|---|---|---|---|---|"


def row(content: dict[str, Any]) -> str:
    counts = [
        sum(isinstance(each, dict) and each.get("status") == status for each in content["checks"])
        for status in ("ok", "fall-back", "action")
    ]
    driver = content.get("driver") or "–"
    cells = (
        content["device"],
        content["system"],
        content["torch"],
        driver,
        content["date"],
        *counts,
    )
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def table(files: list[Path]) -> str:
    rows = sorted(row(read_report(file)) for file in files)
    return "\n".join([HEAD, *rows])


def page(text: str, files: list[Path]) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(files)}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    files = [*sorted(REPORTS.glob("*.json")), *map(Path, sys.argv[1:])]
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), files), encoding="utf-8")
    print(f"{len(files)} reports")
