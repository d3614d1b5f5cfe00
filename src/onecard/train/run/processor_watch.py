"""A watch that says when other programs take the processor from a run.

Linux counts how long a thread stood ready while another program had its core. Where one of the run's threads waits for a large
share of the time, steps take longer than they would alone: on a CPU because the other threads wait for it, beside a card
because kernels are launched late.

>>> watch = ProcessorWatch(read=iter([{1: 0.0}, {1: 4.0}]).__next__, clock=iter([0.0, 10.0]).__next__)
>>> watch.share()
0.4
"""

import os
import time
from collections.abc import Callable

from onecard.model.processor import waited_seconds
from onecard.runs.run import DISTURBED

# between two readings: shorter ones say little, and a reading takes some microseconds
SECONDS = 5.0
MUCH = 0.2  # of the time: reported from here on; below DISTURBED, reported as over


def advice() -> str:
    """How threads wait is chosen when a process starts (cli/__init__.py): a run that began in peace spins."""
    waits = os.environ.get("OMP_WAIT_POLICY", "").lower()
    if waits == "passive":
        return ""
    return (
        "; stopped and resumed meanwhile, its threads wait without taking the cores from each other"
    )


class ProcessorWatch:
    def __init__(
        self,
        read: Callable[[], dict[int, float]] = waited_seconds,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._read, self._clock = read, clock
        self._waited, self._since = read(), clock()
        self._reported = False

    def share(self) -> float | None:
        """The share of the time since the last call that the run's most delayed thread waited for a core; None where it is
        too early to tell, or the system does not count."""
        now = self._clock()
        if now - self._since < SECONDS:
            return None
        waited = self._read()
        longest = max((t - self._waited.get(task, 0.0) for task, t in waited.items()), default=None)
        passed, self._since, self._waited = now - self._since, now, waited
        return None if longest is None else min(1.0, longest / passed)

    def sentence(self, share: float | None) -> str | None:
        """What to report of that share: once when it begins, once when it is over."""
        if share is not None and share >= MUCH and not self._reported:
            self._reported = True
            return (
                f"other programs use the processor: the run waits for it {share:.0%} of the time, "
                f"and its steps take longer than they would alone{advice()}"
            )
        if share is not None and share < DISTURBED and self._reported:
            self._reported = False
            return "the processor is the run's own again"
        return None
