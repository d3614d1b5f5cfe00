"""Which window of the data comes at which place of the run: a pure function of (seed, place), without a table.

The training tokens are cut into windows of block_size that do not overlap. Each epoch visits every window once, in an
order of its own: a Feistel network, a keyed one-to-one map of the numbers below a power of two, walked until it lands
below the number of windows (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).

>>> order = WindowOrder(windows=5, seed=1337)
>>> sorted(order.windows_at(range(5, 10)).tolist())
[0, 1, 2, 3, 4]
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6  # four make a Feistel network pseudorandom (Luby and Rackoff); two more, as our round function is weak
_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


class WindowOrder:
    """windows_at(places) for places 0, 1, 2, … of the run; place // windows is the epoch."""

    def __init__(self, windows: int, seed: int):
        assert windows > 0
        self.windows = windows
        self.seed = seed
        self._half = max(1, ((windows - 1).bit_length() + 1) // 2)  # bits on each side

    def windows_at(self, places: Iterable[int]) -> NDArray[np.int64]:
        where = np.fromiter(places, dtype=np.int64)
        epochs, inside = np.divmod(where, self.windows)
        answer = np.empty_like(where)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            answer[chosen] = self._permuted(inside[chosen].astype(np.uint64), int(epoch))
        return answer

    def _permuted(self, index: NDArray[np.uint64], epoch: int) -> NDArray[np.int64]:
        keys = [
            _mixed(np.uint64(((self.seed << 20) + (epoch << 4) + r) & int(_MASK)))
            for r in range(_ROUNDS)
        ]
        index = self._shuffled(index, keys)
        outside = index >= self.windows
        while (
            outside.any()
        ):  # less than four tries in the mean: the power of two is below four times the windows
            index[outside] = self._shuffled(index[outside], keys)
            outside = index >= self.windows
        return index.astype(np.int64)

    def _shuffled(
        self, index: NDArray[np.uint64], keys: list[NDArray[np.uint64]]
    ) -> NDArray[np.uint64]:
        half, low = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = index >> half, index & low
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & low)
        return (left << half) | right


def _mixed(x: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele, Lea and Flood, 2014): every bit of the input moves every bit of the output."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
