"""Seconds per step as a log gives them: which of them count, and what leaked into the others.

>>> times = StepTimesBuilder()
>>> for seconds in (40.0, 4.0, 4.1, 3.9): _ = times.add(seconds, after_eval=False)
>>> times.done().median
4.0
"""

import statistics
from collections import deque
from dataclasses import dataclass

_MOST_KEPT = 8192
_MOST_AFTER_EVAL = 2000
_RECENT = 33  # steps whose median is what is usual now


@dataclass(frozen=True)
class StepTimes:
    """The first step compiles, and a step after an evaluation may carry it (nanoGPT's dt does): both are kept apart."""

    first: float | None = None
    median: float | None = None  # of the steps that count; else of those that carry an evaluation
    count: int = 0  # steps whose time counts
    leaks: int = 0  # steps that carry an evaluation
    leaked_seconds: float = 0.0  # evaluation time found in step times
    stalls: int = 0  # other steps of three times the usual and more
    every_one_leaks: bool = False  # all carry an evaluation: `median` is only an upper bound
    drift: float | None = None  # last quarter over first: 1.2 is a run that became 20 % slower
    spread: float | None = None  # half the distance of the quartiles over the median


class StepTimesBuilder:
    def __init__(self) -> None:
        self._first: float | None = None
        self._leaked_seconds = 0.0
        self._leaks = 0
        self._stalls = 0
        self._clean: list[float] = []
        self._after_eval: list[float] = []
        self._keep_every, self._seen = 1, 0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._typical: float | None = None

    @property
    def typical(self) -> float:
        """What is usual so far; 0 while that is unknown."""
        if self._typical is not None:
            return self._typical
        return statistics.median(self._after_eval) if self._after_eval else 0.0

    def add(self, seconds: float, after_eval: bool) -> float | None:
        """Take one step's time; returns the seconds it should count as, None while that is unknown."""
        if self._first is None:
            self._first = seconds
            return None
        usual = self._typical
        if after_eval:
            if len(self._after_eval) < _MOST_AFTER_EVAL:
                self._after_eval.append(seconds)
            if usual is not None and seconds > 1.2 * usual:
                self._leaks += 1
                self._leaked_seconds += seconds - usual
            return usual
        self._recent.append(seconds)
        if self._seen < 8 or self._seen % 8 == 0:
            self._typical = statistics.median(self._recent)
        if self._seen % self._keep_every == 0:
            self._clean.append(seconds)
            if len(self._clean) >= _MOST_KEPT:
                self._clean = self._clean[::2]
                self._keep_every *= 2
        self._seen += 1
        if usual is not None and seconds > 3 * usual:
            self._stalls += 1
        if usual is not None and not usual / 3 <= seconds <= 3 * usual:
            return usual
        return seconds

    def done(self) -> StepTimes:
        counted = self._clean or self._after_eval
        return StepTimes(
            first=self._first,
            median=statistics.median(counted) if counted else None,
            count=self._seen,
            leaks=self._leaks,
            leaked_seconds=self._leaked_seconds,
            stalls=self._stalls,
            every_one_leaks=not self._clean and bool(self._after_eval),
            drift=_drift(self._clean),
            spread=_spread(self._clean),
        )


def _drift(seconds: list[float]) -> float | None:
    quarter = len(seconds) // 4
    if quarter < 10:
        return None
    return statistics.median(seconds[-quarter:]) / statistics.median(seconds[:quarter])


def _spread(seconds: list[float]) -> float | None:
    if len(seconds) < 20:
        return None
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 2 / middle if middle > 0 else None
