"""The energy of a run: the power of all its cards, read now and then, times the time between the readings.

    meter = EnergyMeter(power_meter(device, cards=1).read_watts, workers)
    watts, kwh = meter.read_all()      # of all processes' cards since the last call; every process takes part

Evaluations and checkpoints count: the time is the clock's, not the steps'.
"""

import math
import time
from collections.abc import Callable

import torch

from onecard.train.run.workers import Workers

_APART_SECONDS = 1.0  # drivers give a mean over about this time; reading more often says no more


class EnergyMeter:
    """Reads this process's card; time for which nothing can be read counts nothing."""

    def __init__(
        self,
        read: Callable[[], float | None],
        workers: Workers,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._read = read
        self._workers = workers
        self._clock = clock
        self._watts: float | None = None
        self._read_at = -math.inf
        self._counted_to = clock()

    def read_all(self) -> tuple[float | None, float]:
        """(watts now, or None where no card can be read; kWh since the last call), over all processes."""
        watts, joules = self._here()
        if self._workers.processes == 1:
            return watts, joules / 3.6e6
        parts = [watts or 0.0, joules, float(watts is not None)]
        # between CPUs: the card is not waited for
        over_all = self._workers.add(torch.tensor(parts, dtype=torch.float64)).tolist()
        return (over_all[0] if over_all[2] else None), over_all[1] / 3.6e6

    def _here(self) -> tuple[float | None, float]:
        """The draw of this process's card, and joules since the last call at the mean of the draws then and now."""
        now, before = self._clock(), self._watts
        if now - self._read_at >= _APART_SECONDS:
            self._watts, self._read_at = self._read(), now
        seconds, self._counted_to = now - self._counted_to, now
        if self._watts is None:
            return None, 0.0
        return self._watts, seconds * (self._watts + (before or self._watts)) / 2
