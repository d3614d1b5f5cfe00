"""Where a run is shown and written, and what it can do without.

The view, and for the first process log.jsonl, run.json and the dashboards. The view, samples, dashboards, readings of
power and memory and the removal of old files are best effort: a part that fails is reported once and counted, the run
continues, and the part is tried again when it is next due. A signal, Ctrl-C and the loss of another process are not
failures of the part: they are raised as usual.

    watts = outputs.best_effort.run("the power reading", read_watts)      # None where it failed
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from onecard.errors import first_line
from onecard.runs.log import LogWriter, read_log
from onecard.runs.record import RunRecord
from onecard.train.io.loggers import Loggers
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


class BestEffort:
    """Runs the parts that the run can do without; log.jsonl has their failures as `side_show_failed`."""

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
                self._report(f"{part} failed ({in_words(error)}); the run continues without", part)
            return None


class GuardedView:
    """A viewer whose failures cost what it shows, never the run."""

    def __init__(self, view: Viewer, best_effort: BestEffort):
        self._view = view
        self._best_effort = best_effort

    def step(self, fields: dict[str, Any]) -> None:
        self._best_effort.run("the view", self._view.step, fields)

    def eval(self, fields: dict[str, Any]) -> None:
        self._best_effort.run("the view", self._view.eval, fields)

    def message(self, text: str, routine: bool = False) -> None:
        if not (routine and getattr(self._view, "quiet", False)):
            self._best_effort.run("the view", self._view.message, text)


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
    text, kind = first_line(error), type(error).__name__
    return printable(kind if text == kind else f"{kind}: {text}")


class Outputs:
    """Nothing is written before `open`, which one process alone calls; every process may call the other methods."""

    def __init__(self, view: Viewer, first: bool, step_now: Callable[[], int]):
        self.best_effort = BestEffort(
            lambda text, part: self.event(text, event="side_show_failed", part=part)
        )
        self.view = GuardedView(view, self.best_effort)
        self.record: RunRecord | None = None
        self.log: LogWriter | None = None
        self.loggers = Loggers([], self.view.message)
        self._first = first
        self._step_now = step_now  # of the weights, for events
        self._newest: dict[
            str, dict[str, Any]
        ] = {}  # the last line of each kind, logged by this process or not

    def open(self, record: RunRecord, truncate_at: int | None = None) -> None:
        """Write from now on. A resume takes away what was logged after its checkpoint, from `truncate_at` on."""
        record.begin()
        self.record = record
        self.log = LogWriter(record.log_path, truncate_at=truncate_at, warn=self.view.message)

    def take_over(self, record: RunRecord) -> None:
        """Write in place of the first process, which is gone: first what it measured with the others and did not log."""
        self.open(record)
        there = {(line["kind"], line.get("step")) for line in read_log(record.log_path)}
        for kind, fields in self._newest.items():
            if (kind, fields["step"]) not in there:
                self.write(**fields)

    def write(self, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(**fields)

    def event(self, text: str, routine: bool = False, **fields: Any) -> None:
        """Something the user must hear of: shown and logged; what is routine is only logged where the view is quiet."""
        if self._first:
            self.view.message(text, routine)
            self.write(kind="event", step=self._step_now(), text=text, **fields)

    def measured(self, fields: dict[str, Any]) -> None:
        """A step's or an evaluation's fields: into the log, to the view and to the dashboards."""
        self._newest[fields["kind"]] = fields
        self.write(**fields)
        if self._first:
            (self.view.step if fields["kind"] == "step" else self.view.eval)(fields)
            self.best_effort.run("the dashboards", self.loggers.log, fields)

    def close(self) -> None:
        self.loggers.close()
        if self.log is not None:
            self.log.close()
