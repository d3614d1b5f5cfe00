"""`onecard runs`: the runs below a folder, with state, step, loss, hours and cost."""

import argparse
from typing import Any

from onecard.cli.options import add_price, print_json

HELP = "The runs below this folder: what became of each, how far it came, its loss, hours and cost."
EXAMPLE = "onecard runs"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="*", default=["."], metavar="DIR", help="where to look (default: here)"
    )
    add_price(parser)
    parser.add_argument(
        "--json", action="store_true", help="machine-readable, base units (docs/formats.md)"
    )


def run(args: argparse.Namespace) -> int:
    from onecard.facts.prices import parse_price
    from onecard.runs.folder_list import list_runs

    rows = list_runs(args.folders, parse_price(args.price) if args.price else None)
    if args.json:
        print_json(rows)
        return 0
    if not rows:
        print("no runs here; `onecard train CONFIG` makes one")
        return 0
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from onecard.cli.terminal import console
    from onecard.untrusted import printable

    table = Table(box=box.SIMPLE_HEAD)
    evaluated = any(row["evals"] for row in rows)
    for head in ("run", "state", "step", "loss", "hours", "cost", *(["evals"] * evaluated)):
        table.add_column(
            head, justify="left" if head in ("run", "state", "evals") else "right", overflow="fold"
        )
    for row in rows:
        # Text: a folder's name is no markup, and nothing in it reaches the terminal as a command
        cells = [*_cells(row), *([_evals(row)] * evaluated)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console().print(table)
    return 0


def _evals(row: dict[str, Any]) -> str:
    from onecard.runs.eval_results import TASK_TITLES

    parts = []
    for task, found in row["evals"].items():
        share = found["figure"].startswith("acc")
        value = f"{found['value']:.1%}" if share else f"{found['value']:.3f}"
        parts.append(f"{TASK_TITLES.get(task, task.removeprefix('text '))} {value}")
    return ", ".join(parts) or "–"


def _cells(row: dict[str, Any]) -> list[str]:
    of = f" / {row['max_steps']:,}" if row["max_steps"] else ""
    return [
        row["path"],
        row["state"],
        "–" if row["step"] is None else f"{row['step']:,}{of}",
        "–" if row["loss"] is None else f"{row['loss']:.4f}",
        "–" if row["hours"] is None else f"{row['hours']:.2f}",
        "–" if row["cost"] is None else f"{row['cost']:.2f} {row['currency']}",
    ]
