"""Peak memory of a training step, part by part, in three readings: allocated, process and card.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(n_embd=384, batch_size=16, vocab_size=50304)
>>> memory = peak_memory(run, find_gpu("RTX 4070"), "bfloat16")
>>> round(memory.allocated_bytes.mid / 2**30, 2), memory.fits
(7.87, 'yes')

*allocated* is torch.cuda.max_memory_allocated. It is simulated: block.py declares the tensors of a layer and step.py and
head.py those around the layers, each with when it is born and dies; timeline.py finds where most of them are alive. The
tests hold that against a trace of the trainer's own step. *process* adds the CUDA context and what the allocator holds
unused (overhead.py), as nvidia-smi shows it. *card* is what there is.

To add a memory saver: say in config that its key affects memory, change the declarations it touches, add it to SAVERS.
"""

import re
from typing import Literal

from onecard.config import STATE_BITS, RunConfig, choices, keys_affecting
from onecard.facts.gpus import Device
from onecard.facts.here import computer_bytes
from onecard.messages import Note
from onecard.planner.memory.overhead import StepMemory, step_memory
from onecard.planner.memory.step import host_bytes
from onecard.planner.result import Fits, Memory, Range
from onecard.planner.stacks import OWN, in_stack
from onecard.planner.workload import Workload
from onecard.units import GIB, MIB

__all__ = ["DESKTOP_BYTES", "OPTIONS", "StepMemory", "peak_memory", "step_memory"]

# What of a RunConfig changes memory, with the choices of each. A test traces the trainer with each choice.
OPTIONS: dict[str, tuple[str, ...]] = {name: choices(name) for name in keys_affecting("memory")}
# a desktop with a browser open, kept free on cards that people plug a screen into
DESKTOP_BYTES = 600 * MIB
# Settings that take less memory for a little time, each alone; offered_states adds what the moments may be kept in
SAVERS: tuple[dict[str, object], ...] = (
    {"chunked_loss": True},
    {"recompute": "cheap"},
    {"recompute": "block"},
    {"compile_unit": "block"},
    {"weights": "bfloat16"},
    {"gradients": "bfloat16"},
    {"offload_optimizer": True},
)
# How weights and gradients are kept where nothing else is enough
LEAN = {"compile_unit": "block", "weights": "bfloat16", "gradients": "bfloat16"}
SYSTEM_BYTES = 2 * GIB  # an operating system and a browser, kept free where the plan is for the CPU
_SCREENS = re.compile(
    r"(?!.*Server)((Quadro |GeForce )?(RTX|GTX|RX|MX)|Arc|Titan|Radeon)(\b|\d)", re.IGNORECASE
)


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
    work = Workload.on(device, config, dtype, gpus, nodes)
    if stack != OWN:
        work = in_stack(work, stack)
    step = step_memory(work, device)
    desktop = _desktop_bytes(device) if taken_bytes is None else taken_bytes
    room = device.usable_bytes - desktop
    away = host_bytes(work)
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
        else _changes(config, device, dtype, gpus, room),
        host_bytes=away,
    )


def host_has(size: int, device: Device) -> bool:
    """Whether the computer's memory has room for it, beside its system; that of another machine is not known."""
    if not size or device.taken_bytes is None:
        return True
    return size + SYSTEM_BYTES <= computer_bytes()


def offered_states(config: RunConfig) -> tuple[Literal["8bit", "4bit"], ...]:
    """The `optimizer_state`s to suggest. Muon's momentum in 4 bits costs loss (planner/warnings.py has how much): it
    is never suggested, only taken where it is asked for.

    >>> offered_states(RunConfig()), offered_states(RunConfig(optimizer="muon"))
    (('8bit', '4bit'), ('8bit',))
    """
    return ("8bit",) if config.optimizer == "muon" else ("8bit", "4bit")


def single_savers(config: RunConfig) -> list[dict[str, object]]:
    """What could be suggested to this config, each alone; moments that are small already are not made larger."""
    smaller = [state for state in offered_states(config) if STATE_BITS[state] < config.state_bits]
    states: list[dict[str, object]] = [{"optimizer_state": state} for state in smaller]
    savers = [saver for saver in SAVERS if "compile_unit" not in saver or config.compile]
    shared = config.shard != "none"
    if config.matmul_dtype not in ("auto", "bfloat16") or shared:
        savers = [saver for saver in savers if "weights" not in saver]
    if shared:
        savers = [saver for saver in savers if "gradients" not in saver]
    return [*savers, *states]


def _fits(process: Range, room: int) -> Fits:
    if process.high <= room:
        return "yes"
    return "no" if process.low > room else "tight"


def _desktop_bytes(device: Device) -> int:
    if device.taken_bytes is not None:
        return device.taken_bytes
    if device.kind == "cpu":
        return SYSTEM_BYTES
    return DESKTOP_BYTES if device.kind == "cuda" and _SCREENS.match(device.name) else 0


def _changes(config: RunConfig, device: Device, dtype: str, gpus: int, room: int) -> list[Note]:
    """What to change, each alone and then together, with the memory it would take."""
    smaller = _smaller_batch(config, device, dtype, gpus, room)
    together = {"chunked_loss": True, "recompute": "block"}
    ways: list[dict[str, object]] = []
    if gpus > 1 and {config.weights, config.gradients} == {"float32"}:
        ways = [{"shard": "grads"}, {"shard": "full"}]
    tried = [smaller, *ways, *single_savers(config), together, {**smaller, **together}]
    tried += [{**smaller, **together, "optimizer_state": state} for state in offered_states(config)]
    if dtype == "bfloat16" and config.shard == "none":
        lean = {**smaller, **together, **LEAN, "optimizer_state": "8bit"}
        tried += [lean, {**lean, "optimizer_state": "float32", "offload_optimizer": True}]
    notes: list[Note] = []
    now = step_memory(Workload.on(device, config, dtype, gpus), device).process.mid
    for change in tried:
        if len(change) > 2 and any(note.code == "memory.change.yes" for note in notes):
            break  # something simpler will do
        change = {key: value for key, value in change.items() if getattr(config, key) != value}
        if not change:
            continue
        process = step_memory(
            Workload.on(device, config.replace(**change), dtype, gpus), device
        ).process
        verdict = _fits(process, room)
        if process.mid < 0.99 * now:
            note = _outcome(verdict, _spelt(change), process.mid)
            if note not in notes:
                notes.append(note)
    return notes


def _outcome(verdict: Fits, change: str, memory: float) -> Note:
    if verdict == "yes":
        return Note(
            "memory.change.yes", "{change}: {memory:bytes}, it fits", change=change, memory=memory
        )
    if verdict == "tight":
        return Note(
            "memory.change.tight",
            "{change}: {memory:bytes}, still tight",
            change=change,
            memory=memory,
        )
    return Note(
        "memory.change.no", "{change}: {memory:bytes}, still too much", change=change, memory=memory
    )


def _smaller_batch(
    config: RunConfig, device: Device, dtype: str, gpus: int, room: int
) -> dict[str, object]:
    """The largest micro-batch that fits, halving; accumulation makes up for it, so the step stays the same."""
    batch, accumulation = config.batch_size, config.gradient_accumulation_steps
    while batch > 1 and batch % 2 == 0:
        batch, accumulation = batch // 2, accumulation * 2
        smaller = config.replace(batch_size=batch, gradient_accumulation_steps=accumulation)
        if (
            _fits(step_memory(Workload.on(device, smaller, dtype, gpus), device).process, room)
            == "yes"
        ):
            break
    return {"batch_size": batch, "gradient_accumulation_steps": accumulation}


def _spelt(change: dict[str, object]) -> str:
    """The change as it stands in a config file."""
    return ", ".join(f"{key} = {value!r}" for key, value in change.items())
