"""The layers' matrix products in fp8 (`fp8 = true`): twice the rate of bf16 on NVIDIA's cards from Ada on.

Each operand is scaled by its largest number, so that it fills the format's range, and rounded to 8 bits: inputs and weights to
e4m3, gradients, whose range is wider, to e5m2 (Micikevicius et al., 2022, "FP8 Formats for Deep Learning"). Products are added
up in fp32. Weights stay what they are; embedding, head, attention and everything that is read without gradients
(evaluation, samples) are computed as without it. docs/decisions.md says why this and not torchao.

>>> layer = Fp8Linear(32, 16, bias=False)
>>> layer(torch.randn(16, 32)).shape
torch.Size([16, 16])
"""

from typing import Any

import torch
from torch import Tensor, nn

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


class Fp8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().forward(x)
        device = x.device.type
        lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        y: Tensor = _Fp8Product.apply(x.flatten(0, -2).to(lower), self.weight)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(lower)


class _Fp8Product(torch.autograd.Function):
    """x · weightᵀ. The second operand of _scaled_mm has to lie column by column."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (x8, x_scale), (w8, w_scale) = rounded(x, FORWARD), rounded(weight, FORWARD)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        ctx.weight_dtype = weight.dtype
        return torch._scaled_mm(x8, w8.t(), x_scale, w_scale, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        g8, g_scale = rounded(grad.contiguous(), BACKWARD)
        x_grad = torch._scaled_mm(g8, by_column(w8), g_scale, w_scale, out_dtype=grad.dtype)
        weight_grad = torch._scaled_mm(
            g8.t().contiguous(), by_column(x8), g_scale, x_scale, out_dtype=grad.dtype
        )
        return x_grad, weight_grad.to(ctx.weight_dtype)


def rounded(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x in 8 bits, and what it has to be multiplied with."""
    largest = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp_min(1e-12) / largest
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def by_column(matrix: Tensor) -> Tensor:
    return matrix.t().contiguous().t()
