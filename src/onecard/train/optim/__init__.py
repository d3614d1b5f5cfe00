"""The learning rate as a pure function of the position in the schedule, and AdamW with decay where it belongs.

>>> config = RunConfig(learning_rate=1e-3, min_lr=1e-4, warmup_iters=10, lr_decay_iters=100, max_iters=100)
>>> [round(lr_at(config, position), 6) for position in (0, 9, 10, 55, 100)]
[9.1e-05, 0.000909, 0.001, 0.00055, 0.0001]
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.config.model_rules import decay_steps
from onecard.errors import RunFailure
from onecard.model import machine
from onecard.train.optim.low_bit import LowBit
from onecard.train.optim.muon import (
    ADAM_EPSILON,
    FUSED,
    MOMENTUM,
    Muon,
    is_matrix,
    momentum_at,
    muon_groups,
)
from onecard.train.optim.sharded_rows import MASTER, SMALL, Slices
from onecard.train.optim.sliced import SlicedOptimizer


def lr_at(config: RunConfig, position: float) -> float:
    """The learning rate of the step at `position` (0 is the first); whole numbers unless max_hours hurries the run."""
    if not config.decay_lr:
        return config.learning_rate
    if position < config.warmup_iters:
        # nanoGPT's, never zero
        return config.learning_rate * (position + 1) / (config.warmup_iters + 1)
    left = config.lr_decay_iters - position
    if left <= 0:
        return config.min_lr
    span = config.lr_decay_iters - config.warmup_iters  # above zero, for `left` is
    if config.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (1 - left / span)))
    elif config.schedule == "linear":
        share = left / span
    else:  # warm-up, stable, decay: a straight line down over the last part
        share = min(1.0, left / decay_steps(config))
    return config.min_lr + (config.learning_rate - config.min_lr) * share


def decayed(name: str, parameter: Tensor, rule: str) -> bool:
    """Whether weight decay pulls on this parameter: matrices of matmuls only, or nanoGPT's rule (embeddings too)."""
    if rule == "nanogpt":
        return parameter.dim() >= 2
    return parameter.dim() >= 2 and not name.endswith(("wte.weight", "wpe.weight"))


def make_optimizer(
    config: RunConfig, model: nn.Module, slices: Slices | None = None
) -> torch.optim.Optimizer:
    """For the parameters of the model, or for what this process keeps of them."""
    slices = slices or Slices()
    low = config.state_bits < 32 or "bfloat16" in (config.weights, config.gradients)
    sliced = low or config.offload_optimizer or config.update_in_backward
    muon, betas = config.optimizer == "muon", (config.beta1, config.beta2)
    groups = muon_groups(config, model) if muon else _decay_groups(config, model)
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    settings: dict[str, Any] = {"lr": config.learning_rate, "betas": betas}
    if sliced:
        settings |= {"momentum": MOMENTUM, "eps": ADAM_EPSILON if muon else 1e-8}  # AdamW's own
        bits, seed, host = config.state_bits, config.seed, config.offload_optimizer
        return SlicedOptimizer(groups, names, bits, seed, settings, host, slices)
    if muon:
        return Muon(groups, betas, names, slices)
    device = next(model.parameters()).device.type
    return torch.optim.AdamW(groups, **settings, fused=config.fused_optimizer and device in FUSED)


def _decay_groups(config: RunConfig, model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    groups = [
        {
            "params": [
                p for name, p in named if decayed(name, p, config.weight_decay_on) == wanted
            ],
            "weight_decay": config.weight_decay if wanted else 0.0,
        }
        for wanted in (True, False)
    ]
    return [group for group in groups if group["params"]]


def set_step_size(optimizer: torch.optim.Optimizer, lr: float, step: int) -> None:
    for group in optimizer.param_groups:
        # the modern recipe's groups differ by fixed ratios
        group["lr"] = lr * group.get("lr_scale", 1.0)
        if group.get("muon"):
            group["momentum"] = momentum_at(step)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory by parameter name: "transformer.wte.weight/exp_avg" and so on."""
    machine.synchronize(next(model.parameters()).device)  # copies to the host may be under way
    return {
        f"{name}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def state_tensors(
    config: RunConfig, model: nn.Module, slices: Slices | None = None
) -> list[Tensor]:
    """Tensors that take as much memory as the optimizer's state will, before there is one."""
    slices = slices or Slices()
    tensors: list[Tensor] = []
    for name, parameter in model.named_parameters() if not config.offload_optimizer else ():
        moments = 1 if config.optimizer == "muon" and is_matrix(name, parameter) else 2
        for _ in range(moments):
            if config.state_bits < 32 and slices.whole_numel(name, parameter) >= SMALL:
                low = LowBit.zeros(parameter.numel(), config.state_bits, True, parameter.device)
                tensors += [low.codes, low.scales]
            else:
                tensors.append(torch.empty_like(parameter, dtype=torch.float32))
    return tensors


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put saved memory back; a parameter that is unknown or of another shape means another model's checkpoint."""
    parameters = dict(model.named_parameters())
    sliced = optimizer if isinstance(optimizer, SlicedOptimizer) else None
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters.get(name)
        bits, whole = 32, 0
        if sliced is not None and parameter is not None:
            bits, whole = sliced.bits, sliced.whole_numel(parameter)
        if parameter is None or not _fits(tensor, field, parameter, bits, whole):
            raise RunFailure(f"the checkpoint's optimizer does not fit the model at {name!r}")
    optimizer.state.clear()
    if sliced is not None:
        sliced.forget()
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        parameter = parameters[name]
        if sliced is None:
            value: Tensor | int = tensor.to(parameter.device, copy=True)
        else:  # steps are counted there as whole numbers
            value = int(tensor) if field == "step" else sliced.placed(tensor, parameter)
        optimizer.state[parameter][field] = value


def _fits(tensor: Tensor, field: str, parameter: Tensor, bits: int, whole: int) -> bool:
    """Whether a saved tensor is what an optimizer with moments of so many bits keeps of the parameter."""
    if not tensor.dim():
        return field == "step"
    if bits == 32 or whole < SMALL or field == MASTER:
        return tensor.shape == parameter.shape
    low = LowBit.zeros(parameter.numel(), bits, True, torch.device("meta"))
    wanted = low.scales if field.endswith("_scale") else low.codes
    return (tensor.shape, tensor.dtype) == (wanted.shape, wanted.dtype)
