"""The rows of a step, read ahead by one thread while the model works on the step before.

A step's rows depend on the seed and the step alone: not on the micro-batch, the accumulation, the number of processes
or on what was evaluated in between. Row i of step s is place s · sequences_per_step + i of the run's order (window_order.py).

>>> loader = Loader(split, block_size=64, sequences_per_step=480, seed=1337)    # doctest: +SKIP
>>> loader.rows(step=0).shape                                                   # doctest: +SKIP
torch.Size([480, 65])
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onecard.errors import UserError
from onecard.train.io.window_order import WindowOrder

_AHEAD = 2  # steps read ahead: one being copied, one ready
_PLACES = 4096  # whose windows are looked up at once: a lookup costs some hundred calls of numpy, however few they are


class Tokens(Protocol):
    """What the loader needs of a split of a data set."""

    tokens: int

    def read(self, start: int, count: int) -> NDArray[np.uint16]: ...


def windows_of(split: Tokens, block_size: int, name: str) -> int:
    """How many whole windows (block_size inputs and one more token as the last target) the split holds."""
    windows = (split.tokens - 1) // block_size
    if windows < 1:
        raise UserError(
            f"the {name} split holds {split.tokens:,} tokens, less than one window of block_size = {block_size}",
            hint=f"block_size = {max(1, split.tokens - 1)} would fit, or prepare more data",
        )
    return windows


def read_windows(split: Tokens, block_size: int, windows: NDArray[np.int64]) -> Tensor:
    """(windows, block_size + 1) token ids: inputs are all but the last column, targets all but the first."""
    rows = np.empty((len(windows), block_size + 1), dtype=np.int64)
    for row, window in zip(rows, windows.tolist(), strict=True):
        row[:] = split.read(window * block_size, block_size + 1)
    return torch.from_numpy(rows)


def to_device(rows: Tensor, device: torch.device) -> Tensor:
    """The rows on the device. The host continues at once only on CUDA, whose allocator keeps pinned memory until the copy is
    done; Metal's copy would read memory that Python has freed by then."""
    return rows.to(device, non_blocking=device.type == "cuda")


class Loader:
    """Rows by step. `share` is this process's part (rank, processes) of every step's rows.

    A run whose sequences_per_step is changed at a resume continues from the place it had reached: `first` is the
    (step, place) from which the present sequences_per_step counts.
    """

    def __init__(
        self,
        split: Tokens,
        block_size: int,
        sequences_per_step: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
        first: tuple[int, int] = (0, 0),
        pin: bool = False,
    ):
        self.split = split
        self.block_size = block_size
        self.sequences_per_step = sequences_per_step
        self.order = WindowOrder(windows_of(split, block_size, "training"), seed)
        self.first = first
        self.pin = pin
        rank, processes = share
        self._part = slice(
            rank * sequences_per_step // processes, (rank + 1) * sequences_per_step // processes
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onecard-data")
        self._coming: dict[int, Future[Tensor]] = {}
        self._known = (0, np.empty(0, np.int64))  # a place, and the windows from there on
        self.wait_seconds = 0.0  # of the last call of rows()

    def place(self, step: int) -> int:
        """The place in the run's order of the first row of a step."""
        first_step, first_place = self.first
        return first_place + (step - first_step) * self.sequences_per_step

    def windows(self, step: int) -> NDArray[np.int64]:
        """The windows of the whole step, over all processes."""
        start, count = self.place(step), self.sequences_per_step
        first, known = self._known
        if not first <= start <= first + len(known) - count:
            first, known = start, self.order.windows_at(range(start, start + max(count, _PLACES)))
            self._known = first, known
        return known[start - first : start - first + count]

    def epoch(self, step: int) -> float:
        return self.place(step) / self.order.windows

    def rows(self, step: int) -> Tensor:
        """This process's rows of the step; the next steps' are then on their way."""
        began = time.perf_counter()
        coming = self._coming.pop(step, None) or self._thread.submit(self._read, step)
        self._coming = {s: f for s, f in self._coming.items() if step < s <= step + _AHEAD}
        for ahead in range(step + 1, step + 1 + _AHEAD):
            if ahead not in self._coming:
                self._coming[ahead] = self._thread.submit(self._read, ahead)
        rows = coming.result()
        self.wait_seconds = time.perf_counter() - began
        return rows

    def _read(self, step: int) -> Tensor:
        rows = read_windows(self.split, self.block_size, self.windows(step)[self._part])
        return rows.pin_memory() if self.pin else rows

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
