"""Small functions of the blocks with their gradients written out.

Left to autograd, each of these becomes a chain of passes over memory, forward and back, and a saved tensor for every
one; on a small model without the compiler that is a third of the step. The gradients are the plain form's to rounding
(tests/torch/test_lean.py), and the compiler reads through them.

>>> squared_relu(torch.tensor([-1.0, 3.0])).tolist()
[0.0, 9.0]
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = torch.finfo(torch.float32).eps  # F.rms_norm's own default


# GELU's tanh form, 0.5·x·(1 + tanh(k·(x + c·x³))), is x·sigmoid(2·k·(x + c·x³)) (Hendrycks and Gimpel, 2016)
_K, _C = math.sqrt(2 / math.pi), 0.044715
BLOCK = 65_536  # elements whose four buffers fit in a core's second-level cache: 1 MiB


def on_cpu(x: Tensor) -> bool:
    """What a card fuses into one kernel a CPU may not vectorise, and the other way round."""
    return x.device.type == "cpu"


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU. On a CPU a vectorised tanh takes five times as long as an exponential, so the sigmoid is used."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.gelu(x, approximate="tanh")
    if torch.compiler.is_compiling():
        return x * torch.sigmoid((2 * _K) * torch.addcmul(x, x, x * x, value=_C))
    if not torch.is_grad_enabled():
        inner = torch.addcmul(x, x, x * x, value=_C)
        return inner.mul_(2 * _K).sigmoid_().mul_(x)  # fresh pages cost as much as a pass
    return _Gelu.apply(x)


def rms_norm(x: Tensor) -> Tensor:
    """x over its root mean square along the last dimension; no weights."""
    return _RmsNorm.apply(x)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return _SquaredRelu.apply(x)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Pairs of channels (one from either half of a head) turned by their position's angles; x is (batch, length, …)."""
    # compiled, what is computed in fp32 is rounded on its way out
    if not torch.compiler.is_compiling():
        cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    return _Rotate.apply(x, cosine, sine)


def turned_heads(qkv: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys normed and turned, and values, each (batch, heads, length, head width), of (batch, length, 3, heads,
    head width); for a card's compiler."""
    return _TurnedHeads.apply(qkv, cosine, sine)


class _Gelu(torch.autograd.Function):
    """Value and slope together, block by block, so that every pass but the first finds its numbers in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y, slope = torch.empty_like(x), torch.empty_like(x)
        scratch = x.new_empty(min(BLOCK, x.numel()))
        for a, out, p in zip(*(t.view(-1).split(BLOCK) for t in (x, y, slope)), strict=True):
            w = torch.mul(a, a, out=scratch[: a.numel()])
            torch.addcmul(a, a, w, value=_C, out=p).mul_(2 * _K).sigmoid_()
            torch.mul(a, p, out=out)
            # slope = p + 2k·w·(1 − p), w = y·(1 + 3c·x²)
            torch.addcmul(out, out, w, value=3 * _C, out=w)
            p.add_(torch.addcmul(w, w, p, value=-1, out=w), alpha=2 * _K)
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


def rms_scale(x: Tensor) -> Tensor:
    """One over the root mean square, in fp32."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return (norm.square() / x.shape[-1] + EPSILON).rsqrt()


def rms_norm_back(grad: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    """The gradient of the norm's input, of its output y: the part along y changes only the length."""
    along = (grad * y).mean(-1, keepdim=True)
    return torch.addcmul(grad, y, along, value=-1).mul_(scale)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = rms_scale(x).to(x.dtype)
        y = x * scale
        # y is kept by the matmul that follows anyway; x need not be
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return rms_norm_back(grad, *ctx.saved_tensors)


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.clamp_min(0)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (grad * positive).mul_(2)


class _TurnedHeads(torch.autograd.Function):
    """Going back, three kernels that each write a third of one tensor. Left to autograd, the gradients of queries and keys are
    joined first, and those of both and of the values padded and added up: four times the bytes."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(qkv, cosine, sine)
        qk = qkv[:, :, :2]
        turned = _turned(qk * rms_scale(qk).to(qk.dtype), cosine, sine, 1)
        q, k = (part.transpose(1, 2) for part in turned.unbind(2))
        return q, k, qkv[:, :, 2].transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        qkv, cosine, sine = ctx.saved_tensors
        back = []
        for part, grad in zip(qkv.unbind(2)[:2], grads[:2], strict=True):
            scale = rms_scale(part).to(part.dtype)
            turned = _turned(grad.transpose(1, 2), cosine[:, 0], sine[:, 0], -1)
            back.append(rms_norm_back(turned, part * scale, scale))
        return torch.stack((*back, grads[2].transpose(1, 2)), dim=2), None, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(grad, cosine, sine, -1), None, None


def _turned(x: Tensor, cosine: Tensor, sine: Tensor, sign: int) -> Tensor:
    half = x.shape[-1] // 2
    if torch.compiler.is_compiling() and not on_cpu(x) and x.shape[-1] % 2 == 0:
        # without joining two halves: an index in the kernel that norms them, forward and back
        pairs, signs = (
            x.unflatten(-1, (2, half)),
            sign - 2 * sign * torch.arange(2, device=x.device),
        )
        other = pairs.flip(-2) * (sine[..., None, :] * signs[:, None])
        return (pairs * cosine[..., None, :] + other).flatten(-2).to(x.dtype)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    first = torch.addcmul(a * cosine, b, sine, value=sign)
    second = torch.addcmul(b * cosine, a, sine, value=-sign)
    return torch.cat((first, second, rest) if x.shape[-1] % 2 else (first, second), dim=-1)
