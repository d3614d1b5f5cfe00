"""`onecard compare`: which run is faster, better, cheaper, and why?"""

import argparse

from onecard.cli.options import show_report
from onecard.cli.run_sources import add_sources, read_sources
from onecard.runs.figures import RunFigures

HELP = "Which run is faster, better, cheaper, and why? Reads onecard's run folders and the logs of other trainers."
EXAMPLE = 'onecard compare small.log wide.log --gpu "RTX 4070"'


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(
        parser,
        "runs",
        "+",
        "two or more runs: run folders, logs, CSV, trainer_state.json; FILE#2 is its second run",
    )


def run(args: argparse.Namespace) -> int:
    return show_comparison(args, read_sources(args, args.runs))


def show_comparison(args: argparse.Namespace, runs: list[RunFigures]) -> int:
    """Compare the runs, explain what the comparison shows, and print it."""
    from onecard.report.compare_view import compare_document
    from onecard.runs.compare import compare
    from onecard.runs.explain import explained

    result = explained(compare(runs))
    show_report(args, result.to_json, lambda: compare_document(result, explain=args.explain))
    return 0
