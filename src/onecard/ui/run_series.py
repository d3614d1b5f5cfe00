"""A run's measurements, however many, as at most 2,048 points: neighbours are merged two by two when it is full.

Each point keeps where its first line is in the log, so that a part of the run can be read again in more detail.
"""

import math
from array import array
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
_READ = tuple(name for name in COLUMNS if name not in ("low", "high"))


class RunSeries:
    """`version` changes where earlier points did: a reader then takes all of them again."""

    def __init__(self, capacity: int = CAPACITY):
        self.version = 0
        self._capacity = capacity
        self._columns = {name: array("d") for name in COLUMNS}
        self._counts = array("q")
        self._offsets = array("q")
        self._lines_per_point = 1

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def last_step(self) -> float | None:
        steps = self._columns["step"]
        return steps[-1] if steps else None

    def add(self, line: dict[str, Any], offset: int) -> None:
        """One step's line; a step that goes back takes away what a resume does again."""
        values = {name: _number(line.get(name)) for name in _READ}
        values["low"] = values["high"] = values["loss"]
        if math.isnan(values["step"]):
            return
        last = self.last_step
        if last is not None and values["step"] <= last:
            self._rewind(values["step"])
        if self._counts and self._counts[-1] < self._lines_per_point:
            for name, value in values.items():
                column = self._columns[name]
                column[-1] = _merged(name, column[-1], self._counts[-1], value, 1)
            self._counts[-1] += 1
            return
        for name, value in values.items():
            self._columns[name].append(value)
        self._counts.append(1)
        self._offsets.append(offset)
        if len(self) >= self._capacity:
            self._halve()

    def points(self, start: int = 0) -> dict[str, list[float | None]]:
        """The columns from a point on; what is unknown is None."""
        return {
            name: [None if math.isnan(value) else value for value in column[start:]]
            for name, column in self._columns.items()
        }

    def place(self, first: float, last: float) -> tuple[int, int | None]:
        """The bytes of the log that hold these steps: where they begin, and where they end (None: at the log's end)."""
        steps = self._columns["step"]
        begin, end = 0, None
        for step, offset in zip(steps, self._offsets, strict=True):
            if step <= first:
                begin = offset
            elif step > last and end is None:
                end = offset
        return begin, end

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
            self._columns[name] = array("d", merged)
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
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return math.nan
