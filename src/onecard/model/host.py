"""Tensors kept in the computer's memory while the card works: pinned, so that copies need not be waited for.

On a CPU the same copies are made, to and from memory of the same kind: a run takes the same way there.

>>> away = on_host(torch.arange(3))
>>> on_card(away, torch.device("cpu")).tolist()
[0, 1, 2]
"""

from collections.abc import Callable

import torch
from torch import Tensor


def room_like(tensor: Tensor) -> Tensor:
    """As much memory on the host. torch keeps pinned memory for the next such tensor, and waits for copies under way."""
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)


def on_host(tensor: Tensor) -> Tensor:
    """A copy there."""
    return copied(room_like(tensor), tensor.detach())


def on_card(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of its own on the device."""
    return copied(torch.empty(tensor.shape, dtype=tensor.dtype, device=device), tensor)


def copied(target: Tensor, source: Tensor) -> Tensor:
    """The target, filled; copies of one stream happen in order, so nothing is waited for."""
    return target.copy_(source, non_blocking=True)


def saved_on_host() -> "torch.autograd.graph.saved_tensors_hooks":
    """Within it, what autograd saves for the backward pass is kept on the host; masks stay."""

    def pack(tensor: Tensor) -> Callable[[], Tensor]:
        if not tensor.is_floating_point():
            return lambda: tensor
        away, device = on_host(tensor), tensor.device
        return lambda: on_card(away, device)

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda fetch: fetch())
