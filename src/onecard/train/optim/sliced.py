"""AdamW and Muon for weights and moments that are not kept in fp32: the same update, slice by slice.

Moments may be in 8 or 4 bits (low_bit.py), weights and gradients in bf16. A parameter is updated in slices, so that
fp32 copies of it and its moments are never there as a whole. Muon's matrices are done one by one, for each must be
there as a whole to be made orthogonal.

On the host (`offload_optimizer`) moments are fetched and brought back slice by slice, one parameter's while another's are
computed (model/host.py). Memory is no matter there: bf16 weights have fp32 ones beside their moments, and are these
rounded to the nearest.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onecard.config.model_rules import UPDATED_NUMBERS
from onecard.model.host import HostRoom, Lanes, copied, on_card
from onecard.train.optim.low_bit import LowBit
from onecard.train.optim.muon import moved
from onecard.train.optim.rounding import key_of, stochastic_bf16
from onecard.train.optim.sharded_rows import MASTER, SMALL, Slices, move_slices

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
        slices: Slices | None = None,
    ):
        super().__init__(groups, {"weight_decay": 0.0, "muon": False, **defaults})
        self._names = dict(names)
        self.bits = bits
        self._seed = seed
        self._groups = {p: group for group in self.param_groups for p in group["params"]}
        device = next(iter(self._groups)).device
        self._room = HostRoom(device) if host else None
        self._lanes = Lanes(device) if host else None
        self._slices = slices or Slices()
        self._slices.check_blocks(bits)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "the training loop computes its own gradients"
        try:
            for group in self.param_groups:
                ready = [p for p in group["params"] if p.grad is not None]
                # matrices that are sharded go together
                for together in self._turns(ready) if group["muon"] else [[p] for p in ready]:
                    self.update(*together)
        finally:  # nothing may be under way when other weights are put in place
            if self._lanes is not None:
                self._lanes.join()

    @torch.no_grad()
    def update(self, *parameters: Tensor) -> None:
        """Parameters of one group by their gradients. They may be under way until `step` returns."""
        group = self._groups[parameters[0]]
        grads = [p.grad for p in parameters if p.grad is not None]
        with nullcontext() if self._lanes is None else self._lanes.turn(*grads):
            if group["muon"]:
                self._muon(parameters, group)
            else:
                for parameter in parameters:
                    self._adamw(parameter, group)

    def forget(self) -> None:
        """Let all state go, to take in another."""
        self.state.clear()
        if self._room is not None:
            self._room = HostRoom(next(iter(self._groups)).device)

    def _adamw(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self._state(parameter, ("exp_avg", "exp_avg_sq"))
        state["step"] += 1
        count = state["step"]
        beta1, beta2 = group["betas"]
        stride = group["lr"] / (1 - beta1**count)
        root = math.sqrt(1 - beta2**count)
        keys = [self._key(parameter, count, use) for use in (_FIRST, _SECOND, _WEIGHT)]
        weights, grads = parameter.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for first in range(0, weights.numel(), UPDATED_NUMBERS):
            kept, grad = (flat[first : first + UPDATED_NUMBERS] for flat in (weights, grads))
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

    def _turns(self, parameters: list[Tensor]) -> list[list[Tensor]]:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in parameters:
            by_shape.setdefault(self._shape(parameter), []).append(parameter)
        count = self._slices.count
        return [
            alike[first : first + count]
            for alike in by_shape.values()
            for first in range(0, len(alike), count)
        ]

    def _shape(self, parameter: Tensor) -> tuple[int, ...]:
        part = self._slices.of.get(self._names[parameter])
        return tuple(parameter.shape) if part is None else part.shape

    def _muon(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        rule = partial(moved, lr=group["lr"], product_dtype=group["product_dtype"])
        aheads = [self._look_ahead(parameter, group["momentum"]) for parameter in parameters]
        weights = [self._exact(p, p.view(-1), 0).view_as(p) for p in parameters]
        if group["weight_decay"]:
            for weight in weights:
                weight.mul_(1 - group["lr"] * group["weight_decay"])
        if self._slices.count > 1:
            shapes = [self._shape(parameter) for parameter in parameters]
            move_slices(weights, aheads, shapes, self._slices, rule)
        else:
            for weight, ahead in zip(weights, aheads, strict=True):
                rule(weight, ahead)
        del aheads
        for parameter, weight in zip(parameters, weights, strict=True):
            key = self._key(parameter, self.state[parameter]["step"], _WEIGHT)
            old, new = parameter.view(-1), weight.view(-1)
            for first in range(0, new.numel(), UPDATED_NUMBERS):
                part = slice(first, first + UPDATED_NUMBERS)
                self._keep(parameter, old[part], new[part], first, key)

    def _look_ahead(self, parameter: Tensor, momentum: float) -> Tensor:
        """Where the momentum will be, in fp32; the momentum itself is kept."""
        state = self._state(parameter, ("momentum",))
        state["step"] += 1
        key = self._key(parameter, state["step"], _MOMENTUM)
        assert parameter.grad is not None
        grad = parameter.grad.float()
        kept = self._read(parameter, "momentum", 0, parameter.numel()).view_as(parameter)
        kept.lerp_(grad, 1 - momentum)
        ahead = torch.lerp(grad, kept, momentum)
        del grad
        flat = kept.view(-1)
        for first in range(0, flat.numel(), UPDATED_NUMBERS):
            self._write(parameter, "momentum", flat[first : first + UPDATED_NUMBERS], first, key)
        return ahead

    def _state(self, parameter: Tensor, moments: tuple[str, ...]) -> dict[str, Any]:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in moments:
                if self.bits == 32 or self.whole_numel(parameter) < SMALL:
                    state[name] = self._zeros(parameter.shape, torch.float32, parameter)
                else:
                    low = LowBit.zeros(parameter.numel(), self.bits, True, torch.device("meta"))
                    for key, part in ((name, low.codes), (f"{name}_scale", low.scales)):
                        state[key] = self._zeros(part.shape, part.dtype, parameter)
            if self._room is not None and parameter.dtype == torch.bfloat16:
                state[MASTER] = self._zeros(parameter.shape, torch.float32, parameter)
                exact, kept = state[MASTER].view(-1), parameter.view(-1)
                for first in range(0, len(kept), UPDATED_NUMBERS):
                    copied(
                        exact[first : first + UPDATED_NUMBERS],
                        kept[first : first + UPDATED_NUMBERS].float(),
                    )
        return state

    def whole_numel(self, parameter: Tensor) -> int:
        return self._slices.whole_numel(self._names[parameter], parameter)

    def _zeros(self, shape: torch.Size, dtype: torch.dtype, parameter: Tensor) -> Tensor:
        """Where it is kept between steps: on the parameter's device, or on the host."""
        if self._room is not None:
            return self._room.take(shape, dtype)
        return torch.zeros(shape, dtype=dtype, device=parameter.device)

    def placed(self, tensor: Tensor, parameter: Tensor) -> Tensor:
        """A copy there."""
        return self._zeros(tensor.shape, tensor.dtype, parameter).copy_(tensor)

    def _read(self, parameter: Tensor, name: str, first: int, count: int) -> Tensor:
        state, device = self.state[parameter], parameter.device if self._room is not None else None
        if f"{name}_scale" in state:
            return self._low_bit(parameter, name).read(first, count, device)
        kept: Tensor = state[name].view(-1)[first : first + count]  # changed in place
        return kept if device is None else on_card(kept, device)

    def _write(self, parameter: Tensor, name: str, values: Tensor, first: int, key: int) -> None:
        state = self.state[parameter]
        if f"{name}_scale" in state:
            offset = self._slices.offset(self._names[parameter])
            self._low_bit(parameter, name).write(values, first, key, offset)
        elif self._room is not None:
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
