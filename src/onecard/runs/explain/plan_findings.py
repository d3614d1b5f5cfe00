"""How far a run is from what its plan expects of the card, and whether memory is the reason."""

from collections.abc import Iterator
from typing import Any

from onecard.messages import Note
from onecard.runs.explain.speed_findings import (
    attention,
    compile_off,
    data_wait,
    other_programs,
    recompiles,
    slows_down,
    uneven,
)
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding


def memory_spill(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where the plan says it fits, or the step is not far slower than planned."""
    if f.plan is None or not f.step_seconds or f.plan.memory.fits == "yes":
        return
    if f.step_seconds > 1.5 * f.plan.time.step_seconds.high:
        on_cpu = f.plan.device.kind == "cpu"  # which has no driver that spills
        figures: dict[str, Any] = {
            "need": f.plan.memory.process_bytes.mid,
            "have": f.plan.memory.card_bytes,
            "times": f.step_seconds / f.plan.time.step_seconds.mid,
        }
        yield Finding(
            Note("memory-swap", **figures)
            if on_cpu
            else Note("memory-spill", card=f.plan.device.name, **figures),
            {
                "process_bytes": f.plan.memory.process_bytes.mid,
                "card_bytes": f.plan.memory.card_bytes,
            },
        )


def out_of_memory(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs that do not say so."""
    if "out-of-memory" in f.run.signs:
        yield Finding(Note("out-of-memory"), {})


SHOWN = 0.98  # a smaller difference would read as one figure below itself


def against_the_plan(f: RunFigures) -> Iterator[Finding]:
    """How far from what the card should do. Does not apply where there is no plan: card or config unknown."""
    wanted = f.predicted.get("step_seconds")
    low, high = f.predicted.get("step_seconds_low"), f.predicted.get("step_seconds_high")
    if not f.step_seconds or not wanted or not low or not high or f.run.times.every_one_leaks:
        return
    evidence = {"step_seconds": f.step_seconds, "predicted": wanted, "low": low, "high": high}
    figures = {"actual": f.step_seconds, "low": low, "high": high}
    if f.step_seconds > high:
        figures["times"] = f.step_seconds / wanted
        if any(True for rule in _REASONS for _ in rule(f)):  # which carry the gains
            yield Finding(Note("slower-than-planned", **figures), evidence)
        else:
            on_cpu = f.device is not None and f.device.kind == "cpu"
            if on_cpu:
                note = Note("slower-unexplained-cpu", **figures)
            else:
                note = Note("slower-unexplained", **figures)
            yield Finding(note, evidence, gain=1 - wanted / f.step_seconds)
    elif f.step_seconds < SHOWN * low:
        yield Finding(Note("faster-than-planned", **figures), evidence)
    else:
        yield Finding(Note("as-planned", **figures), evidence)


# Findings that explain, at least in part, why steps are slow.
_REASONS = (
    compile_off,
    attention,
    data_wait,
    other_programs,
    slows_down,
    uneven,
    memory_spill,
    recompiles,
)


RULES = (against_the_plan, memory_spill, out_of_memory)
