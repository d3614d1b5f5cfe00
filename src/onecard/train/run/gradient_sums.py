"""Gradients added up in bf16: 2 bytes a parameter between micro-batches in place of 4.

Each gradient is taken over as autograd makes it, added in fp32, slice by slice, and the sum rounded up or down by chance
(train/optim/rounding.py): rounded to the nearest, hundreds of small gradients would be lost beside their sum.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from onecard.config.model_rules import UPDATED_NUMBERS
from onecard.model.build import is_lowered
from onecard.model.host import on_card
from onecard.train.optim.rounding import beginning, bits_of, key_of, scrambled, stochastic_bf16

_GRADIENT = 16  # use of random numbers: this for the second micro-batch, then one more for each


class GradientSums:
    """Of all matrices and tables; the others are added up by autograd, in fp32."""

    def __init__(self, model: nn.Module, seed: int, compiled: bool = False):
        self._seed, self._step = seed, 0
        self.last = False  # whether this is the step's last micro-batch, whose sums are handed over as they come
        self._add = add_rounded
        if compiled:  # one pass over memory, where operation by operation it is thirty
            self._add = partial(_add_at_once, torch.compile(_added, dynamic=True))
        self._sums: dict[nn.Parameter, tuple[Tensor, int]] = {}  # and how many it is the sum of
        for name, parameter in model.named_parameters():
            if is_lowered(name, parameter):
                parameter.register_post_accumulate_grad_hook(partial(self._take, name))

    def begin(self, step: int) -> None:
        self._step, self.last = step, False
        self._sums.clear()

    def hand_over(self) -> None:
        """The sums, where an optimizer looks for gradients."""
        for parameter, (total, _) in self._sums.items():
            parameter.grad = total
        self._sums.clear()

    @torch.no_grad()
    def _take(self, name: str, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        grad, parameter.grad = parameter.grad, None
        assert grad is not None
        total, count = self._sums.pop(parameter, (grad, 0))
        if count:
            self._add(total, grad, key_of(self._seed, self._step, name, _GRADIENT + count))
        if self.last:
            parameter.grad = total
        else:
            self._sums[parameter] = total, count + 1


def add_rounded(total: Tensor, grad: Tensor, key: int) -> None:
    """total += grad, both bf16."""
    sums, new = total.view(-1), grad.reshape(-1)
    for first in range(0, len(sums), UPDATED_NUMBERS):
        part = sums[first : first + UPDATED_NUMBERS]
        added = part.float().add_(new[first : first + UPDATED_NUMBERS])
        part.copy_(stochastic_bf16(added, first, key))


def _add_at_once(compiled: Callable[..., None], total: Tensor, grad: Tensor, key: int) -> None:
    # numbers as tensors, or each would be compiled into a graph of its own
    factor, offset = on_card(torch.tensor(beginning(key), dtype=torch.int32), total.device)
    compiled(total.view(-1), grad.reshape(-1), factor, offset)


def _added(sums: Tensor, grad: Tensor, factor: Tensor, offset: Tensor) -> None:
    """add_rounded of a flat tensor."""
    x = torch.arange(len(sums), dtype=torch.int32, device=sums.device)
    chance = scrambled(x * factor + offset) & 0xFFFF
    bits = bits_of(sums.float() + grad)
    sums.copy_(((bits + chance) & -0x10000).view(torch.float32).bfloat16())
