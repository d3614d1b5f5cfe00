"""Ctrl-C and SIGTERM: the first asks the run to save and end after this step, a second Ctrl-C ends it at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class StopSignals:
    """with StopSignals(say) as stop: … while not stop.by: …"""

    def __init__(self, say: Callable[[str], None]):
        self.by: int | None = None  # the signal that asked
        self._say = say
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if (
            threading.current_thread() is threading.main_thread()
        ):  # Python handles signals only there
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None and number == signal.SIGINT:
            os.write(2, b"\nonecard: stopped at once; the last checkpoint stays\n")
            os._exit(130)
        if self.by is None:
            self.by = number
            self._say("stopping: this step is finished and saved first (Ctrl-C again ends at once)")
