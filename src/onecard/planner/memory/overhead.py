"""From allocated bytes to what the card shows: the context, and what torch's allocator holds but nobody uses.

Gradients and the optimizer's moments come to live after the first forward pass, in what its largest buffer (the logits)
left free; the next pass finds that buffer taken and has to get a new one. So the process holds the larger of the two:
`slack = max(0, largest - late)`. The constants are fitted by fit/memory.py, which writes facts/memory_fit.json.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onecard.facts.gpus import Device
from onecard.planner.memory import compiled, eager
from onecard.planner.memory.size import Moment, Sizes, total
from onecard.planner.result import Range
from onecard.planner.workload import Workload
from onecard.units import MIB

Fit = dict[str, Any]
# An interpreter that has imported torch, and what the C library keeps: resident size after the first step on Linux.
CPU_PROCESS_BYTES = 420 * MIB
METAL_BYTES = 150 * MIB  # compiled shaders and command buffers; a guess, no public reading


@dataclass(frozen=True)
class StepMemory:
    parts: Moment  # at the peak, with context and slack
    allocated: Range  # torch.cuda.max_memory_allocated
    reserved: Range  # torch.cuda.max_memory_reserved
    process: Range  # nvidia-smi


@cache
def memory_fit() -> Fit:
    path = Path(__file__).parents[2] / "facts" / "memory_fit.json"
    fit: Fit = json.loads(path.read_text(encoding="utf-8"))
    return fit


def peak(w: Workload) -> Moment:
    """The parts of the largest moment of a step."""
    return max((compiled if w.compiled else eager).moments(w), key=total)


def step_memory(w: Workload, device: Device, fit: Fit | None = None) -> StepMemory:
    fit = fit or memory_fit()
    parts = peak(w)
    allocated = total(parts)
    slack = _slack(w, fit) if device.kind == "cuda" else 0
    context = _context(w, device, fit)
    reserved = allocated + slack
    low, high = fit["spread"]

    def around(value: int) -> Range:
        return Range(value * (1 - low), value, value * (1 + high))

    return StepMemory(
        parts={**parts, "context": context, "slack": slack},
        allocated=around(allocated),
        reserved=around(reserved),
        process=around(reserved + context),
    )


def _slack(w: Workload, fit: Fit) -> int:
    s = Sizes(w)
    base = s.base()
    late = base["optimizer"] + s.weight_bytes
    if w.chunked_loss:
        largest = 0
    else:
        largest = (s.matmul if w.compiled else 4) * w.vocab_size * w.tokens
    return max(0, int(largest - float(fit["late_share"]) * late))


def _context(w: Workload, device: Device, fit: Fit) -> int:
    if device.kind == "cpu":
        return CPU_PROCESS_BYTES
    if device.kind == "mps":
        return METAL_BYTES
    exchange = fit["nccl_bytes"] if w.gpus > 1 else 0
    return int(fit["context_bytes"] + fit["context_bytes_per_unit"] * device.units + exchange)
