"""How bench/soak.py's run and docs/performance.md judge memory: by what is added once a run has settled."""

from collections.abc import Sequence

SETTLED = 0.2  # of a run's steps: what grows after that grows for good
MOST_GROWTH = 0.02


def growth(readings: Sequence[Sequence[int]], steps: int) -> float:
    """Of (step, resident bytes): the last one against the first settled one.

    >>> round(growth([(0, 40), (19, 90), (20, 100), (60, 105), (99, 101)], 100), 4)
    0.01
    """
    settled = [held for step, held in readings if step >= SETTLED * steps]
    return settled[-1] / settled[0] - 1
