"""The oracle for what a card has to do in a step: kernels, library calls, and the bytes these read and write.

memory_oracle.py traces the trainer's own step without data and without a card; here what it meets is counted. Of a
compiled graph: the kernels of Inductor's schedule, each buffer read or written once by a kernel that touches it. Of what
runs operation by operation (the chunked loss, sums of gradients, clipping, the update): a kernel for each operation, its
operands read and its results written once. Library calls are matrix products and attention; all others are kernels.

>>> small = RunConfig(n_layer=1, n_embd=64, n_head=4, block_size=64, batch_size=2, vocab_size=512)
>>> step_work(small, "bfloat16").of_step(1).calls > 0
True
"""

from dataclasses import dataclass
from typing import Any

import torch
from inductor_schedule import Kernel
from memory_oracle import LOSS, Live, _is_kernel, fake_stepper
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onecard.config import RunConfig
from onecard.config.model_rules import TAPS
from onecard.planner.step_counts import optimizer_flops
from onecard.planner.workload import Workload

LIBRARY = ("mm", "addmm", "bmm", "baddbmm")  # and attention, which is in the compiled graphs
# ATen/native/cuda/MultiTensorApply.cuh, built with CUDA 13: tensors of one launch by how many lists there are, and blocks
MOST_TENSORS, MOST_BLOCKS, BLOCK_NUMBERS = (770, 448, 336, 252, 210), 2240, 65_536
MOST_JOINED = 128  # tensors of one launch of cat: CAT_ARRAY_BATCH_SIZE of Shape.cu
ROWS_READ = (
    "index",
    "gather",
    "embedding",
    "index_select",
)  # of the first operand, as much as they give
WRITES_ALONE = ("copy_", "zero_", "fill_")


@dataclass(frozen=True)
class Work:
    kernels: float = 0
    calls: float = 0  # of a library
    moved_bytes: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.kernels + other.kernels,
            self.calls + other.calls,
            self.moved_bytes + other.moved_bytes,
        )

    def __mul__(self, times: float) -> "Work":
        return Work(self.kernels * times, self.calls * times, self.moved_bytes * times)

    def __sub__(self, other: "Work") -> "Work":
        return self + other * -1


Parts = dict[str, Work]
PARTS = {
    "compiled forward": "forward",
    "compiled backward": "backward",
    LOSS: "loss",
    "clipping": "update",
    "update": "update",
}


@dataclass(frozen=True)
class StepWork:
    first: Parts  # micro-batch
    next: Parts  # any other one, whose gradients are added to those that are there
    update: Parts

    def of_step(self, micro_batches: int) -> Work:
        return (
            sum(self.first.values(), Work())
            + sum(self.next.values(), Work()) * (micro_batches - 1)
            + sum(self.update.values(), Work())
        )


class Counting(Live):
    """Also what a card is given to do, by the part of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: Parts = {}
        self.counts: dict[tuple[str, str], Work] = {}  # by part and operation

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        answer = super().__torch_dispatch__(op, types, args, kwargs)
        if _is_kernel(op):
            self._add(op.overloadpacket.__name__, work_of(op, args, kwargs or {}, answer))
        return answer

    def run(self, kernel: Kernel) -> None:
        super().run(kernel)
        counted = (0, kernel.launched) if kernel.library else (kernel.launched, 0)
        self._add(kernel.name if kernel.library else "fused", Work(*counted, kernel.moved_bytes))

    def _add(self, name: str, work: Work) -> None:
        part = PARTS.get(self.moment, "gradients added up")
        self.parts[part] = self.parts.get(part, Work()) + work
        self.counts[part, name] = self.counts.get((part, name), Work()) + work

    def taken(self) -> Parts:
        parts, self.parts = self.parts, {}
        return parts


def work_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> Work:
    """Of an operation that runs by itself."""
    name = op.overloadpacket.__name__
    moved = _moved(op, name, args, kwargs, answer)
    if name in LIBRARY:
        # what is added is copied into the result first (Blas.cpp)
        copies = name in ("addmm", "baddbmm") and "out" not in kwargs and kwargs.get("beta", 1) != 0
        copied = 2 * _size(args[0]) if copies else 0
        return Work(int(copies), 1, moved + copied)
    return Work(_launches(op, name, args), 0, moved)


def _launches(op: Any, name: str, args: tuple[Any, ...]) -> int:
    if name in ("cat", "stack"):
        return -(-len(args[0]) // MOST_JOINED)
    if not name.startswith(("_foreach", "_fused")):
        return 1
    lists = [arg for arg in args if isinstance(arg, list) and arg and isinstance(arg[0], Tensor)]
    numbers = lists[0][0].numel()
    lists = [tensors for tensors in lists if tensors[0].numel() == numbers]  # not the steps' counts
    alike = all(
        a.stride() == b.stride() and a.dtype == b.dtype
        for other in lists[1:]
        for a, b in zip(lists[0], other, strict=True)
    )
    if not alike:  # can_use_fast_route: one by one
        return len(lists[0])
    blocks = sum(-(-tensor.numel() // BLOCK_NUMBERS) for tensor in lists[0])
    launches = max(-(-len(lists[0]) // MOST_TENSORS[len(lists) - 1]), -(-blocks // MOST_BLOCKS))
    return launches + (2 if name == "_foreach_norm" else 0)  # zeros before it, sums after it


def _moved(op: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> float:
    results = [t for t in tree_leaves(answer) if isinstance(t, Tensor)]
    if name == "index_add_":
        return 3 * _size(args[3]) + _size(args[2])
    if name in ROWS_READ:
        return 2 * _size(results[0]) + sum(map(_size, _tensors(args[1:])))
    moved = 0.0
    read, written = set(), set()  # an operand given twice is read once
    named = {a.name: a for a in op._schema.arguments}
    given = list(zip(op._schema.arguments, args, strict=False))
    given += [(named[key], value) for key, value in kwargs.items()]
    for argument, value in given:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        # an update's gradients are declared written, for they may have to be unscaled
        writes = writes and not (name.startswith("_fused") and argument.name == "grads")
        is_result = argument.is_out or name in WRITES_ALONE
        reads = not (writes and is_result) and not (
            argument.name == "self" and kwargs.get("beta") == 0
        )
        for tensor in _tensors(value):
            place = (tensor.untyped_storage()._cdata, tensor.storage_offset())
            moved += _size(tensor) * (writes + (reads and place not in read))
            read |= {place} if reads else set()
            written |= {tensor.untyped_storage()._cdata} if writes else set()
    return moved + sum(_size(t) for t in results if t.untyped_storage()._cdata not in written)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _size(tensor: Tensor) -> int:
    """In bytes, an expanded dimension once."""
    numbers = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= length if stride else 1
    return numbers * tensor.element_size()


def step_work(config: RunConfig, dtype: str, live: Counting | None = None) -> StepWork:
    """Of the step of a run that has its optimizer's memory."""
    live = live or Counting()
    with fake_stepper(config, dtype, live) as (_, step):

        def micro_batches(count: int) -> Parts:
            rows = torch.zeros(count * config.batch_size, config.block_size + 1, dtype=torch.long)
            live.taken()
            live.moment = "loss"
            step._accumulate(rows, 0, seed=1)
            return live.taken()

        def updated() -> Parts:
            live.moment = "clipping"
            step._clipped()
            live.moment = "update"
            step.optimizer.step()
            return live.taken()

        first = micro_batches(1)
        updated()  # makes the optimizer's memory
        live.counts.clear()
        both = micro_batches(2)
        more = {part: work - first.get(part, Work()) for part, work in both.items()}
        return StepWork(first, more, updated())


def flops_share(config: RunConfig, micro_batches: int) -> float:
    """A modern step's FLOPs over those of GPT-2's, as bench/step_cost.py counts them: matrix products, attention's over the
    causal half, the short convolutions, and Newton–Schulz in the form that a card takes.

    >>> shape = RunConfig(recipe="modern", optimizer="muon", tied=False, batch_size=8, vocab_size=50304)
    >>> round(flops_share(shape, 1), 3), round(flops_share(shape, 60), 3)
    (1.25, 1.004)
    """
    layers, width, block = config.n_layer, config.n_embd, config.block_size
    tokens = block * config.batch_size * micro_batches
    plain = (
        12 * layers * width**2 + config.shape.vocab_size * width + layers * width * block
    ) * 6.0
    taps = 6.0 * 2 * layers * TAPS * width
    update = optimizer_flops(Workload.of(config, "bfloat16"))
    return (tokens * (plain + taps) + update) / (tokens * plain)
