"""The one console that commands print on: colour on a terminal, plain text at full width in a pipe."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

WIDEST = 1000
PIPE_WIDTH = 100  # in a pipe there is no width to ask for


def _asked_width() -> int | None:
    """COLUMNS, where it is a number."""
    columns = os.environ.get("COLUMNS", "")
    if not (columns.isascii() and columns.isdigit()):
        return None
    return min(int(columns[:6]), WIDEST)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # to `main`, which ends quietly; Rich would end the program with exit code 1


def console(stderr: bool = False) -> Console:
    """Standard output (or error); NO_COLOR and COLUMNS are respected."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = _asked_width() or (None if terminal else PIPE_WIDTH)
    return _Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[[float, float, str], None]]:
    """A bar with the time left on a terminal, a line for each new thing in a pipe."""
    out = console(stderr=True)
    if not out.is_terminal:
        reported = set()

        def line(done: float, whole: float, what: str) -> None:
            if what not in reported and not quiet:
                reported.add(what)
                out.print(f"{what} ({done / whole:.0%})")

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda done, whole, what: bar.update(
            task, completed=done, total=max(whole, done), description=what
        )
