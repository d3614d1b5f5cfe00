"""From allocated bytes to what the card shows: the context, and what torch's allocator holds but nobody uses.

Gradients and the optimizer's moments are allocated after the first forward pass, in what its largest buffer (the logits)
left free; the next pass finds that buffer taken and has to get a new one. So the process holds the larger of the two:
`slack = max(0, first_buffer - late_share · after_forward)`. The constants are fitted by fit/memory.py, which writes facts/memory_fit.json.
"""

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from onecard.config.model_rules import LANES
from onecard.facts.gpus import Device
from onecard.planner.memory.sizes import FULL
from onecard.planner.memory.step import simulate
from onecard.planner.memory.timeline import Moment, Step
from onecard.planner.result import Range
from onecard.planner.workload import Workload
from onecard.units import MIB

Fit = dict[str, Any]
# An interpreter that has imported torch, and what the C library keeps: resident size after the first step on Linux.
CPU_PROCESS_BYTES = 420 * MIB
METAL_BYTES = 150 * MIB  # compiled shaders and command buffers; an estimate, no public reading


@dataclass(frozen=True)
class StepMemory:
    """The memory of one step, by part and as the three programs that report it count it."""

    parts: dict[str, int]  # at the peak, with context and slack
    allocated: Range  # torch.cuda.max_memory_allocated
    reserved: Range  # torch.cuda.max_memory_reserved
    process: Range  # nvidia-smi
    step: Step  # every tensor of the step
    peak: Moment  # where most of them are alive


@dataclass(frozen=True)
class Simulated:
    """One step's tensors and its peak, and the bytes that decide what torch's allocator holds unused."""

    step: Step
    peak: Moment
    parts: dict[str, int]  # at the peak
    first_buffer: int  # the largest buffer of the first forward pass
    after_forward: int  # gradients and moments, allocated in its place
    # torch reuses memory within one stream only: what those of an optimizer on the host (LANES) hold
    streams: int


@cache
def memory_fit() -> Fit:
    path = Path(__file__).parents[2] / "facts" / "memory_fit.json"
    fit: Fit = json.loads(path.read_text(encoding="utf-8"))
    return fit


def step_memory(work: Workload, device: Device, fit: Fit | None = None) -> StepMemory:
    fit = fit or memory_fit()
    simulation = simulated(work)
    slack = 0
    if device.kind == "cuda":
        left_over = int(
            simulation.first_buffer - float(fit["late_share"]) * simulation.after_forward
        )
        slack = simulation.streams + max(0, left_over)
    context = context_of(work, device, fit)
    allocated = simulation.peak.bytes
    reserved = allocated + slack
    own = work.stack == "onecard"
    low, high = fit["spread"] if own else fit["other_spread"][range_kind(work)]

    def around(value: int) -> Range:
        return Range(value * (1 - low), value, value * (1 + high))

    return StepMemory(
        parts={**simulation.parts, "context": context, "slack": slack},
        allocated=around(allocated),
        reserved=around(reserved),
        process=around(reserved + context),
        step=simulation.step,
        peak=simulation.peak,
    )


def range_kind(work: Workload) -> str:
    """Which of the fitted ranges holds for another project's code: "odd" where blocks are computed again, weights are sharded or attention
    and layers are written out, "traced" for modules that were traced as ours are, "other" for the rest."""
    plain = work.recompute == "none" and not work.sharded and work.flash
    if not plain or work.stack in ("plain-pytorch", "textbook"):
        return "odd"
    return "traced" if work.stack in ("nanogpt", "hf") else "other"


@lru_cache(maxsize=512)  # fits and searches ask for the same step with other constants or cards
def simulated(work: Workload) -> Simulated:
    step = simulate(work)
    peak = step.peak()
    known = {tensor.name: tensor.bytes for tensor in step.tensors}
    first_buffer = after_forward = 0
    if not work.chunked_loss:
        logits = FULL * work.vocab_size * work.tokens
        first_buffer = known["logits"] if work.one_graph else logits
        after_forward = known.get("optimizer state", 0) + known.get("gradients", 0)
    streams = LANES * known.get("slices of moments", 0) if work.host_optimizer else 0
    return Simulated(step, peak, step.parts(peak), first_buffer, after_forward, streams)


def context_of(work: Workload, device: Device, fit: Fit) -> int:
    if device.kind == "cpu":
        return CPU_PROCESS_BYTES
    if device.kind == "mps":
        return METAL_BYTES
    exchange = fit["nccl_bytes"] if work.gpus > 1 else 0
    return int(fit["context_bytes"] + fit["context_bytes_per_unit"] * device.units + exchange)
