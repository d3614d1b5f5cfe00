"""AdamW and Muon for weights and moments that are not kept in fp32: the same update, slice by slice.

Moments may be in 8 or 4 bits (low_bit.py), weights and gradients in bf16. A parameter is updated in slices, so that
fp32 copies of it and its moments are never there as a whole. Muon's matrices are done one by one, for each must be
there as a whole to be made orthogonal.

On the host (`offload_optimizer`) moments are fetched and brought back slice by slice. Memory is no matter there: bf16
weights have fp32 ones beside their moments, and are these rounded to the nearest.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from onecard.model.host import copied, on_card, on_host
from onecard.train.optim.low_bit import LowBit
from onecard.train.optim.muon import moved
from onecard.train.optim.rounding import key_of, stochastic_bf16

SLICE = 2**21  # numbers updated at once; whole blocks
SMALL = 4096  # numbers: the moments of smaller tensors (norms, biases) stay in fp32
MASTER = "master"  # fp32 weights on the host
_FIRST, _SECOND, _MOMENTUM, _WEIGHT = 1, 2, 3, 4  # uses of random numbers


class SlicedOptimizer(torch.optim.Optimizer):
    """Groups as for AdamW and Muon; `names` are the parameters', from which their random numbers come."""

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        names: Mapping[Tensor, str],
        bits: int,
        seed: int,
        defaults: dict[str, Any],
        host: bool = False,
    ):
        super().__init__(groups, {"weight_decay": 0.0, "muon": False, **defaults})
        self._names = dict(names)
        self.bits = bits
        self._seed = seed
        self._host = host

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
        keys = [self._key(parameter, count, use) for use in (_FIRST, _SECOND, _WEIGHT)]
        weights, grads = parameter.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for first in range(0, weights.numel(), SLICE):
            kept, grad = (flat[first : first + SLICE] for flat in (weights, grads))
            weight, grad = self._exact(parameter, kept, first), grad.float()
            mean = self._read(parameter, "exp_avg", first, len(grad)).lerp_(grad, 1 - beta1)
            square = self._read(parameter, "exp_avg_sq", first, len(grad))
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if group["weight_decay"]:
                weight.mul_(1 - group["lr"] * group["weight_decay"])
            weight.addcdiv_(mean, square.sqrt().div_(root).add_(group["eps"]), value=-stride)
            del grad
            self._keep(parameter, kept, weight, first, keys[2])
            del weight
            self._write(parameter, "exp_avg", mean, first, keys[0])
            del mean
            self._write(parameter, "exp_avg_sq", square, first, keys[1])

    def _muon(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter, ("momentum",))
        state["step"] += 1
        keys = [self._key(parameter, state["step"], use) for use in (_MOMENTUM, _WEIGHT)]
        assert parameter.grad is not None
        grad = parameter.grad.float()
        kept = self._read(parameter, "momentum", 0, parameter.numel()).view_as(parameter)
        kept.lerp_(grad, 1 - group["momentum"])
        ahead = torch.lerp(grad, kept, group["momentum"])
        del grad
        flat = kept.view(-1)
        for first in range(0, flat.numel(), SLICE):
            self._write(parameter, "momentum", flat[first : first + SLICE], first, keys[0])
        del kept, flat
        weight = self._exact(parameter, parameter.view(-1), 0).view_as(parameter)
        if group["weight_decay"]:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        moved(weight, ahead, group["lr"])
        del ahead
        old, new = parameter.view(-1), weight.view(-1)
        for first in range(0, new.numel(), SLICE):
            part = slice(first, first + SLICE)
            self._keep(parameter, old[part], new[part], first, keys[1])

    def _state(self, parameter: Tensor, moments: tuple[str, ...]) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in moments:
                if self.bits == 32 or parameter.numel() < SMALL:
                    zeros = torch.zeros_like(parameter, dtype=torch.float32)
                    state[name] = self.placed(zeros, parameter)
                else:
                    signed, count = name != "exp_avg_sq", parameter.numel()
                    low = LowBit.zeros(count, self.bits, signed, parameter.device)
                    state[name] = self.placed(low.codes, parameter)
                    state[f"{name}_scale"] = self.placed(low.scales, parameter)
            if self._host and parameter.dtype == torch.bfloat16:
                state[MASTER] = self.placed(parameter.float(), parameter)
        return state

    def placed(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """Where it is kept between steps: on the parameter's device, or on the host."""
        if self._host:
            return on_host(tensor.to(parameter.device))
        return tensor.to(parameter.device, copy=True)

    def _read(self, parameter: Tensor, name: str, first: int, count: int) -> Tensor:
        state, device = self.state[parameter], parameter.device if self._host else None
        if f"{name}_scale" in state:
            return self._low_bit(parameter, name).read(first, count, device)
        kept: Tensor = state[name].view(-1)[first : first + count]  # changed in place
        return kept if device is None else on_card(kept, device)

    def _write(self, parameter: Tensor, name: str, values: Tensor, first: int, key: int) -> None:
        state = self.state[parameter]
        if f"{name}_scale" in state:
            self._low_bit(parameter, name).write(values, first, key)
        elif self._host:
            copied(state[name].view(-1)[first : first + len(values)], values)

    def _low_bit(self, parameter: Tensor, name: str) -> LowBit:
        state, signed = self.state[parameter], name != "exp_avg_sq"
        return LowBit(state[name], state[f"{name}_scale"], parameter.numel(), self.bits, signed)

    def _exact(self, parameter: Tensor, kept: Tensor, first: int) -> Tensor:
        """Weights in fp32 to be changed: themselves where they are."""
        if MASTER in self.state[parameter]:
            return self._read(parameter, MASTER, first, len(kept))
        return kept.detach().float()

    def _keep(self, parameter: Tensor, kept: Tensor, weight: Tensor, first: int, key: int) -> None:
        """Back into the parameter; fp32 weights were changed in place."""
        if MASTER in self.state[parameter]:
            self._write(parameter, MASTER, weight, first, 0)
            kept.copy_(weight)
        elif kept.dtype == torch.bfloat16:
            kept.copy_(stochastic_bf16(weight, first, key))

    def _key(self, parameter: Tensor, count: int, use: int) -> int:
        return key_of(self._seed, count, self._names[parameter], use)
