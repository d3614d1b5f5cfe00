"""Whether tensors are finite, in one pass and one wait for the card.

>>> all_finite([torch.ones(3), torch.arange(3)]), all_finite([torch.tensor([1.0, float("nan")])])
(True, False)
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """No NaN and no infinity in any of them; integers always pass."""
    floating = [t.detach() for t in tensors if t.is_floating_point() and t.numel()]
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in floating:  # AdamW keeps its step counts on the CPU
        by_device.setdefault(tensor.device, []).append(tensor)
    # the largest magnitude, unlike a sum, overflows in no precision, and it hands a NaN on
    return all(
        math.isfinite(torch.stack([n.float() for n in _largest(group)]).amax().item())
        for group in by_device.values()
    )


def _largest(tensors: list[Tensor]) -> list[Tensor]:
    return list(torch._foreach_norm(tensors, ord=math.inf))
