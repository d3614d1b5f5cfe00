"""The loss curve of a log of any length, kept as a few thousand points.

>>> curve = CurveBuilder()
>>> for step in range(0, 1000, 10): curve.add(step, 10 - step / 200, step * 4.0)
>>> curve.done().loss_at(500).value
7.5
"""

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

CAPACITY = 4096  # points; beyond, neighbours are merged, so that 20 million lines take as much room as 4,000
_WINDOW = 12  # points on each side that the loss at a step is read from
# Two seeds of one recipe end about this far apart (modded-nanogpt's records: 0.0013 to 0.002 at 124M over many runs;
# several times that in the middle of a run). Less than that between two runs says nothing.
SEED_NOISE = 0.005


@dataclass(frozen=True)
class Estimate:
    """A loss with the standard error it is known to."""

    value: float
    error: float


@dataclass(frozen=True)
class LossCurve:
    """Points of (step, loss, training seconds since step 0); `counts` says how many log lines each stands for."""

    steps: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.steps)

    def loss_at(self, step: float) -> Estimate | None:
        """The loss at a step: a line through the points around it, outliers left out. None outside the curve."""
        return _line_at(self.steps, self.losses, step)

    def seconds_at(self, step: float) -> float | None:
        return between(self.steps, self.seconds, step)

    def step_at_seconds(self, seconds: float) -> float | None:
        return between(self.seconds, self.steps, seconds)


class CurveBuilder:
    """Collects points; when there are too many, neighbours are merged two by two."""

    def __init__(self, capacity: int = CAPACITY):
        self._steps: list[float] = []
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._counts: list[int] = []
        self._capacity = capacity
        self._lines_per_point = 1

    @property
    def last_step(self) -> int | None:
        return int(self._steps[-1]) if self._steps else None

    @property
    def last_seconds(self) -> float:
        return self._seconds[-1] if self._seconds else 0.0

    def done(self, seconds_before: float = 0.0) -> LossCurve:
        """The curve; `seconds_before` is the training time before the first logged step."""
        seconds = tuple(seconds + seconds_before for seconds in self._seconds)
        return LossCurve(tuple(self._steps), tuple(self._losses), seconds, tuple(self._counts))

    def add(self, step: float, loss: float, seconds: float) -> None:
        if self._counts and self._counts[-1] < self._lines_per_point:
            n = self._counts[-1]
            for values, new in zip(self._columns, (step, loss, seconds), strict=True):
                values[-1] += (new - values[-1]) / (n + 1)
            self._counts[-1] = n + 1
            return
        for values, new in zip(self._columns, (step, loss, seconds), strict=True):
            values.append(new)
        self._counts.append(1)
        if len(self._steps) >= self._capacity:
            self._halve()

    def rewind(self, step: float) -> int:
        """Remove the points from `step` on, which a resume did again; returns how many lines they stood for."""
        keep = bisect_left(self._steps, step)
        removed = sum(self._counts[keep:])
        for values in self._columns:
            del values[keep:]
        del self._counts[keep:]
        return removed

    @property
    def _columns(self) -> tuple[list[float], list[float], list[float]]:
        return self._steps, self._losses, self._seconds

    def _halve(self) -> None:
        counts = self._counts
        even = len(counts) // 2 * 2
        pairs = range(0, even, 2)
        weight = [counts[i] + counts[i + 1] for i in pairs]
        for values in self._columns:
            merged = [
                (values[i] * counts[i] + values[i + 1] * counts[i + 1]) / total
                for i, total in zip(pairs, weight, strict=True)
            ]
            values[:] = merged + values[even:]
        self._counts = weight + counts[even:]
        self._lines_per_point *= 2


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """Straight between the neighbours; None outside.

    >>> between([0.0, 10.0], [1.0, 2.0], 5.0)
    1.5
    """
    if not xs or not xs[0] <= x <= xs[-1]:
        return None
    right = bisect_left(xs, x)
    if xs[right] == x or right == 0:
        return ys[right]
    left = right - 1
    return ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])


def _line_at(xs: Sequence[float], ys: Sequence[float], x: float) -> Estimate | None:
    exact = between(xs, ys, x)
    if exact is None:
        return None
    middle = bisect_left(xs, x)
    right = min(_WINDOW, len(xs) - 1 - middle)
    # As many points on both sides: a curve that bends is then read in its middle, not off to one side. At its end there
    # is only one side, and it is flat there.
    left = min(_WINDOW, middle) if right < _WINDOW else min(_WINDOW, middle, right)
    right = min(left, right)
    # and no further than a quarter of the way back to the start, where the curve is steep
    while left > 1 and xs[middle - left] < 0.75 * x:
        left -= 1
    right = min(left, right)
    around = range(middle - left, middle + right + 1)
    px, py = [xs[i] for i in around], [ys[i] for i in around]
    noise = _noise(ys)
    if len(px) < 5:
        return Estimate(exact, max(SEED_NOISE, noise))
    slope, level = _fit(px, py, x)
    away = [abs(y - level - slope * (p - x)) for p, y in zip(px, py, strict=True)]
    usual = statistics.median(away)
    kept = [(p, y) for p, y, a in zip(px, py, away, strict=True) if a <= 6 * usual + 1e-12]
    px, py = [p for p, _ in kept], [y for _, y in kept]
    if len(px) < 3:
        return Estimate(exact, max(SEED_NOISE, noise))
    slope, level = _fit(px, py, x)
    rest = [y - level - slope * (p - x) for p, y in zip(px, py, strict=True)]
    spread = max(noise, math.sqrt(sum(r * r for r in rest) / max(1, len(rest) - 2)))
    return Estimate(level, max(SEED_NOISE, spread / math.sqrt(len(rest))))


def _noise(ys: Sequence[float]) -> float:
    """The scatter of one point, from second differences, which a smooth curve hardly has. At most 2,000 are taken."""
    every = max(1, len(ys) // 2000)
    bends = [abs(ys[i] - 2 * ys[i + 1] + ys[i + 2]) for i in range(0, len(ys) - 2, every)]
    return statistics.median(bends) / (0.6745 * math.sqrt(6)) if bends else 0.0


def _fit(px: list[float], py: list[float], x: float) -> tuple[float, float]:
    """Slope, and height at x, of the line of least squares."""
    mean_x, mean_y = statistics.fmean(px), statistics.fmean(py)
    wide = sum((p - mean_x) ** 2 for p in px)
    slope = (
        sum((p - mean_x) * (y - mean_y) for p, y in zip(px, py, strict=True)) / wide
        if wide > 0
        else 0.0
    )
    return slope, mean_y + slope * (x - mean_x)
