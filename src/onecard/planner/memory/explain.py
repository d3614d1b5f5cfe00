"""Where the memory of a step goes: its course, the largest tensors at the peak, and what each saver takes away.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(n_embd=384, batch_size=16, vocab_size=50304)
>>> explained = explain_memory(run, find_gpu("RTX 4070"), "bfloat16")
>>> [(tensor.name, round(tensor.bytes / 2**30, 2)) for tensor in explained.largest[:2]]
[('logits', 1.54), ('gradient of logits', 1.54)]
>>> round(sum(tensor.bytes for tensor in explained.tensors) / 2**30, 2)
7.87
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.memory.overhead import StepMemory, step_memory
from onecard.planner.memory.savers import changed, single_savers, spelt
from onecard.planner.memory.timeline import LAYER_PLACES, PLACE, Moment, Step
from onecard.planner.stacks import OWN, in_stack
from onecard.planner.workload import Workload

LISTED = 10
Phase = Literal["forward", "loss", "backward", "optimizer"]


@dataclass(frozen=True)
class Point:
    """The bytes alive at one place of the step; where there are many layers, at the widest place of a layer."""

    phase: Phase
    place: str
    layer: int | None  # from 0
    bytes: int


@dataclass(frozen=True)
class AliveTensor:
    """A tensor that is alive at the peak, and which savers would remove it."""

    name: str
    part: str
    bytes: int
    layers: int  # how many layers have one; 0 for tensors outside the layers
    taken_by: dict[str, int]  # bytes of it that a run with this saver does not have at this place


@dataclass(frozen=True)
class Saving:
    """One saver switched on: what the peak becomes."""

    setting: str  # as in a config file
    allocated_bytes: int  # at the peak with it
    saved_bytes: int
    peak: Point


@dataclass(frozen=True)
class MemoryExplained:
    """Memory over one step, what is alive at its peak, and what each saver takes away."""

    course: list[Point]
    peak: Point
    tensors: list[AliveTensor]  # all that are alive at the peak, the largest first
    savings: list[Saving]  # of the settings that lower the peak

    @property
    def largest(self) -> list[AliveTensor]:
        return self.tensors[:LISTED]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain_memory(
    config: RunConfig,
    device: Device,
    dtype: str,
    gpus: int = 1,
    nodes: int = 1,
    stack: str = OWN,
) -> MemoryExplained:
    """Of the step that `peak_memory` predicts for the same arguments."""

    def memory(run: RunConfig) -> StepMemory:
        return step_memory(in_stack(Workload.on(device, run, dtype, gpus, nodes), stack), device)

    now = memory(config)
    changes = _changes(config, dtype, device.kind, stack)
    others = ((change, changed(config, change)) for change in changes)
    tried = {spelt(change): memory(other) for change, other in others if other is not None}
    # compile_unit = 'block' holds more logits, chunked_loss more casts: where that is the peak, they save nothing
    savers = {name: then for name, then in tried.items() if then.peak.bytes < now.peak.bytes}
    alive_then = {name: _alive(saver.step, now.peak) for name, saver in savers.items()}
    tensors = []
    for (name, part), (size, layers) in _alive(now.step, now.peak).items():
        taken = {}
        for saver, then in alive_then.items():
            less = size - then.get((name, part), (0, 0))[0]
            if less > 0:
                taken[saver] = less
        tensors.append(AliveTensor(name, part, size, layers, taken))
    return MemoryExplained(
        course=list(_course(now.step)),
        peak=_point(now.peak),
        tensors=sorted(tensors, key=lambda tensor: -tensor.bytes),
        savings=[
            Saving(name, saver.peak.bytes, now.peak.bytes - saver.peak.bytes, _point(saver.peak))
            for name, saver in savers.items()
        ],
    )


def _changes(config: RunConfig, dtype: str, kind: str, stack: str) -> Iterator[dict[str, object]]:
    """Every saver that is not in use, and half the micro-batch at the same step. The savers are our trainer's."""
    for change in single_savers(config, dtype, kind) if stack == OWN else ():
        if all(getattr(config, key) != value for key, value in change.items()):
            yield change
    if config.batch_size % 2 == 0:
        accumulation = 2 * config.gradient_accumulation_steps
        yield {
            "batch_size": config.batch_size // 2,
            "gradient_accumulation_steps": accumulation,
        }


def _alive(step: Step, moment: Moment) -> dict[tuple[str, str], tuple[int, int]]:
    """By name and part: bytes at this moment, and how many layers have one."""
    each = {tensor.name: tensor.bytes for tensor in step.layer_tensors}
    sizes: dict[tuple[str, str], tuple[int, int]] = {}
    for tensor in step.alive(moment):
        size, layers = sizes.get((tensor.name, tensor.part), (0, 0))
        more = tensor.bytes // each[tensor.name] if tensor.name in each else 0
        sizes[tensor.name, tensor.part] = size + tensor.bytes, layers + more
    return sizes


def _course(step: Step) -> Iterator[Point]:
    """The places in order. Neighbours with equal bytes are one point, as is a whole layer where there are many layers."""
    coarse = step.layers > 16
    last: Point | None = None
    for moment in step.moments():
        point = _point(moment)
        if last is None:
            last = point
            continue
        same_layer = coarse and (last.place, last.layer) == (point.place, point.layer)
        same_layer = same_layer and point.layer is not None
        if same_layer or last.bytes == point.bytes:
            last = max(last, point, key=lambda each: each.bytes)
            continue
        yield last
        last = point
    if last is not None:
        yield last


def _point(moment: Moment) -> Point:
    inside = moment.inside
    place = moment.place if inside is None else LAYER_PLACES[inside]
    return Point(_phase(moment.place), place, moment.layer, moment.bytes)


def _phase(place: str) -> Phase:
    at = PLACE[place]
    if at <= PLACE["norm"]:
        return "forward"
    if at <= PLACE["head_cast_back"]:
        return "loss"
    return "optimizer" if at == PLACE["optimizer"] else "backward"
