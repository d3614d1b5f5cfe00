"""What a run can do without: the view, samples, dashboards, readings of power and memory, the removal of old files.

    shows = SideShows(report=lambda text, part: outputs.event(text, event="side_show_failed", part=part))
    watts = shows.run("the power reading", read_watts)      # None where it failed

One that fails is reported once and counted; the run goes on, and the part is tried again when it is next due. A signal,
Ctrl-C and the loss of another process are not failures of the part: they pass through.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from onecard.train.run.workers import WorkerLostError
from onecard.untrusted import printable

Result = TypeVar("Result")


class Viewer(Protocol):
    """Who watches the run: the live terminal view, or nobody."""

    def step(self, fields: dict[str, Any]) -> None: ...
    def eval(self, fields: dict[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...


class Silent:
    def step(self, fields: dict[str, Any]) -> None: ...
    def eval(self, fields: dict[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...


class SideShows:
    def __init__(self, report: Callable[[str, str], None]):
        self.failures: Counter[str] = Counter()
        self._report = report

    def run(
        self, part: str, do: Callable[..., Result], *arguments: Any, **named: Any
    ) -> Result | None:
        """What `do` returns, or None where it fails."""
        try:
            return do(*arguments, **named)
        except WorkerLostError:
            raise
        except Exception as error:
            self.failures[part] += 1
            if self.failures[part] == 1:
                self._report(f"{part} failed ({in_words(error)}); the run goes on without", part)
            return None


class GuardedView:
    """A viewer whose failures cost what it shows, never the run."""

    def __init__(self, view: Viewer, shows: SideShows):
        self._view = view
        self._shows = shows

    def step(self, fields: dict[str, Any]) -> None:
        self._shows.run("the view", self._view.step, fields)

    def eval(self, fields: dict[str, Any]) -> None:
        self._shows.run("the view", self._view.eval, fields)

    def message(self, text: str) -> None:
        self._shows.run("the view", self._view.message, text)


def in_words(error: BaseException) -> str:
    """An error in one line: what the system calls it, or its type and the first line of its text.

    >>> in_words(OSError(28, "No space left on device", "log"))
    'No space left on device: log'
    >>> in_words(ValueError("bad\\nTraceback"))
    'ValueError: bad'
    """
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return printable(f"{error.strerror}{where}")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return printable(f"{type(error).__name__}: {lines[0][:200]}")
