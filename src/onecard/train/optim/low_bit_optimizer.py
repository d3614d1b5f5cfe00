"""AdamW and Muon with their moments in 8 or 4 bits (low_bit.py), the same update otherwise.

A parameter is updated in slices, so that fp32 copies of its moments are never there as a whole. Muon's matrices are done
one by one, for each must be there as a whole to be made orthogonal.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from onecard.train.optim.low_bit import LowBit
from onecard.train.optim.muon import moved
from onecard.train.optim.rounding import key_of

SLICE = 2**21  # numbers updated at once; whole blocks
SMALL = 4096  # numbers: the moments of smaller tensors (norms, biases) stay in fp32
_FIRST, _SECOND, _MOMENTUM = 1, 2, 3  # uses of random numbers


class LowBitOptimizer(torch.optim.Optimizer):
    """Groups as for AdamW and Muon; `names` are the parameters', from which their random numbers come."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        names: Mapping[Tensor, str],
        bits: int,
        seed: int,
        defaults: dict[str, Any],
    ):
        super().__init__(groups, {"weight_decay": 0.0, "muon": False, **defaults})
        self._names = dict(names)
        self.bits = bits
        self._seed = seed

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training loop computes its own gradients"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    (self._muon if group["muon"] else self._adamw)(parameter, group)

    def _adamw(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter, ("exp_avg", "exp_avg_sq"))
        state["step"] += 1
        count = state["step"]
        beta1, beta2 = group["betas"]
        stride = group["lr"] / (1 - beta1**count)
        root = math.sqrt(1 - beta2**count)
        keys = [self._key(parameter, count, use) for use in (_FIRST, _SECOND)]
        weights, grads = parameter.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for first in range(0, weights.numel(), SLICE):
            weight, grad = (flat[first : first + SLICE] for flat in (weights, grads))
            mean = self._read(parameter, "exp_avg", first, len(grad)).lerp_(grad, 1 - beta1)
            square = self._read(parameter, "exp_avg_sq", first, len(grad))
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if group["weight_decay"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.addcdiv_(mean, square.sqrt().div_(root).add_(group["eps"]), value=-stride)
            self._write(parameter, "exp_avg", mean, first, keys[0])
            del mean
            self._write(parameter, "exp_avg_sq", square, first, keys[1])

    def _muon(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter, ("momentum",))
        state["step"] += 1
        key = self._key(parameter, state["step"], _MOMENTUM)
        grad = parameter.grad
        assert grad is not None
        kept = self._read(parameter, "momentum", 0, parameter.numel()).view_as(parameter)
        kept.lerp_(grad, 1 - group["momentum"])
        ahead = torch.lerp(grad, kept, group["momentum"])
        flat = kept.view(-1)
        for first in range(0, flat.numel(), SLICE):
            self._write(parameter, "momentum", flat[first : first + SLICE], first, key)
        del kept, flat
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        moved(parameter, ahead, group["lr"])

    def _state(self, parameter: Tensor, moments: tuple[str, ...]) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in moments:
                if parameter.numel() < SMALL:
                    state[name] = torch.zeros_like(parameter, dtype=torch.float32)
                else:
                    low = self._low_bit(parameter, name)
                    state[name], state[f"{name}_scale"] = low.codes, low.scales
        return state

    def _low_bit(self, parameter: Tensor, name: str) -> LowBit:
        signed = name != "exp_avg_sq"
        state, count = self.state[parameter], parameter.numel()
        if name not in state:
            return LowBit.zeros(count, self.bits, signed, parameter.device)
        return LowBit(state[name], state[f"{name}_scale"], count, self.bits, signed)

    def _read(self, parameter: Tensor, name: str, first: int, count: int) -> Tensor:
        if parameter.numel() < SMALL:
            kept: Tensor = self.state[parameter][name]
            return kept.view(-1)  # changed in place
        return self._low_bit(parameter, name).read(first, count)

    def _write(self, parameter: Tensor, name: str, values: Tensor, first: int, key: int) -> None:
        if parameter.numel() >= SMALL:
            self._low_bit(parameter, name).write(values, first, key)

    def _key(self, parameter: Tensor, count: int, use: int) -> int:
        return key_of(self._seed, count, self._names[parameter], use)
