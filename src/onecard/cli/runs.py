"""`onecard runs`: the runs below a folder, with state, step, loss, hours and cost."""

import argparse
import sys

from onecard.cli.options import add_language, add_price, print_json

HELP = "The runs below this folder: what became of each, how far it came, its loss, hours and cost."
EXAMPLE = "onecard runs"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="*", default=["."], metavar="DIR", help="where to look (default: here)"
    )
    add_price(parser)
    add_language(parser)
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
    from onecard.report import show, terminal_language
    from onecard.report.runs_view import EMPTY, runs_document

    if rows:
        sys.stdout.write(show(runs_document(rows), lang=args.lang))
    else:
        print(terminal_language(args.lang).text(EMPTY))
    return 0
