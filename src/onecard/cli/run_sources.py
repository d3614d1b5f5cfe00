"""The runs that `compare` and `explain` are given: read with a progress bar, with config files, flags and a card."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onecard.cli.options import Once, add_price, add_report, add_set
from onecard.config import parse_overrides
from onecard.errors import UserError
from onecard.facts.prices import parse_price
from onecard.planner import resolve_device
from onecard.runs.figures import RunFigures, figures
from onecard.runs.read import Progress, read_runs
from onecard.runs.run import Run
from onecard.untrusted import printable

_BAR_FROM = 50_000_000  # bytes; less is read before a bar could be seen


def add_sources(parser: argparse.ArgumentParser, name: str, count: str, words: str) -> None:
    parser.add_argument(name, nargs=count, metavar="RUN", help=words)
    parser.add_argument(
        "--gpu",
        action=Once,
        metavar="NAME",
        help="the card the runs were on, where their logs do not say",
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="CONFIG",
        help="the config of a foreign log, a preset or a file; once for all runs, or once a run in their order",
    )
    add_set(parser, "a config key of all runs; nanoGPT's --KEY=VALUE works too")
    add_price(parser)
    add_report(parser)


def read_sources(args: argparse.Namespace, sources: list[str]) -> list[RunFigures]:
    """Every run named; a file with several runs gives all of them when it is named alone, else its last."""
    if len(args.config) not in (0, 1, len(sources)):
        raise UserError(
            f"{len(args.config)} configs for {len(sources)} runs",
            hint="give --config once, or once a run",
        )
    if sources.count("-") > 1:
        raise UserError("standard input can be one run only", hint="write the other one to a file")
    flags = parse_overrides(args.overrides)
    device = resolve_device(args.gpu) if args.gpu else None
    price = parse_price(args.price) if args.price else None
    runs_read: list[Run] = []
    for i, source in enumerate(sources):
        config = args.config[min(i, len(args.config) - 1)] if args.config else None
        with _bar(source) as progress:
            runs = read_runs(source, config, flags, progress)
        if len(runs) > 1 and len(sources) > 1:
            name = printable(source)
            print(
                f"onecard: {name} holds {len(runs)} runs; the last is taken ({name}#1 is the first)",
                file=sys.stderr,
            )
            runs = runs[-1:]
        runs_read += runs
    return [figures(run, device, price) for run in runs_read]


@contextmanager
def _bar(source: str) -> Iterator[Progress | None]:
    """A progress bar on a terminal for a large file, one line in a pipe; nothing for small ones."""
    path = Path(source)
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:  # a name that is too long, say; the reader reports it
        size = 0
    name, large = printable(path.name), size >= _BAR_FROM
    if large and not sys.stderr.isatty():
        print(f"onecard: reading {name} ({size / 1e6:.0f} MB)", file=sys.stderr)
    if not large or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn(f"reading {name}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda count: bar.advance(task, count)
