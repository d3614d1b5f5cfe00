"""Small functions of the modern blocks with their gradients written out.

Left to autograd, each of these becomes a chain of passes over memory, forward and back, and a saved tensor for every
one; on a small model without the compiler that is a third of the step. The gradients are the plain form's to rounding
(tests/torch/test_lean.py), and the compiler reads through them.

>>> squared_relu(torch.tensor([-1.0, 3.0])).tolist()
[0.0, 9.0]
"""

import torch
from torch import Tensor

_EPSILON = torch.finfo(torch.float32).eps  # F.rms_norm's own default


def rms_norm(x: Tensor) -> Tensor:
    """x over its root mean square along the last dimension; no weights."""
    return _RmsNorm.apply(x)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return _SquaredRelu.apply(x)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Pairs of channels (one from either half of a head) turned by their position's angles; x is (batch, length, …)."""
    return _Rotate.apply(x, cosine.to(x.dtype), sine.to(x.dtype))


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = (norm.square() / x.shape[-1] + _EPSILON).rsqrt().to(x.dtype)
        y = x * scale
        ctx.save_for_backward(y, scale)  # y is kept by the matmul that follows anyway; x need not be
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        y, scale = ctx.saved_tensors
        along = (grad * y).mean(-1, keepdim=True)  # the part of the gradient along y changes only the length
        return torch.addcmul(grad, y, along, value=-1).mul_(scale)


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        positive = x.clamp_min(0)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine, 1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return _turned(grad, *ctx.saved_tensors, -1), None, None


def _turned(x: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    first = torch.addcmul(a * cosine, b, sine, value=sign)
    second = torch.addcmul(b * cosine, a, sine, value=-sign)
    return torch.cat((first, second, rest) if x.shape[-1] % 2 else (first, second), dim=-1)
