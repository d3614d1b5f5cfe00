"""What a log of any length is kept as: a loss curve of a few thousand points, and the step times that count.

>>> curve = LossCurve()
>>> for step in range(0, 1000, 10): curve.add(step, 10 - step / 200, step * 4.0)
>>> curve.loss_at(500).value
7.5
"""

import math
import statistics
from bisect import bisect_left
from collections import deque
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


class LossCurve:
    """(step, loss, training seconds), merged two by two when there are too many; each keeps its number of lines."""

    def __init__(self, capacity: int = CAPACITY):
        self.steps: list[float] = []
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.counts: list[int] = []
        self._capacity = capacity
        self._per_point = 1  # lines that one point stands for

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: float, loss: float, seconds: float) -> None:
        if self.counts and self.counts[-1] < self._per_point:
            n = self.counts[-1]
            for values, new in ((self.steps, step), (self.losses, loss), (self.seconds, seconds)):
                values[-1] += (new - values[-1]) / (n + 1)
            self.counts[-1] = n + 1
            return
        self.steps.append(step)
        self.losses.append(loss)
        self.seconds.append(seconds)
        self.counts.append(1)
        if len(self.steps) >= self._capacity:
            self._halve()

    def rewind(self, step: float) -> int:
        """Take away the points from `step` on, which a resume did again; how many lines went."""
        keep = bisect_left(self.steps, step)
        gone = sum(self.counts[keep:])
        for values in (self.steps, self.losses, self.seconds):
            del values[keep:]
        del self.counts[keep:]
        return gone

    def loss_at(self, step: float) -> Estimate | None:
        """The loss at a step: a line through the points around it, outliers left out. None outside the curve."""
        return _line_at(self.steps, self.losses, step)

    def seconds_at(self, step: float) -> float | None:
        return between(self.steps, self.seconds, step)

    def step_at_seconds(self, seconds: float) -> float | None:
        return between(self.seconds, self.steps, seconds)

    def _halve(self) -> None:
        even = len(self.steps) // 2 * 2
        pairs = range(0, even, 2)
        weight = [self.counts[i] + self.counts[i + 1] for i in pairs]
        for values in (self.steps, self.losses, self.seconds):
            merged = [
                (values[i] * self.counts[i] + values[i + 1] * self.counts[i + 1]) / total
                for i, total in zip(pairs, weight, strict=True)
            ]
            values[:] = merged + values[even:]
        self.counts = weight + self.counts[even:]
        self._per_point *= 2


def between(xs: list[float], ys: list[float], x: float) -> float | None:
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


def _line_at(xs: list[float], ys: list[float], x: float) -> Estimate | None:
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


def _noise(ys: list[float]) -> float:
    """The scatter of one point, from second differences, which a smooth curve hardly has. At most 2,000 are asked."""
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


class StepTimes:
    """Seconds per step as logged: which of them count, and what leaked into the others.

    The first step compiles, and a step after an evaluation may carry it (nanoGPT's dt does): both are kept apart.
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.leaked_seconds = 0.0  # evaluation time found in steps' times
        self.leaks = 0
        self.stalls = 0  # other steps of three times the usual and more
        self._clean: list[float] = []
        self._after_eval: list[float] = []
        self._every, self._seen = 1, 0
        self._recent: deque[float] = deque(maxlen=33)
        self._typical: float | None = None

    def add(self, seconds: float, after_eval: bool) -> float | None:
        """Take one step's time; the seconds it should count as, None while that is unknown."""
        if self.first is None:
            self.first = seconds
            return None
        usual = self._typical
        if after_eval:
            if len(self._after_eval) < 2000:
                self._after_eval.append(seconds)
            if usual is not None and seconds > 1.2 * usual:
                self.leaks += 1
                self.leaked_seconds += seconds - usual
            return usual if usual is not None else None
        self._recent.append(seconds)
        if self._seen < 8 or self._seen % 8 == 0:
            self._typical = statistics.median(self._recent)
        if self._seen % self._every == 0:
            self._clean.append(seconds)
            if len(self._clean) >= 2 * CAPACITY:
                self._clean = self._clean[::2]
                self._every *= 2
        self._seen += 1
        if usual is not None and seconds > 3 * usual:
            self.stalls += 1
        if usual is not None and not usual / 3 <= seconds <= 3 * usual:
            return usual
        return seconds

    @property
    def count(self) -> int:
        """Steps whose time counts."""
        return self._seen

    @property
    def every_one_leaks(self) -> bool:
        """All logged times carry an evaluation: they bound the step's time from above, and no more."""
        return not self._clean and bool(self._after_eval)

    def median(self) -> float | None:
        if self._clean:
            return statistics.median(self._clean)
        return statistics.median(self._after_eval) if self._after_eval else None

    def drift(self) -> float | None:
        """The last quarter's median over the first quarter's: 1.2 is a run that became 20 % slower."""
        quarter = len(self._clean) // 4
        if quarter < 10:
            return None
        return statistics.median(self._clean[-quarter:]) / statistics.median(self._clean[:quarter])

    def spread(self) -> float | None:
        """Half the distance of the quartiles over the median: how uneven the steps are."""
        if len(self._clean) < 20:
            return None
        low, middle, high = statistics.quantiles(self._clean, n=4)
        return (high - low) / 2 / middle if middle > 0 else None
