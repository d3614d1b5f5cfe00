"""`onecard explain`: why is a run as fast and as good as it is, and what to try next?"""

import argparse

from onecard.cli.options import show_report
from onecard.cli.run_sources import add_sources, read_sources

HELP = "Why is this run as fast and as good as it is, how far from what the card should do, and what to try next?"
EXAMPLE = 'onecard explain train.log --gpu "RTX 4070"'


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(
        parser, "runs", "+", "a run folder or a log; two or more are explained side by side"
    )


def run(args: argparse.Namespace) -> int:
    runs = read_sources(args, args.runs)
    if len(runs) > 1:
        from onecard.cli.compare import show_comparison

        return show_comparison(args, runs)
    from onecard.report.compare_view import explain_document
    from onecard.runs.explain import explain

    findings = explain(runs[0])
    show_report(
        args,
        lambda: {
            "schema": "onecard.explain/1",
            "run": runs[0].to_json(),
            "findings": [finding.to_json() for finding in findings],
        },
        lambda: explain_document(runs[0], findings, explain=args.explain),
    )
    return 0
