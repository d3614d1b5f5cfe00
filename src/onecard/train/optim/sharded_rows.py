"""What one process keeps of a model that is sharded: some rows of every matrix and table; vectors are whole in each.

Cut as torch's FSDP2 cuts, along the first dimension into equal parts, of which the last may be shorter or empty.

>>> [Slice.of((10, 4), index, 4) for index in (0, 3)]
[Slice(shape=(10, 4), first=0, rows=3), Slice(shape=(10, 4), first=9, rows=1)]
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from onecard.config.model_rules import STATE_BLOCK
from onecard.errors import UserError
from onecard.model.out_of_memory import is_out_of_memory

SMALL = 4096  # numbers: the moments of smaller tensors (norms, biases) stay in fp32
MASTER = "master"  # fp32 weights on the host


class Span(NamedTuple):
    """Where a tensor of this process lies in the whole one: its shape, and the first dimension from `start` to `stop`."""

    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Slice:
    """The rows of one parameter that a process keeps."""

    shape: tuple[int, ...]  # of the whole
    first: int
    rows: int

    @classmethod
    def of(cls, shape: tuple[int, ...], index: int, count: int) -> "Slice":
        each = -(-shape[0] // count)
        first = min(shape[0], index * each)
        return cls(tuple(shape), first, min(each, shape[0] - first))

    @property
    def numel(self) -> int:
        """Of the whole."""
        return math.prod(self.shape)

    @property
    def offset(self) -> int:
        """Elements of the whole before these."""
        return self.first * math.prod(self.shape[1:])


@dataclass(frozen=True)
class Slices:
    """This process's part of a model. `swap` hands one row of a stacked tensor to each process and gives back theirs."""

    of: Mapping[str, Slice] = field(default_factory=dict)  # parameters that are not in it are whole
    index: int = 0
    count: int = 1
    swap: Callable[[Tensor], Tensor] = lambda stacked: stacked

    @classmethod
    def cut(
        cls, shapes: Mapping[str, tuple[int, ...]], index: int, count: int, **more: object
    ) -> "Slices":
        """Of parameters by name and shape: matrices and tables are cut."""
        slices = {
            name: Slice.of(shape, index, count)
            for name, shape in shapes.items()
            if is_cut(name, len(shape))
        }
        return cls(slices, index, count, **more)  # type: ignore[arg-type]

    def whole_numel(self, name: str, here: Tensor) -> int:
        return self.of[name].numel if name in self.of else here.numel()

    def offset(self, name: str) -> int:
        return self.of[name].offset if name in self.of else 0

    def span(self, key: str, bits: int) -> Span | None:
        """The place of a saved tensor, "<parameter>" or "<parameter>/<moment>" in so many bits; None: it is whole here."""
        name, _, moment = key.partition("/")
        if name not in self.of or moment == "step":
            return None
        part = self.of[name]
        if bits == 32 or part.numel < SMALL or moment in ("", MASTER):
            return Span(part.shape, part.first, part.first + part.rows)
        block = STATE_BLOCK[bits]
        each = block if moment.endswith("_scale") else 8 // bits  # numbers in an entry
        total = -(-part.numel // block) * block // each
        end = part.offset + part.rows * (part.numel // part.shape[0])
        start = min(total, part.offset // each)
        return Span((total,), start, min(total, -(-end // block) * block // each))

    def places(self, keys: Iterable[str], bits: int) -> dict[str, dict[str, list[int]]]:
        """Of tensors that are not whole in each process: the whole shape, and where every process's rows start."""
        shapes = {name: part.shape for name, part in self.of.items()}
        all_slices = [Slices.cut(shapes, index, self.count) for index in range(self.count)]
        rows = {}
        for key in keys:
            spans = [each.span(key, bits) for each in all_slices]
            starts = [span.start for span in spans if span is not None]
            if spans[0] is not None:
                rows[key] = {"shape": list(spans[0].shape), "starts": starts}
        return rows

    def check_blocks(self, bits: int) -> None:
        """Numbers that share a scale must be in one process, or the run would depend on how many there are."""
        for name, part in self.of.items():
            each = -(-part.shape[0] // self.count) * (part.numel // part.shape[0])
            if bits < 32 and part.numel >= SMALL and each % STATE_BLOCK[bits]:
                raise UserError(
                    f"moments in {bits} bits, in blocks of {STATE_BLOCK[bits]} numbers, cannot be sharded to {self.count} "
                    f"processes: a block of {name} would lie in two",
                    hint=f"n_embd as a multiple of {STATE_BLOCK[bits]}, another number of processes, or optimizer_state = 'float32'",
                )


def is_cut(name: str, dimensions: int) -> bool:
    """Whether a parameter is sharded: matrices and tables."""
    return dimensions == 2 and name.endswith(".weight")


def _in_turns(
    aheads: list[Tensor], whole: list[tuple[int, ...]], slices: Slices
) -> Iterator[tuple[list[int], Tensor]]:
    """Which matrices go together, and the stacked rows that are handed over for each: as many of a shape as there are
    processes, so that every process gets one of them whole."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for number, shape in enumerate(whole):
        by_shape.setdefault(shape, []).append(number)
    for (rows, columns), numbers in by_shape.items():
        each = -(-rows // slices.count)
        for first in range(0, len(numbers), slices.count):
            chosen = numbers[first : first + slices.count]
            stacked = aheads[chosen[0]].new_zeros(slices.count, each, columns)
            for place, number in enumerate(chosen):
                stacked[place, : len(aheads[number])] = aheads[number]
            yield chosen, stacked


def move_slices(
    targets: list[Tensor],
    aheads: list[Tensor],
    whole: list[tuple[int, ...]],
    slices: Slices,
    moved: Callable[[Tensor, Tensor], None],
) -> None:
    """Matrices moved by a rule that needs them whole: each is put together in one process, which hands back every
    process's rows of how far it moves. `moved(target, ahead)` changes a whole target.

    A process that runs out of memory in between hands back zeros and says so at the end: the others wait for its rows.
    """
    ran_out: Exception | None = None
    for chosen, stacked in _in_turns(aheads, whole, slices):
        rows = whole[chosen[0]][0]
        here = slices.swap(stacked)
        move = torch.zeros_like(here)
        if slices.index < len(chosen):
            try:
                moved(move.view(-1, here.shape[2])[:rows], here.view(-1, here.shape[2])[:rows])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                ran_out = error.with_traceback(None)
        moves = slices.swap(move)
        for place, number in enumerate(chosen):
            targets[number].add_(moves[place, : len(targets[number])])
    if ran_out is not None:
        raise ran_out
