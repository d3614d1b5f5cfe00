"""The clock of a sitting: how long its steps take, by the hour and since the last line of the log."""

import time
from dataclasses import dataclass

_STEPS_TO_JUDGE = 3  # the first steps of a sitting are slower than the rest


@dataclass(frozen=True)
class Interval:
    """The steps since the last log line."""

    step_seconds: float  # the mean; neither evaluations nor checkpoints
    data_wait: float  # the share of it spent waiting for rows


class StepClock:
    """begin() and end() around each step; a step that is done again begins again."""

    def __init__(self) -> None:
        self._sitting_began = self._last_end = self._step_began = time.perf_counter()
        self._sitting_steps = 0
        self._seconds, self._wait, self._steps = 0.0, 0.0, 0  # since the last log line

    def begin(self) -> None:
        self._step_began = time.perf_counter()

    def end(self, wait_seconds: float) -> float:
        """Seconds since the last step ended: this one and all that came between."""
        now = time.perf_counter()
        passed, self._last_end = now - self._last_end, now
        self._sitting_steps += 1
        self._seconds += now - self._step_began
        self._wait += wait_seconds
        self._steps += 1
        return passed

    def leave_out(self, seconds: float) -> None:
        """Time between steps that is booked apart: neither a step's nor the run's."""
        self._last_end += seconds
        self._sitting_began += seconds

    def pace(self) -> float | None:
        """Seconds per step over the sitting, with all that comes between steps; None until that says something."""
        if self._sitting_steps < _STEPS_TO_JUDGE:
            return None
        return (self._last_end - self._sitting_began) / self._sitting_steps

    def interval(self) -> Interval:
        """The steps since the last call."""
        interval = Interval(self._seconds / self._steps, self._wait / self._seconds)
        self._seconds, self._wait, self._steps = 0.0, 0.0, 0
        return interval
