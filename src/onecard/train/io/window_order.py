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

from onecard.data.preparation.hashing import mix

_ROUNDS = 6  # four make a Feistel network pseudorandom (Luby and Rackoff); two more, as our round function is weak


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
        first = (self.seed << 20) + (epoch << 4)
        keys = mix(np.array([(first + r) % 2**64 for r in range(_ROUNDS)], np.uint64))
        index = self._shuffled(index, keys)
        outside = index >= self.windows
        # less than four tries in the mean: the power of two is below four times the windows
        while outside.any():
            index[outside] = self._shuffled(index[outside], keys)
            outside = index >= self.windows
        return index.astype(np.int64)

    def _shuffled(self, index: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
        half, low = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = index >> half, index & low
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & low)
        return (left << half) | right
