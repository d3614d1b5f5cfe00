"""Commands run one after another, shown as a person would type them: what `go` and `demo` are made of."""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from onecard import cli
from onecard.errors import OnecardError, RunFailure
from onecard.runs.record import RunRecord
from onecard.untrusted import printable


class Interrupted(Exception):
    """A command ended by a signal (Ctrl-C, SIGTERM): its work is saved, and the sequence ends with its exit code."""

    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code


def typed(words: Sequence[str]) -> str:
    """The command as it can be copied into a shell.

    >>> typed(["plan", "gpt2", "--gpu", "RTX 4070"])
    "onecard plan gpt2 --gpu 'RTX 4070'"
    """
    return shlex.join(["onecard", *words])


def print_reason(out: Console, why: str) -> None:
    """Why a command follows, as a shell's comment."""
    out.print(f"# {why}", style="bold cyan", markup=False, highlight=False)


def print_command(out: Console, words: Sequence[str], end: str = "") -> None:
    out.print(f"$ {printable(typed(words))}{end}", style="bold", markup=False, soft_wrap=True)


def run_stage(out: Console, why: str, *words: str, optional: bool = False) -> bool:
    """Show a command and run it. An `optional` one may fail: that is reported, and the rest continues. Whether it succeeded."""
    out.print()
    print_reason(out, why)
    print_command(out, words)
    try:
        code = cli.dispatch(list(words))
    except OnecardError as error:
        if not optional:
            raise
        out.print(printable(f"left out: {error}"), markup=False)
        return False
    except KeyboardInterrupt:
        raise Interrupted(130) from None
    if code >= 128:
        raise Interrupted(code)
    if code and not optional:
        raise RunFailure(
            f"`{typed(words[:1])}` did not succeed", hint="the same command continues from there"
        )
    return code == 0


def is_finished(run: Path) -> bool:
    return (run / "run.json").is_file() and RunRecord.open(run).state == "finished"


def page_of(words: Sequence[str]) -> str:
    """What a command prints, for a file."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        code = cli.dispatch(list(words))
    if code:
        raise RunFailure("the report could not be made", hint=f"`{typed(words)}` shows why")
    return shown.getvalue()


def open_page(page: Path) -> None:
    """In the browser, where somebody sits at a screen."""
    if os.environ.get("CI") or not sys.stdout.isatty():
        return
    if sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    ):
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
