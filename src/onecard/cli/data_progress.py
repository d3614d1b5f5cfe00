"""The progress of `onecard data`: MB/s, tokens and time left; a bar on a terminal, a line now and then in a pipe."""

import sys
import time
from typing import TYPE_CHECKING, Any

from onecard.units import show_count, show_duration
from onecard.untrusted import printable

if TYPE_CHECKING:
    from onecard.data.preparation.encode import Event

_LINE_SECONDS = 10


class ProgressBar:
    def __init__(self) -> None:
        self._live: Any = None
        self._task: Any = None
        self._stage = ""
        self._started = self._printed = time.monotonic()
        self._first = 0.0

    def __enter__(self) -> "ProgressBar":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[what]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def print(self, text: str) -> None:
        for line in text.split("\n"):
            if self._live is not None:
                self._live.console.print(printable(line), highlight=False, markup=False)
            else:
                print(printable(line), file=sys.stderr)

    def update(self, event: "Event") -> None:
        now = time.monotonic()
        if event.stage != self._stage:
            self._stage, self._started, self._first = event.stage, now, event.done
            if self._live is not None:
                if self._task is not None:
                    self._live.remove_task(self._task)
                self._task = self._live.add_task(event.stage, total=event.total, what="")
        rate = (event.done - self._first) / max(now - self._started, 1e-9)
        unit = "MB/s" if event.stage in ("tokenising", "downloading") else "M tokens/s"
        what = f"{rate / 1e6:.0f} {unit}, {show_count(event.tokens)} tokens"
        if self._live is not None:
            self._live.update(self._task, completed=event.done, total=event.total, what=what)
        elif now - self._printed > _LINE_SECONDS:
            self._printed = now
            left = show_duration((event.total - event.done) / rate) if rate > 0 else "?"
            share = event.done / max(event.total, 1)
            print(f"{event.stage}: {share:.0%}, {what}, {left} left", file=sys.stderr)
