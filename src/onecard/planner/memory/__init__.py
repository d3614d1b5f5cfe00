"""Peak memory of a training step, part by part, in three readings: allocated, process and card.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(n_embd=384, batch_size=16, vocab_size=50304)
>>> memory = peak_memory(run, find_gpu("RTX 4070"), "bfloat16")
>>> round(memory.allocated_bytes.mid / 2**30, 2), memory.fits
(7.87, 'yes')

*allocated* is torch.cuda.max_memory_allocated. It is simulated: every tensor of a step is declared with the operations it
is born and dies at, and a sweep finds where most of them are alive. The tests compare that with a trace of the trainer's
own step. *process* adds the CUDA context and what the allocator holds unused, as nvidia-smi shows it. *card* is what
there is. From the bottom up:

    timeline.py    tensors that are born and die, and the sweep
    sizes.py       bytes of the tensors that several declarations share
    layer.py       how a declaration becomes a tensor's life: recomputed or not, compiled or not
    block.py       the tensors of one layer
    head.py        those of the last norm, the head and the loss
    step.py        those of weights, gradients, optimizer and embedding; simulate() puts all of them together
    order.py       whether a compiled backward pass recomputes all layers at once
    sharding.py    weights and gradients of a model that several cards share
    overhead.py    from allocated to process
    savers.py      what takes less memory, to be suggested
    explain.py     where the memory goes, for `plan --explain-memory`

A memory saver changes the declarations it touches and has a line in savers.py; CONTRIBUTING.md has the other steps.
"""

import re
from collections.abc import Callable

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.facts.here import computer_bytes
from onecard.messages import Note
from onecard.planner.memory.overhead import StepMemory, step_memory
from onecard.planner.memory.savers import (
    HALVES,
    TOGETHER,
    changed,
    halves_suit,
    offered_states,
    single_savers,
    spelt,
)
from onecard.planner.memory.step import host_bytes
from onecard.planner.result import Fits, Memory, Range
from onecard.planner.stacks import OWN, in_stack
from onecard.planner.workload import Workload
from onecard.units import GIB, MIB

__all__ = [
    "DESKTOP_BYTES",
    "SYSTEM_BYTES",
    "StepMemory",
    "host_has",
    "peak_memory",
    "reserve",
    "step_memory",
]

# a desktop with a browser open, kept free on cards that people plug a screen into
DESKTOP_BYTES = 600 * MIB
SYSTEM_BYTES = 2 * GIB  # an operating system and a browser, kept free where the plan is for the CPU
_SCREENS = re.compile(
    r"(?!.*Server)((Quadro |GeForce )?(RTX|GTX|RX|MX)|Arc|Titan|Radeon)(\b|\d)", re.IGNORECASE
)

_SIMPLE_KEYS = 2  # changes of more keys are suggested only where none of fewer fits
_WORTHWHILE = 0.99  # a change must take at least a hundredth off
_OUTCOMES = {
    "yes": "memory.change.yes",
    "tight": "memory.change.tight",
    "no": "memory.change.no",
}


def peak_memory(
    config: RunConfig,
    device: Device,
    dtype: str,
    gpus: int = 1,
    taken_bytes: int | None = None,
    advice: bool = True,
    stack: str = OWN,
    nodes: int = 1,
) -> Memory:
    """The peak of one process on one card. `parts` sum to process_bytes.mid; all but context and slack to allocated.

    Without `advice` nothing is suggested that would make it fit: a search asks thousands of times.
    """

    def workload(run: RunConfig) -> Workload:
        return in_stack(Workload.on(device, run, dtype, gpus, nodes), stack)

    def memory(run: RunConfig) -> StepMemory:
        return step_memory(workload(run), device)

    step = memory(config)
    desktop = _desktop_bytes(device) if taken_bytes is None else taken_bytes
    room = device.usable_bytes - desktop
    away = host_bytes(workload(config)) * (gpus // nodes)
    fits = _fits(step.process, room) if host_has(away, device) else "no"
    return Memory(
        parts=step.parts,
        allocated_bytes=step.allocated,
        process_bytes=step.process,
        card_bytes=device.usable_bytes,
        desktop_bytes=desktop,
        fits=fits,
        changes=[]
        if fits == "yes" or not advice or stack != OWN
        else _changes(config, memory, dtype, device.kind, gpus, room),
        host_bytes=away,
    )


def host_has(size: int, device: Device) -> bool:
    """Whether the computer's memory has room for it, beside its system; that of another machine is not known."""
    if not size or device.taken_bytes is None:
        return True
    return size + SYSTEM_BYTES <= computer_bytes()


def _fits(process: Range, room: int) -> Fits:
    if process.high <= room:
        return "yes"
    return "no" if process.low > room else "tight"


def reserve(device: Device, desktop_bytes: int) -> Note:
    """Who else uses the card's memory, in words that follow how much it has."""
    if not desktop_bytes:
        return Note("reserve-none")
    measured = device.taken_bytes is not None
    return Note("reserve-taken" if measured else "reserve-desktop", bytes=desktop_bytes)


def _desktop_bytes(device: Device) -> int:
    if device.taken_bytes is not None:
        return device.taken_bytes
    if device.kind == "cpu":
        return SYSTEM_BYTES
    return DESKTOP_BYTES if device.kind == "cuda" and _SCREENS.match(device.name) else 0


def _changes(
    config: RunConfig,
    memory: Callable[[RunConfig], StepMemory],
    dtype: str,
    kind: str,
    gpus: int,
    room: int,
) -> list[Note]:
    """What to change, each alone and then together, with the memory it would take."""
    smaller = _smaller_batch(config, memory, room)
    shards: list[dict[str, object]] = []
    if gpus > 1 and {config.weights, config.gradients} == {"float32"}:
        shards = [{"shard": "grads"}, {"shard": "full"}]
    tried = [
        smaller,
        *shards,
        *single_savers(config, dtype, kind),
        TOGETHER,
        {**smaller, **TOGETHER},
    ]
    tried += [{**smaller, **TOGETHER, "optimizer_state": state} for state in offered_states(config)]
    if halves_suit(config, dtype):
        by_layer = {"compile_unit": "block"} if config.compile else {}
        lean = {**smaller, **TOGETHER, **by_layer, **HALVES, "optimizer_state": "8bit"}
        tried.append(lean)
        if kind == "cuda":
            tried.append({**lean, "optimizer_state": "float32", "offload_optimizer": True})
    notes: list[Note] = []
    now = memory(config).process.mid
    for change in tried:
        if len(change) > _SIMPLE_KEYS and any(note.code == "memory.change.yes" for note in notes):
            break  # something simpler will do
        change = {key: value for key, value in change.items() if getattr(config, key) != value}
        other = changed(config, change)
        if not change or other is None:
            continue
        process = memory(other).process
        if process.mid < _WORTHWHILE * now:
            code = _OUTCOMES[_fits(process, room)]
            notes.append(Note(code, change=spelt(change), memory=process.mid))
    return list(dict.fromkeys(notes))


def _smaller_batch(
    config: RunConfig, memory: Callable[[RunConfig], StepMemory], room: int
) -> dict[str, object]:
    """The largest micro-batch that fits, halving; accumulation makes up for it, so the step stays the same."""
    batch, accumulation = config.batch_size, config.gradient_accumulation_steps
    while batch > 1 and batch % 2 == 0:
        batch, accumulation = batch // 2, accumulation * 2
        smaller = config.replace(batch_size=batch, gradient_accumulation_steps=accumulation)
        if _fits(memory(smaller).process, room) == "yes":
            break
    return {"batch_size": batch, "gradient_accumulation_steps": accumulation}
