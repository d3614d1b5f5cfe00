"""The one console that commands print on: colour on a terminal, plain text at full width in a pipe."""

import os
import sys

from rich.console import Console

WIDEST = 1000
PIPE_WIDTH = 100  # in a pipe there is no width to ask for


def _asked_width() -> int | None:
    """COLUMNS, where it is a number."""
    columns = os.environ.get("COLUMNS", "")
    if not (columns.isascii() and columns.isdigit()):
        return None
    return min(int(columns[:6]), WIDEST)


def console(stderr: bool = False) -> Console:
    """Standard output (or error); NO_COLOR and COLUMNS are heeded."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = _asked_width() or (None if terminal else PIPE_WIDTH)
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)
