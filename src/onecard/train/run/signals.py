"""The signals that ask a run to end: it finishes its step, saves and ends. A second Ctrl-C ends it at once.

Ctrl-C and SIGTERM; SIGHUP (the terminal was closed, ssh dropped), unless the run was started under nohup; SIGUSR1 and
SIGXCPU, by which schedulers say that the time is nearly up; SIGBREAK on Windows.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGXCPU", "SIGBREAK")
STOPS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in _NAMES if hasattr(signal, name)
)


def end_as_asked(by: int | None) -> None:
    """For a run that is part of another command: the signal that stopped it (None: none did) ends the command too."""
    if by == signal.SIGINT:
        raise KeyboardInterrupt
    if by is not None:
        sys.exit(128 + by)


class StopSignals:
    """with StopSignals(say) as stop: … while not stop.by: …"""

    def __init__(self, say: Callable[[str], None]):
        self.by: int | None = None  # the signal that asked
        self._say = say
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python handles them only there
            for number in STOPS:
                nohup = number.name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN
                if not nohup:
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: set by another library outside Python, which takes its signals as it did
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None and number == signal.SIGINT:
            with contextlib.suppress(OSError):
                os.write(2, b"\nonecard: stopped at once; the last checkpoint stays\n")
            os._exit(130)
        if self.by is None:
            self.by = number
            # it may come in the middle of another line's output, or because the terminal is gone
            with contextlib.suppress(Exception):
                self._say(
                    f"{signal.Signals(number).name}: this step is finished and saved first "
                    "(Ctrl-C again ends at once)"
                )
