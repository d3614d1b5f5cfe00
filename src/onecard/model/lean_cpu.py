"""Parts of the modern blocks on a CPU without the compiler: fewer passes over memory, each in long rows.

Operation by operation a pass is paid for by its memory and by how often its inner loop starts again: half a head, 16
numbers, costs three times what a row of the model does. So the norm writes where the convolution reads it, pairs of
channels are turned as complex numbers, and the soft cap bends the logits where they are. The plain forms are in lean.py and
short_convolution.py; tests/torch/test_lean.py compares.

>>> x = torch.tensor([[[3.0, 4.0], [1.0, 1.0]]])
>>> normed_mix(x, torch.zeros(4, 2))[0, 1].tolist()
[1.0, 1.0]
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onecard.model import lean


def serves(x: Tensor) -> bool:
    """Whether these forms are for it. oneDNN has the convolution; without it torch would loop over the channels."""
    return (
        lean.on_cpu(x)
        and x.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


def normed_mix(x: Tensor, taps: Tensor) -> Tensor:
    """mix_recent(rms_norm(x), taps)."""
    return _NormedMix.apply(x, taps)


def turned_heads(qkv: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys normed and turned, and values, (batch, heads, length, head width), of (batch, length, 3, heads, head width).

    The two channels of a pair are placed side by side, in queries and in keys: their products are the same.
    """
    return _TurnedHeads.apply(qkv, cosine, sine)


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return _SquaredRelu.apply(x)


def soft_capped(logits: Tensor, cap: float) -> Tensor:
    """cap · tanh(logits / cap), written over the logits."""
    return _SoftCap.apply(logits, cap)


def _scale(x: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(lean.EPSILON).rsqrt_()


def _as_image(x: Tensor) -> Tensor:
    """(batch, length, width) as a picture of one row, channels last: the same memory."""
    return x.transpose(1, 2).unsqueeze(2)


class _NormedMix(torch.autograd.Function):
    """The norm's output is kept, behind as many zeros as the taps reach back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        batch, length, width = x.shape
        back = len(taps) - 1
        normed = x.new_empty(batch, back + length, width)
        normed[:, :back] = 0
        scale = _scale(x)
        torch.mul(x, scale, out=normed[:, back:])
        kernel = taps.flip(0).t().contiguous()
        kernel[:, -1] += 1
        kernel = kernel.view(width, 1, 1, back + 1)
        ctx.save_for_backward(normed, scale, kernel)
        return F.conv2d(_as_image(normed), kernel, groups=width).squeeze(2).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        normed, scale, kernel = ctx.saved_tensors
        grad = grad.contiguous()
        length, width = grad.shape[1:]
        back = normed.shape[1] - length
        none = [0, 0]
        through, _, _ = torch.ops.aten.convolution_backward(
            *(_as_image(grad), _as_image(normed), kernel, None, [1, 1], none, [1, 1]),
            *(False, none, width, [True, False, False]),
        )
        room = torch.empty_like(grad)
        taps_grad = grad.new_empty(back + 1, width)
        for k in range(back + 1):
            product = torch.mul(grad, normed[:, back - k : back - k + length], out=room)
            torch.sum(product.view(-1, width), 0, out=taps_grad[k])
        through, own = through.squeeze(2).transpose(1, 2)[:, back:], normed[:, back:]
        # the part of the gradient along the norm's output changes only the length
        along = torch.mul(through, own, out=room).mean(-1, keepdim=True)
        return torch.addcmul(through, own, along, value=-1, out=room).mul_(scale), taps_grad


class _TurnedHeads(torch.autograd.Function):
    """A turn keeps lengths, so that the norm may come after it."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        half = qkv.shape[-1] // 2
        qk = qkv[:, :, :2]
        scale = _scale(qk)
        # written out for every head: rows of the model's width
        turn = torch.complex(cosine, -sine).expand(-1, 2, qkv.shape[3], -1).contiguous()
        pairs = torch.complex(qk[..., :half], qk[..., half:]).mul_(turn)
        turned = torch.view_as_real(pairs).flatten(-2).mul_(scale)
        ctx.save_for_backward(turned, scale, turn)
        q, k = (part.transpose(1, 2) for part in turned.unbind(2))
        return q, k, qkv[:, :, 2].transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        turned, scale, turn = ctx.saved_tensors
        batch, length, _, heads, width = turned.shape
        whole = turned.new_empty(batch, length, 3, heads, width)
        back = turn[:, 0].conj().resolve_conj()
        for place in range(2):
            grad, own = grads[place].transpose(1, 2), turned[:, :, place]
            along = (grad * own).mean(-1, keepdim=True)
            inner = torch.addcmul(grad, own, along, value=-1).contiguous().mul_(scale[:, :, place])
            pairs = torch.view_as_complex(inner.unflatten(-1, (-1, 2))).mul_(back)
            whole[:, :, place, :, : width // 2] = pairs.real
            whole[:, :, place, :, width // 2 :] = pairs.imag
        whole[:, :, 2] = grads[2].transpose(1, 2)
        return whole, None, None


class _SquaredRelu(torch.autograd.Function):
    """In blocks: the second pass over each finds it in the cache."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        positive, y = torch.empty_like(x), torch.empty_like(x)
        for part, kept, out in _blocks(x, positive, y):
            torch.clamp_min(part, 0, out=kept)
            torch.mul(kept, kept, out=out)
        ctx.save_for_backward(positive)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # asked for once: a layer that is computed again gives it only once
        (kept,) = ctx.saved_tensors
        inner = torch.empty_like(kept)
        for part, positive, out in _blocks(grad, kept, inner):
            torch.mul(part, positive, out=out).mul_(2)
        return inner


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.reshape(-1).split(lean.BLOCK) for tensor in tensors), strict=True)


class _SoftCap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, cap: float) -> Tensor:
        for part in logits.view(-1).split(lean.BLOCK):
            part.mul_(1 / cap).tanh_().mul_(cap)
        ctx.mark_dirty(logits)
        ctx.save_for_backward(logits)
        ctx.cap = cap
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (bent,) = ctx.saved_tensors
        inner = torch.empty_like(bent)
        for part, own, out in _blocks(grad, bent, inner):
            torch.mul(part, own, out=out)
            torch.addcmul(part, out, own, value=-1 / ctx.cap**2, out=out)
        return inner, None
