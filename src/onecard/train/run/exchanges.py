"""The exchanges that torch's FSDP2 makes in a pass over the model, counted: a process that fails in the middle of a pass
takes part in the rest of them, with numbers that nobody will use. Otherwise the others would wait for it for ever.

Their order does not depend on the rows. It is noted before the run, in passes over a single short row.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Guard = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Exchange:
    kind: Literal["gather", "scatter"]
    sent: int  # numbers
    received: int
    dtype: torch.dtype


class Exchanges:
    """`guard` is around every exchange, and turns torch's errors into the loss of a process."""

    def __init__(self, group: "dist.ProcessGroup", staged: bool, guard: Guard):
        self._group, self._staged, self._guard = group, staged, guard
        self._known: dict[str, list[Exchange]] = {}
        self._all_known = False
        self._passes: list[str] = []  # of the work at hand, by the name of their order
        self._number, self._done = -1, 0  # of the pass at hand, and exchanges in it

    def open(self, passes: list[str]) -> None:
        self._passes, self._number, self._done = passes, -1, 0

    def next_pass(self) -> bool:
        """A pass begins; whether it is the last."""
        self._number, self._done = self._number + 1, 0
        assert self._number < len(self._passes), "a pass that the other processes do not make"
        return self._number == len(self._passes) - 1

    def take_part_in_rest(self, device: torch.device) -> None:
        """All that is left of the passes at hand, without the model."""
        assert self._all_known
        begun = self._known[self._passes[self._number]] if self._number >= 0 else []
        left = begun[self._done :]
        for name in self._passes[self._number + 1 :]:
            left = [*left, *self._known[name]]
        for each in left:
            sent = torch.zeros(each.sent, dtype=each.dtype, device=device)
            received = torch.empty(each.received, dtype=each.dtype, device=device)
            (self._gather if each.kind == "gather" else self._scatter)(received, sent)

    def note(self, kind: Literal["gather", "scatter"], received: Tensor, sent: Tensor) -> None:
        known = self._known.setdefault(self._passes[self._number], [])
        each = Exchange(kind, sent.numel(), received.numel(), sent.dtype)
        if not self._all_known and self._done == len(known):
            known.append(each)
        assert known[self._done] == each, "the exchanges of a pass are always the same"
        self._done += 1

    def all_known(self) -> None:
        """From now on no pass has other exchanges than it was noted with."""
        self._all_known = True

    def _gather(self, received: Tensor, sent: Tensor) -> None:
        self._exchange(dist.all_gather_single, received, sent)

    def _scatter(self, received: Tensor, sent: Tensor) -> None:
        self._exchange(dist.reduce_scatter_single, received, sent)

    def swap(self, sent: Tensor) -> Tensor:
        """One row of the first dimension to each process, and theirs."""
        received = torch.empty_like(sent)
        self._exchange(dist.all_to_all_single, received, sent.contiguous())
        return received

    def _exchange(self, do: Callable[..., Any], received: Tensor, sent: Tensor) -> None:
        with self._guard():
            if not self._staged:
                do(received, sent, group=self._group)
                return
            there = received.cpu()  # gloo between cards: through the host
            do(there, sent.cpu(), group=self._group)
            received.copy_(there)


class Gather:
    """What FSDP2 calls to gather a layer's weights (torch's AllGather)."""

    def __init__(self, exchanges: Exchanges):
        self._exchanges = exchanges

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        assert not async_op
        self._exchanges.note("gather", output_tensor, input_tensor)
        self._exchanges._gather(output_tensor, input_tensor)


class Scatter(Gather):
    """And to add up a layer's gradients, each process getting its part (torch's ReduceScatter)."""

    def __call__(  # type: ignore[override]
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        assert not async_op
        assert op == dist.ReduceOp.SUM
        self._exchanges.note("scatter", output_tensor, input_tensor)
        self._exchanges._scatter(output_tensor, input_tensor)
