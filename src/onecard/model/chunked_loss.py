"""Cross-entropy of a linear head that never holds the whole table of logits.

With 50,304 tokens in the vocabulary the logits of one micro-batch, and their gradient, are the largest tensors of a
GPT-2 run: 16 × 1024 positions take 3.3 GB in fp32, twice. Here the loss and both gradients are made slice by slice in
the forward pass, as Liger-Kernel does; the backward pass only scales them.

>>> hidden, weight = torch.randn(6, 4), torch.randn(9, 4)
>>> chunked_cross_entropy(hidden, weight, torch.arange(6)).shape
torch.Size([])
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onecard.config.model_rules import slice_rows
from onecard.model import lean

_BLOCK = 262_144  # logits that stay in a core's cache from one pass to the next
_SUMMED = 256  # rows whose sum stays in fp16's range, of numbers up to 256
Weigh = Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor, Tensor | None]]
IGNORED = -100  # a target that counts nothing, as in F.cross_entropy; with gradients: some_ignored


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    rows: int | None = None,
    soft_cap: float | None = None,
    some_ignored: bool = False,
    weigh: Weigh | None = None,
) -> Tensor:
    """The mean loss of `hidden @ weight.T` against `targets`, in fp32; gradients of hidden and weight.

    With soft_cap the logits are bent into ±soft_cap by a tanh first. weigh: weigh_at_once, compiled.
    """
    rows = rows or slice_rows(weight.shape[0], on_card=not lean.on_cpu(weight))
    if torch.is_autocast_enabled(hidden.device.type):
        lower = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(lower), weight.to(lower)
    if not torch.is_grad_enabled():
        losses = [
            F.cross_entropy(capped((h @ weight.T).float(), soft_cap), t, reduction="sum")
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(losses).sum() / count_of(targets)
    return _ChunkedLoss.apply(hidden, weight, targets, soft_cap, rows, some_ignored, weigh)


def count_of(targets: Tensor) -> Tensor:
    """How many targets count, the divisor of their mean loss: 1 where none does, for a loss of 0 and not of NaN."""
    return (targets != IGNORED).sum().clamp_min(1)


def capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    """The logits bent into ±soft_cap, in place."""
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)


def _weigh(
    logits: Tensor, targets: Tensor, soft_cap: float | None, lower: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits (over soft_cap) become their exponentials, times the cap's slope, in place; each row's loss, sum of
    exponentials and slope at its target. On a CPU a few rows at a time, which then stay in its cache."""
    rows = max(1, _BLOCK // logits.shape[1]) if lean.on_cpu(logits) else len(logits)
    pieces = [
        _weigh_rows(part, t[:, None], soft_cap, lower)
        for part, t in zip(logits.split(rows), targets.split(rows), strict=True)
    ]
    losses, sums, slopes = (
        torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*pieces, strict=True)
    )
    return losses, sums, None if soft_cap is None else slopes


def _weigh_rows(
    logits: Tensor, targets: Tensor, soft_cap: float | None, lower: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if soft_cap is None:
        top, at_target = logits.amax(1, keepdim=True), logits.gather(1, targets)
        sums = logits.sub_(top).exp_().sum(1, keepdim=True)
        return sums.log() + top - at_target, sums, at_target
    bent = logits.tanh_()
    at_target = bent.gather(1, targets)
    if lower:  # a lower precision holds numbers from 0 to 1
        top = bent.amax(1, keepdim=True)
        weights = torch.add(top * -soft_cap, bent, alpha=soft_cap).exp_()
    else:  # exp(±soft_cap) are numbers as good as any
        top, weights = torch.zeros_like(at_target), bent.mul(soft_cap).exp_()
    sums = weights.sum(1, keepdim=True)
    torch.addcmul(weights, weights, bent.mul_(bent), value=-1, out=bent)
    return sums.log() + (top - at_target) * soft_cap, sums, 1 - at_target * at_target


def weigh_at_once(
    logits: Tensor, targets: Tensor, soft_cap: float | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """_weigh for a card's compiler, which makes one or two passes of it; the exponentials are written over the logits."""
    exact = logits.float()
    if soft_cap is None:
        largest, at_target = exact.amax(1, keepdim=True), exact.gather(1, targets[:, None])
        weights = (exact - largest).exp()
        sums = weights.sum(1, keepdim=True)
        logits.copy_(weights)
        return sums.log() + largest - at_target, sums, None
    bent = exact.tanh()
    at_target = bent.gather(1, targets[:, None])
    # fp16 alone does not hold exp(±soft_cap)
    top: Tensor | float = bent.amax(1, keepdim=True) if logits.dtype == torch.float16 else 0.0
    weights = ((bent - top) * soft_cap).exp()
    sums = weights.sum(1, keepdim=True)
    logits.copy_(weights * (1 - bent * bent))
    return sums.log() + (top - at_target) * soft_cap, sums, 1 - at_target * at_target


class _ChunkedLoss(torch.autograd.Function):
    """Softmax minus one-hot is never made: exp(logits − top) goes into the matmuls as it is, and what rows and targets
    need beside it (1 / sum, minus one) is done on the small sides. Two passes less over the largest tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        soft_cap: float | None,
        rows: int,
        some_ignored: bool,
        weigh: Weigh | None,
    ) -> Tensor:
        positions = targets.numel()
        counted = targets != IGNORED
        count = count_of(targets) if some_ignored else positions
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        full = hidden.dtype == torch.float32
        weight_grad = (torch.empty if full else torch.zeros)(
            weight.shape, dtype=torch.float32, device=weight.device
        )
        # one slice of memory for all slices: pages fresh from the system cost as much as a pass over them
        buffer = torch.empty(
            min(rows, positions), weight.shape[0], dtype=weight.dtype, device=weight.device
        )
        for start in range(0, positions, rows):
            h, t = hidden[start : start + rows], targets[start : start + rows].clamp_min(0)
            logits = buffer[: len(h)]
            torch.addmm(logits, h, weight.T, beta=0, alpha=1 / (soft_cap or 1), out=logits)
            if weigh is not None:
                weights = logits
                losses, sums, target_slope = weigh(logits, t, soft_cap)
            else:
                weights = logits.float()
                losses, sums, target_slope = _weigh(weights, t, soft_cap, lower=not full)
                # from 0 to 1, so that nothing is lost in fp16 either
                weights = weights.to(h.dtype)
            here = counted[start : start + rows, None]
            total += (losses * here if some_ignored else losses).sum()
            share = 1 / (sums * count)
            minus = (-1 / count) * (torch.ones_like(sums) if target_slope is None else target_slope)
            if some_ignored:
                share, minus = share * here, minus * here
            hidden_grad_slice = (weights @ weight).float()
            torch.addcmul(
                minus * weight[t], hidden_grad_slice, share, out=hidden_grad[start : start + rows]
            )
            if full:  # beta 0: the first slice does not read what is not there yet
                weight_grad.addmm_(weights.T, h * share, beta=float(start > 0))
            else:
                # h · share would underflow in fp16; shares differ by a vocabulary at most, so their largest goes outside
                # (which is 0 where nothing in the slice counts)
                scale = share.amax().clamp_min(torch.finfo(share.dtype).tiny)
                # a small vocabulary has slices of many rows; a power of two, which costs no digits
                scale = scale * 2.0 ** max(0, (len(h) // _SUMMED).bit_length() - 1)
                # in half precision as it comes: a pass less over the table on a card, which casts as it reads
                weight_grad.addcmul_(weights.T @ (h * (share / scale)).to(h.dtype), scale)
            weight_grad.index_add_(0, t, h.float() * minus)
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        # in place: they are nobody else's, and the head's is as large as the vocabulary
        return (
            hidden_grad.mul_(grad).to(hidden_dtype),
            weight_grad.mul_(grad).to(weight_dtype),
            None,
            None,
            None,
            None,
            None,
        )
