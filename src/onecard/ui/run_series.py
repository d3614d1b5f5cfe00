"""A run's measurements, however many, as at most 2,048 points: neighbours are merged two by two when it is full.

Each point keeps where its first line is in the log, so that a part of the run can be read again in more detail.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import Any

CAPACITY = 2048
# The first three say where a point is, `low` and `high` are the extremes of the loss in it, the others are means.
COLUMNS = (
    "step",
    "tokens",
    "seconds",
    "loss",
    "low",
    "high",
    "step_seconds",
    "memory_bytes",
    "watts",
    "data_wait",
    "lr",
)
_NUMBERS = (float, int)  # a bool is none of them
_READ = tuple(name for name in COLUMNS if name not in ("low", "high"))


class RunSeries:
    """`version` changes where earlier points did: a reader then takes all of them again."""

    def __init__(self, capacity: int = CAPACITY, version: int = 0):
        self.version = version
        self._capacity = capacity
        self._columns = {name: array("d") for name in COLUMNS}
        self._counts = array("q")
        self._offsets = array("q")
        self._lines_per_point = 1
        self._means = [(name, self._columns[name]) for name in _READ]

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def last_step(self) -> float | None:
        steps = self._columns["step"]
        return steps[-1] if steps else None

    def add(self, line: dict[str, Any], offset: int) -> None:
        """One step's line; a step that goes back takes away what a resume does again."""
        step = _number(line.get("step"))
        if math.isnan(step):
            return
        last = self.last_step
        if last is not None and step <= last:
            self._rewind(step)
        count = self._counts[-1] if self._counts else 0
        if 0 < count < self._lines_per_point:
            self._grow(line, count)
            return
        for name, column in self._means:
            column.append(_number(line.get(name)))
        loss = self._columns["loss"][-1]
        self._columns["low"].append(loss)
        self._columns["high"].append(loss)
        self._counts.append(1)
        self._offsets.append(offset)
        if len(self) >= self._capacity:
            self._halve()

    def _grow(self, line: dict[str, Any], count: int) -> None:
        """The last point, which stands for `count` lines, takes another one."""
        share = 1 / (count + 1)
        for name, column in self._means:
            value: Any = line.get(name)
            if type(value) in _NUMBERS and -1e300 < value < 1e300:
                mean = column[-1]
                column[-1] = mean + (value - mean) * share if mean == mean else value
        loss = _number(line.get("loss"))
        low, high = self._columns["low"], self._columns["high"]
        if not low[-1] <= loss:  # also where the one or the other is unknown
            low[-1] = _merged("low", low[-1], count, loss, 1)
        if not high[-1] >= loss:
            high[-1] = _merged("high", high[-1], count, loss, 1)
        self._counts[-1] = count + 1

    def points(self, start: int = 0) -> dict[str, list[float | None]]:
        """The columns from a point on; what is unknown is None."""
        return {
            name: [None if math.isnan(value) else value for value in column[start:]]
            for name, column in self._columns.items()
        }

    def points_between(self, first: float, last: float) -> dict[str, list[float | None]]:
        """The points of these steps."""
        steps = self._columns["step"]
        low, high = bisect_left(steps, first), bisect_right(steps, last)
        return {name: values[low:high] for name, values in self.points().items()}

    def place(self, first: float, last: float) -> tuple[int, int | None]:
        """The bytes of the log that hold these steps: where they begin, and where they end (None: at the log's end)."""
        # a point's step is the mean of its lines: those before it begin earlier, and so may the one after the last
        steps = self._columns["step"]
        before, after = bisect_right(steps, first) - 1, bisect_right(steps, last) + 1
        begin = self._offsets[before] if before >= 0 else 0
        return begin, self._offsets[after] if after < len(steps) else None

    def _rewind(self, step: float) -> None:
        keep = sum(1 for each in self._columns["step"] if each < step)
        for column in self._columns.values():
            del column[keep:]
        del self._counts[keep:], self._offsets[keep:]
        self.version += 1

    def _halve(self) -> None:
        pairs = range(0, len(self) // 2 * 2, 2)
        counts = self._counts
        for name, column in self._columns.items():
            merged = (
                _merged(name, column[i], counts[i], column[i + 1], counts[i + 1]) for i in pairs
            )
            column[:] = array("d", merged)
        self._offsets = array("q", (self._offsets[i] for i in pairs))
        self._counts = array("q", (counts[i] + counts[i + 1] for i in pairs))
        self._lines_per_point *= 2
        self.version += 1


def _merged(name: str, a: float, weight_a: int, b: float, weight_b: int) -> float:
    if math.isnan(a) or math.isnan(b):
        return b if math.isnan(a) else a
    if name == "low":
        return min(a, b)
    if name == "high":
        return max(a, b)
    return (a * weight_a + b * weight_b) / (weight_a + weight_b)


def _number(value: Any) -> float:
    """The number, or NaN: for a bool, a text, and what no honest log holds."""
    if type(value) in _NUMBERS and -1e300 < value < 1e300:
        return float(value)
    return math.nan
