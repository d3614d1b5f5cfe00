"""Cross-entropy of a linear head that never holds the whole table of logits.

With 50,304 tokens in the vocabulary the logits of one micro-batch, and their gradient, are the largest tensors of a
GPT-2 run: 16 × 1024 positions take 3.3 GB in fp32, twice. Here the loss and both gradients are made slice by slice in
the forward pass, as Liger-Kernel does; the backward pass only scales them.

>>> hidden, weight = torch.randn(6, 4), torch.randn(9, 4)
>>> chunked_cross_entropy(hidden, weight, torch.arange(6)).shape
torch.Size([])
"""

import torch
from torch import Tensor
from torch.nn import functional as F

SLICE_BYTES = 64 * 2**20  # of fp32 logits at a time: large enough to keep matmuls efficient


@torch.compiler.disable  # Inductor would unroll the loop and make all slices at once: twice the memory it saves
def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, rows: int | None = None, soft_cap: float | None = None
) -> Tensor:
    """The mean loss of `hidden @ weight.T` against `targets`, in fp32; gradients of hidden and weight.

    With soft_cap the logits are bent into ±soft_cap by a tanh first.
    """
    rows = rows or max(16, SLICE_BYTES // (4 * weight.shape[0]))
    if torch.is_autocast_enabled(hidden.device.type):
        lower = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(lower), weight.to(lower)
    if not torch.is_grad_enabled():
        losses = [
            F.cross_entropy(_capped((h @ weight.T).float(), soft_cap), t, reduction="sum")
            for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.stack(losses).sum() / targets.numel()
    return _ChunkedLoss.apply(hidden, weight, targets, soft_cap, rows)


def _capped(logits: Tensor, soft_cap: float | None) -> Tensor:
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, targets: Tensor, soft_cap: float | None, rows: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden)
        weight_grad = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start in range(0, hidden.shape[0], rows):
            h, t = hidden[start : start + rows], targets[start : start + rows]
            logits = _capped((h @ weight.T).float(), soft_cap)
            bend = None if soft_cap is None else 1 - (logits / soft_cap).square_()  # the tanh's own slope
            log_sums = torch.logsumexp(logits, dim=1)
            total += (log_sums - logits.gather(1, t[:, None]).squeeze(1)).sum()
            # softmax minus one-hot, in place over the logits
            slope = logits.sub_(log_sums[:, None]).exp_()
            slope.scatter_add_(1, t[:, None], -torch.ones_like(log_sums)[:, None])
            if bend is not None:
                slope.mul_(bend)
            slope = slope.to(h.dtype)  # not yet divided by the count: that would underflow in fp16
            torch.mm(slope, weight, out=hidden_grad[start : start + rows])
            if h.dtype == torch.float32:
                weight_grad.addmm_(slope.T, h)
            else:
                weight_grad += slope.T @ h
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.count, ctx.weight_dtype = targets.numel(), weight.dtype
        return total / targets.numel()

    @staticmethod
    def backward(ctx, grad: Tensor):
        hidden_grad, weight_grad = ctx.saved_tensors
        scale = grad / ctx.count
        return (hidden_grad * scale).to(hidden_grad.dtype), (weight_grad * scale).to(ctx.weight_dtype), None, None, None
