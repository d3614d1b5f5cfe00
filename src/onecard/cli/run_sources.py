"""The runs that `compare` and `explain` are given: read with a progress bar, with config files, flags and a card."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.cli.options import add_price, add_report, add_set
from onecard.errors import UserError
from onecard.untrusted import printable

if TYPE_CHECKING:
    from onecard.runs.figures import RunFigures
    from onecard.runs.read import Progress
    from onecard.runs.run import Run

_BAR_FROM = 50_000_000  # bytes; less is read before a bar could be seen


def add_sources(parser: argparse.ArgumentParser, name: str, count: str, words: str) -> None:
    parser.add_argument(name, nargs=count, metavar="RUN", help=words)
    parser.add_argument(
        "--gpu", metavar="NAME", help="the card the runs were on, where their logs do not say"
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


def read_sources(args: argparse.Namespace, sources: list[str]) -> "list[RunFigures]":
    """Every run named; a file with several runs gives all of them when it is named alone, else its last."""
    from onecard.config import parse_overrides
    from onecard.facts.prices import parse_price
    from onecard.planner import resolve_device
    from onecard.runs.figures import figures
    from onecard.runs.read import read_runs

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
    found: list[Run] = []
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
        found += runs
    return [figures(run, device, price) for run in found]


class _bar:
    """A progress bar on a terminal for a large file, one line in a pipe; nothing for small ones."""

    def __init__(self, source: str):
        path = Path(source)
        try:
            self.size = path.stat().st_size if path.is_file() else 0
        except OSError:  # a name that is too long, say; the reader reports it
            self.size = 0
        self.name = printable(path.name)
        self._progress: Any = None

    def __enter__(self) -> "Progress | None":
        if self.size < _BAR_FROM:
            return None
        if not sys.stderr.isatty():
            print(f"onecard: reading {self.name} ({self.size / 1e6:.0f} MB)", file=sys.stderr)
            return None
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        bar = Progress(
            TextColumn(f"reading {self.name}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = bar.add_task("", total=self.size)
        bar.start()
        self._progress = bar
        return lambda count: bar.advance(task, count)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
