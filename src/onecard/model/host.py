"""Tensors kept in the computer's memory while the card works: pinned, so that copies need not be waited for.

On a CPU the same copies are made, to and from memory of the same kind: a run takes the same way there.

>>> away = on_host(torch.arange(3))
>>> on_card(away, torch.device("cpu")).tolist()
[0, 1, 2]
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor

from onecard.config.model_rules import HELD_BYTES, LANES

_START = 512  # bytes: tensors of a block begin at multiples of it
_LEAST_BLOCK = 2**28


def room_like(tensor: Tensor) -> Tensor:
    """As much memory on the host. torch keeps pinned memory for the next such tensor, and waits for copies under way."""
    return _empty(tensor.shape, tensor.dtype, tensor.device.type == "cuda")


def _empty(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=pinned)


def on_host(tensor: Tensor) -> Tensor:
    """A copy there."""
    return copied(room_like(tensor), tensor.detach())


def on_card(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of its own on the device."""
    return copied(torch.empty(tensor.shape, dtype=tensor.dtype, device=device), tensor)


def copied(target: Tensor, source: Tensor) -> Tensor:
    """The target, filled; copies of one stream happen in order, so nothing is waited for."""
    return target.copy_(source, non_blocking=True)


def saved_on_host() -> "torch.autograd.graph.saved_tensors_hooks":
    """Within it, what autograd saves for the backward pass is kept on the host; masks stay."""

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        if not tensor.is_floating_point():
            return lambda: tensor
        away, device = on_host(tensor), tensor.device
        return lambda: on_card(away, device)

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda fetch: fetch())


class HostRoom:
    """Room on the host for tensors that stay, cut from a few large blocks.

    torch rounds every piece of pinned memory up to a power of two (ATen's CachingHostAllocator.h), so that tensors with
    a piece each would take up to twice their size. A block is such a power, and the next tensors fill what one leaves.

    >>> room = HostRoom(torch.device("cpu"))
    >>> first, second = room.take((1000, 10), torch.float32), room.take((8,), torch.uint8)
    >>> first.shape, second.dtype, room.bytes == 2**28
    (torch.Size([1000, 10]), torch.uint8, True)
    """

    def __init__(self, device: torch.device):
        self._pinned = device.type == "cuda"
        self._blocks: list[tuple[Tensor, int]] = []  # and how much of it is taken

    @property
    def bytes(self) -> int:
        return sum(block.nbytes for block, _ in self._blocks)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Room for a tensor, filled with zeros."""
        size = prod(shape) * dtype.itemsize
        fitting = (
            n for n, (block, taken) in enumerate(self._blocks) if block.nbytes - taken >= size
        )
        number = next(fitting, len(self._blocks))
        if number == len(self._blocks):
            whole = max(_LEAST_BLOCK, 1 << (size - 1).bit_length())
            self._blocks.append((_empty((whole,), torch.uint8, self._pinned), 0))
        block, taken = self._blocks[number]
        self._blocks[number] = block, -(-(taken + size) // _START) * _START
        return block[taken : taken + size].view(dtype).view(shape).zero_()


class Lanes:
    """Work beside the card's main stream, taking turns on a few streams: while one tensor is computed, the next is fetched and
    the last brought back. On a CPU all of it happens at once and in order.

    What a turn makes and drops belongs to its stream, and torch reuses it in that stream's order. What it reads of the
    main stream's is held here until the main stream has waited for the turn: so much, and no more, is held.

    >>> lanes = Lanes(torch.device("cpu"))
    >>> with lanes.turn(torch.ones(2)):
    ...     total = torch.ones(2).sum()
    >>> lanes.join()
    """

    def __init__(self, device: torch.device):
        self._device, count = device, LANES if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(count)]
        self._held: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self._turns = 0

    @contextmanager
    def turn(self, *held: Tensor) -> Iterator[None]:
        """The next stream, after what the main one was given so far; `held` is what is read of that."""
        if not self._streams:
            yield
            return
        lane = self._streams[self._turns % LANES]
        main = torch.cuda.current_stream(self._device)
        self._turns += 1
        lane.wait_stream(main)
        with torch.cuda.stream(lane):
            yield
        self._held.append((lane.record_event(), held))
        while sum(each.nbytes for _, tensors in self._held for each in tensors) > HELD_BYTES:
            main.wait_event(self._held.popleft()[0])

    def join(self) -> None:
        """The main stream waits for all turns."""
        for lane in self._streams:
            torch.cuda.current_stream(self._device).wait_stream(lane)
        self._held.clear()
