"""The one console that commands print on: colour on a terminal, plain text at full width in a pipe."""

import os
import sys

from rich.console import Console

PIPE_WIDTH = 100  # in a pipe there is no width to ask for


def console(stderr: bool = False) -> Console:
    """Standard output (or error); NO_COLOR and COLUMNS are heeded."""
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() and int(columns) else None if terminal else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)
