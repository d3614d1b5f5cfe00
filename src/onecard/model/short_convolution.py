"""A short causal convolution along the sequence: each channel looks at its own last few positions.

    y[t] = x[t] + Σ_k taps[k] · x[t − k],    k = 0 … 3,    what lies before the sequence counts as zero

Allen-Zhu's "Canon layers" (Physics of Language Models 4.1, 2025); Primer's depthwise convolution (So et al., 2021) is
the same idea inside attention. Attention then need not spend a head on "the token before this one". Taps begin at zero,
so the layer begins as the identity.

>>> x = torch.tensor([[[1.0], [2.0], [4.0]]])
>>> mix_recent(x, torch.tensor([[0.0], [0.5]])).flatten().tolist()
[1.0, 2.5, 5.0]
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onecard.config.model_rules import TAPS
from onecard.model.lean import rms_norm_back, rms_scale

__all__ = ["TAPS", "mix_last", "mix_of_norms", "mix_recent"]


def mix_recent(x: Tensor, taps: Tensor, documents: Tensor | None = None) -> Tensor:
    """x (batch, length, width) mixed by taps (TAPS, width); with documents nothing comes over from another document."""
    return _Mix.apply(x, taps.to(x.dtype), documents)


def mix_of_norms(x: Tensor, taps: Tensor) -> Tensor:
    """mix_recent(rms_norm(x), taps) for a card's compiler."""
    return _MixOfNorms.apply(x, taps.to(x.dtype))


class _MixOfNorms(torch.autograd.Function):
    """The norm of each position a tap reads, computed where it is read: one kernel, where a norm that neighbours wait for
    would be a kernel by itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        scale = rms_scale(x).to(x.dtype)
        ctx.save_for_backward(x, scale, taps)
        y = x * scale * (1 + taps[0])
        for k in range(1, min(len(taps), x.shape[1])):
            before = F.pad(x[:, :-k], (0, 0, k, 0))
            y = y + before * rms_scale(before).to(x.dtype) * taps[k]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, scale, taps = ctx.saved_tensors
        normed = x * scale
        normed_grad, taps_grad = _gradients(grad, normed, taps, None)
        return rms_norm_back(normed_grad, normed, scale), taps_grad


class _Mix(torch.autograd.Function):
    """Written by hand: autograd alone would pad and copy a whole tensor for every tap, forward and back.

    Compiled, a shifted tensor is an index in the kernel that reads it, and sums over equal lengths are one kernel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, documents: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, taps, documents)
        y = x * (1 + taps[0])
        for k in range(1, min(len(taps), x.shape[1])):
            if torch.compiler.is_compiling():
                y = y + F.pad(_within(x[:, :-k], documents, k), (0, 0, k, 0)) * taps[k]
            else:
                y[:, k:].addcmul_(_within(x[:, :-k], documents, k), taps[k])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, taps, documents = ctx.saved_tensors
        if torch.compiler.is_compiling():
            return *_gradients(grad, x, taps, documents), None
        x_grad = grad * (1 + taps[0])
        taps_grad = torch.zeros_like(taps)
        taps_grad[0] = (grad * x).sum((0, 1))
        for k in range(1, min(len(taps), x.shape[1])):
            back = _within(grad[:, k:], documents, k)
            x_grad[:, :-k].addcmul_(back, taps[k])
            taps_grad[k] = (back * x[:, :-k]).sum((0, 1))
        return x_grad, taps_grad, None


def _gradients(
    grad: Tensor, x: Tensor, taps: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """For the compiler: what lies beyond the sequence is padded, so that all taps' sums are over one length."""
    x_grad, sums = grad * (1 + taps[0]), [(grad * x).sum((0, 1))]
    for k in range(1, len(taps)):
        if k >= x.shape[1]:
            sums.append(torch.zeros_like(taps[k]))
            continue
        back = F.pad(_within(grad[:, k:], documents, k), (0, 0, 0, k))
        x_grad = x_grad + back * taps[k]
        sums.append((back * x).sum((0, 1)))
    return x_grad, torch.stack(sums)


def _within(x: Tensor, documents: Tensor | None, k: int) -> Tensor:
    """x, but zero where the position k later, or k before, is of another document."""
    return x if documents is None else x * (documents[:, k:] == documents[:, :-k])[..., None]


def mix_last(recent: Tensor, taps: Tensor) -> Tensor:
    """The last position alone, for decoding: recent (batch, TAPS, width), oldest first; the answer keeps a length of 1."""
    weights = taps.flip(0).to(recent.dtype).clone()
    weights[-1] += 1
    return (recent * weights).sum(1, keepdim=True)
