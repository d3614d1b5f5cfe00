"""The learning rate as a pure function of the position in the schedule, and AdamW with decay where it belongs.

>>> config = RunConfig(learning_rate=1e-3, min_lr=1e-4, warmup_iters=10, lr_decay_iters=100, max_iters=100)
>>> [round(lr_at(config, position), 6) for position in (0, 9, 10, 55, 100)]
[9.1e-05, 0.000909, 0.001, 0.00055, 0.0001]
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import RunFailure, UserError
from onecard.train.optim.muon import FUSED, is_matrix, make_muon, momentum_at


def lr_at(config: RunConfig, position: float) -> float:
    """The learning rate of the step at `position` (0 is the first); whole numbers unless max_hours hurries the run."""
    if not config.decay_lr:
        return config.learning_rate
    if position < config.warmup_iters:
        return (
            config.learning_rate * (position + 1) / (config.warmup_iters + 1)
        )  # nanoGPT's, never zero
    left = config.lr_decay_iters - position
    if left <= 0:
        return config.min_lr
    span = config.lr_decay_iters - config.warmup_iters  # above zero, for `left` is
    if config.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * (1 - left / span)))
    elif config.schedule == "linear":
        share = left / span
    else:  # warm-up, stable, decay: a straight line down over the last part
        share = min(1.0, left / min(span, config.decay_fraction * config.lr_decay_iters))
    return config.min_lr + (config.learning_rate - config.min_lr) * share


def decayed(name: str, parameter: Tensor, rule: str) -> bool:
    """Whether weight decay pulls on this parameter: matrices of matmuls only, or nanoGPT's rule (embeddings too)."""
    if rule == "nanogpt":
        return parameter.dim() >= 2
    return parameter.dim() >= 2 and not name.endswith(("wte.weight", "wpe.weight"))


def make_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    if config.optimizer == "muon":
        return make_muon(config, model)
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
    groups = [group for group in groups if group["params"]]
    settings: dict[str, Any] = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2)}
    device = named[0][1].device.type
    if config.optimizer == "adamw8bit":
        return eight_bit(device)(groups, **settings)
    return torch.optim.AdamW(groups, **settings, fused=device in FUSED)


def set_step_size(optimizer: torch.optim.Optimizer, lr: float, step: int) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get(
            "lr_scale", 1.0
        )  # the modern recipe's groups differ by fixed ratios
        if group.get("muon"):
            group["momentum"] = momentum_at(step)


def eight_bit(device: str) -> Callable[..., torch.optim.Optimizer]:
    """bitsandbytes' AdamW, whose two moments take a byte each; it has kernels for CUDA cards and CPUs."""
    if device not in ("cuda", "cpu"):
        raise UserError(
            f"optimizer = 'adamw8bit' runs on cuda and cpu, not on {device}",
            hint="leave optimizer at 'adamw'",
        )
    try:
        from bitsandbytes.optim.adamw import AdamW8bit
    except ImportError:
        raise UserError(
            "optimizer = 'adamw8bit' needs the package bitsandbytes",
            hint='pip install "onecard[eightbit]"',
        ) from None
    return AdamW8bit


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's memory by parameter name: "transformer.wte.weight/exp_avg" and so on."""
    return {
        f"{name}/{key}": value
        if isinstance(value, Tensor)
        else torch.tensor(value)  # bitsandbytes counts in ints
        for name, parameter in model.named_parameters()
        for key, value in sorted(optimizer.state.get(parameter, {}).items())
    }


_SMALL_IN_FP32 = 4096  # bitsandbytes keeps the moments of smaller tensors in fp32


def state_tensors(config: RunConfig, model: nn.Module) -> list[Tensor]:
    """Tensors that take as much memory as the optimizer's state will, before there is one."""
    found = []
    for name, parameter in model.named_parameters():
        bytes_each = config.optimizer == "adamw8bit" and parameter.numel() >= _SMALL_IN_FP32
        dtype = torch.uint8 if bytes_each else torch.float32
        moments = 1 if config.optimizer == "muon" and is_matrix(name, parameter) else 2
        found += [torch.empty_like(parameter, dtype=dtype) for _ in range(moments)]
    return found


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put saved memory back; a parameter that is unknown or of another shape means another model's checkpoint."""
    parameters = dict(model.named_parameters())
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        own_shape = field.startswith(
            ("absmax", "qmap")
        )  # bitsandbytes' scales, one a block of 256 values
        if name not in parameters or (
            tensor.dim() and not own_shape and tensor.shape != parameters[name].shape
        ):
            raise RunFailure(f"the checkpoint's optimizer does not fit the model at {name!r}")
        states.setdefault(name, {})[field] = tensor.to(parameters[name].device, copy=True)
    optimizer.state.clear()
    for name, state in states.items():
        if "state1" in state:
            state["step"] = int(state["step"])  # type: ignore[assignment]
        optimizer.state[parameters[name]] = state
