"""The model of a config, by its recipe, with its weights kept as the config says.

Kept in bf16 without a copy in fp32 they take 2 bytes a parameter in place of 4, and no casts before the matmuls. An
update is mostly smaller than the distance to the next bf16 number, so it is added in fp32 and rounded up or down by
chance (train/optim/rounding.py): what a step adds is right in the mean. Norms and biases stay in fp32: they are a
thousandth of a model, and a gain near 1 would move in steps of 0.8 %.
"""

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model.gpt2 import GPT
from onecard.model.modern import ModernGPT


def make_model(config: RunConfig) -> GPT:
    """The model of a config's recipe."""
    return ModernGPT(config) if config.shape.modern else GPT(config)


def is_lowered(name: str, parameter: Tensor) -> bool:
    """Whether it is kept in bf16: matrices and tables."""
    return parameter.dim() == 2 and name.endswith(".weight")


def lowered(model: GPT, config: RunConfig) -> GPT:
    """The model with its weights and gradients as the config wants them kept."""
    weights, gradients = getattr(torch, config.weights), getattr(torch, config.gradients)
    if weights == gradients == torch.float32:
        return model
    if weights != gradients and not hasattr(Tensor, "grad_dtype"):
        raise UserError(
            f"weights and gradients of different dtypes need torch 2.10, and this is {torch.__version__}",
            hint=f"weights = gradients = {config.gradients!r}",
        )
    for name, parameter in model.named_parameters():
        if is_lowered(name, parameter):
            parameter.data = parameter.data.to(weights)
            if weights != gradients:
                parameter.grad_dtype = gradients
    return model


def gradient_dtype(parameter: Tensor) -> torch.dtype:
    return getattr(parameter, "grad_dtype", None) or parameter.dtype
