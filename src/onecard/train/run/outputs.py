"""Where a run is shown and written: the view, and for the first process log.jsonl, run.json and the dashboards."""

from collections.abc import Callable
from typing import Any

from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord
from onecard.train.io.loggers import Loggers
from onecard.train.run.side_shows import GuardedView, SideShows, Viewer


class Outputs:
    """Nothing is written before `open`, which one process alone calls; every process may call the other methods."""

    def __init__(self, view: Viewer, first: bool, step_now: Callable[[], int]):
        self.shows = SideShows(
            lambda text, part: self.event(text, event="side_show_failed", part=part)
        )
        self.view = GuardedView(view, self.shows)
        self.record: RunRecord | None = None
        self.log: LogWriter | None = None
        self.loggers = Loggers([], self.view.message)
        self._first = first
        self._step_now = step_now  # of the weights, for events

    def open(self, record: RunRecord, truncate_at: int | None = None) -> None:
        """Write from now on. A resume takes away what was logged after its checkpoint, from `truncate_at` on."""
        record.begin()
        self.record = record
        self.log = LogWriter(record.log_path, truncate_at=truncate_at, warn=self.view.message)

    def write(self, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(**fields)

    def event(self, text: str, **fields: Any) -> None:
        """Something the user must hear of: shown and logged, never silent."""
        if self._first:
            self.view.message(text)
            self.write(kind="event", step=self._step_now(), text=text, **fields)

    def measured(self, fields: dict[str, Any]) -> None:
        """A step's or an evaluation's fields: into the log, to the view and to the dashboards."""
        self.write(**fields)
        if self._first:
            (self.view.step if fields["kind"] == "step" else self.view.eval)(fields)
            self.shows.run("the dashboards", self.loggers.log, fields)

    def close(self) -> None:
        self.loggers.close()
        if self.log is not None:
            self.log.close()
