"""What the live view keeps of a run: the loss curve in a fixed number of points, and how fast steps come."""

import statistics
import time
from collections import deque

_BLOCKS = "▁▂▃▄▅▆▇█"
_CURVE_POINTS = 512  # kept of the loss curve; every second one goes when it is full
_RECENT = 200  # steps that the step time is judged by


class Curve:
    """A loss curve of any length in a fixed number of points, drawn as one row of blocks."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._every = 1
        self._count = 0

    def add(self, value: float) -> None:
        if self._count % self._every == 0:
            self.points.append(value)
            if len(self.points) >= _CURVE_POINTS:
                self.points = self.points[::2]
                self._every *= 2
        self._count += 1

    def draw(self, width: int) -> str:
        """
        >>> curve = Curve()
        >>> for loss in (10, 8, 6, 5, 4.5, 4.2): curve.add(loss)
        >>> curve.draw(6)
        '█▆▃▂▁▁'
        """
        if not self.points:
            return ""
        width = min(width, len(self.points))
        picked = [
            self.points[i * (len(self.points) - 1) // max(1, width - 1)] for i in range(width)
        ]
        low, high = min(picked), max(picked)
        scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BLOCKS[round((value - low) * scale)] for value in picked)


class Pace:
    """How fast steps come: the median step, and the wall's pace with evaluations and checkpoints in it."""

    def __init__(self, total_steps: int):
        self.total_steps = total_steps
        self.steps = 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._began: tuple[float, int] | None = None  # after the first step: it compiles
        self._now = (0.0, 0)

    def add(self, step: int, seconds: float | None, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        self.steps += 1
        self._now = (now, step)
        if self._began is None:
            self._began = self._now
        elif seconds is not None:
            self._recent.append(seconds)

    def median(self) -> float | None:
        return statistics.median(self._recent) if self._recent else None

    def left(self) -> tuple[float, float] | None:
        """Seconds to the end, a range: steps alone, and with the pauses there have been so far."""
        seconds = self.median()
        if seconds is None or self._began is None:
            return None
        remaining = max(0, self.total_steps - self._now[1])
        done = self._now[1] - self._began[1]
        wall = (self._now[0] - self._began[0]) / done if done > 0 else seconds
        return min(seconds, wall) * remaining * 0.98, max(seconds, wall) * remaining * 1.02
