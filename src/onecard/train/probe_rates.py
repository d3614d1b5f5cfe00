"""What a device does in a few simple operations: matmuls, copies, fresh memory, tiny kernels. The fit of the probe's steps
(probe.py) starts from these."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from onecard.model import machine
from onecard.planner.step_work import PART_OF


def measure_rates(device: torch.device, dtype: str, quick: bool) -> dict[str, float]:
    """FLOP/s of large, thin and head-like matmuls, bytes/s of copy, triad and fresh pages, seconds of a tiny operation."""
    card = device.type != "cpu"
    kind = getattr(torch, dtype)
    again = 3 if quick else 7
    tokens = 8192 if card else 1024

    def matmul(rows: int, depth: int, columns: int) -> float:
        a = torch.randn(rows, depth, device=device).to(kind)
        b = torch.randn(depth, columns, device=device).to(kind)
        return 2.0 * rows * depth * columns / best(device, lambda: a @ b, again)

    with torch.no_grad():
        size = 4096 if card else 1024
        large = torch.ones(64 * 2**20 if card else 16 * 2**20, device=device)
        other, third = torch.ones_like(large), torch.ones_like(large)
        copied = 8.0 * large.numel() / best(device, lambda: other.copy_(large), again)
        triad = (
            12.0
            * large.numel()
            / best(device, lambda: torch.add(large, other, alpha=2.0, out=third), again)
        )
        used = best(device, lambda: third.fill_(1.0), again)
        untouched = best(device, lambda: torch.ones(large.numel(), device=device), again)
        # a card's allocator keeps what it has: nothing is untouched
        fresh = 4.0 * large.numel() / max(untouched - used, 0.1 * used)
        tiny = torch.ones(16, device=device)
        host, whole = _tiny_operations(device, tiny, 300 if quick else 1000)
        return {
            "matmul": matmul(size, size, size),
            "matmul_narrow": matmul(tokens, 128, 512),  # a small model's layer
            "matmul_head": matmul(tokens // 8, 256, 50304),
            "copy": copied,
            "triad": triad,
            "fresh": fresh,
            "operation_seconds": whole,
            "host_seconds": host,
        }


def best(device: torch.device, do: Callable[[], object], again: int) -> float:
    """The quickest of several tries: what the machine can do when nothing else is in the way."""
    seconds = []
    for _ in range(again + 2):
        machine.synchronize(device)
        began = time.perf_counter()
        do()
        machine.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds[2:])


def _tiny_operations(device: torch.device, tiny: Tensor, count: int) -> tuple[float, float]:
    """Seconds until the host has started one, and until the device is done with it."""
    started, ended = [], []
    for _ in range(5):
        machine.synchronize(device)
        began = time.perf_counter()
        for _ in range(count):
            tiny.add_(1.0)
        started.append((time.perf_counter() - began) / count)
        machine.synchronize(device)
        ended.append((time.perf_counter() - began) / count)
    return statistics.median(started), statistics.median(ended)


def hints_of(rates: dict[str, float]) -> dict[str, float]:
    """What each kind of work would cost if a model did it as these did alone: where the fit starts from."""
    flop, byte = 1 / rates["matmul"], 1 / rates["copy"]
    hints = {
        "blocks": flop,
        "head": 1 / rates["matmul_head"],
        "attention": 3 * flop,  # softmax between two thin matmuls
        "layers": byte,
        "logits": byte,
        "fresh": 1 / rates["fresh"],
        "weights": byte,
        "kernels": rates["operation_seconds"],
        "update": byte,
        "step": 30 * rates["operation_seconds"],
    }
    assert hints.keys() == PART_OF.keys()
    return hints
