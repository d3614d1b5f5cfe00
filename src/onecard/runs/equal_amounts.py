"""The losses of several runs at equal steps, tokens, hours and FLOPs, with who leads where that is clear."""

import math
from dataclasses import dataclass

from onecard.messages import Note
from onecard.runs.figures import RunFigures
from onecard.runs.loss_curve import Estimate
from onecard.units import HOUR

AXES = ("steps", "tokens", "hours", "flops")
_ROWS = 6
_NEARBY = 0.02  # of the step: an evaluation that close stands for it
_CLEAR = 2  # times the two errors together


@dataclass(frozen=True)
class EqualRow:
    """The losses of all runs at one amount of steps, tokens, hours or FLOPs; `winner` is None when it is too close."""

    at: float
    kind: str  # "val", "train" or "bits_per_byte"
    losses: tuple[Estimate | None, ...]
    winner: int | None


def step_of(f: RunFigures, axis: str, amount: float) -> float | None:
    """The step at which the run had used that amount."""
    if axis == "steps":
        return amount
    if axis == "tokens":
        return amount / f.tokens_per_step if f.tokens_per_step else None
    if axis == "flops":
        return (
            amount / (f.flops_per_token * f.tokens_per_step)
            if f.flops_per_token and f.tokens_per_step
            else None
        )
    seconds = amount * HOUR
    if f.run.curve.steps and f.run.curve.seconds[-1] > 0:
        return f.run.curve.step_at_seconds(seconds)
    return seconds / f.step_seconds if f.step_seconds else None


def amount_of(f: RunFigures, axis: str, step: float) -> float | None:
    """The amount of steps, tokens, hours or FLOPs that the run had used at a step."""
    if axis == "steps":
        return step
    if axis == "tokens":
        return step * f.tokens_per_step if f.tokens_per_step else None
    if axis == "flops":
        return (
            step * f.flops_per_token * f.tokens_per_step
            if f.flops_per_token and f.tokens_per_step
            else None
        )
    if f.run.curve.steps and f.run.curve.seconds[-1] > 0:
        seconds = f.run.curve.seconds_at(min(step, f.run.curve.steps[-1]))
        return seconds / HOUR if seconds is not None else None
    return step * f.step_seconds / HOUR if f.step_seconds else None


def rows_at_equal(
    runs: tuple[RunFigures, ...], axis: str, why_not: Note | None
) -> tuple[EqualRow, ...]:
    """The losses where all runs have been; none where they do not compare at all."""
    if why_not is not None and why_not.code == "tokenizers-differ":
        return ()
    in_bytes = why_not is not None and why_not.code == "tokenizers-differ-bytes"
    rows = []
    for amount in _amounts(runs, axis):
        steps = [step_of(f, axis, amount) for f in runs]
        if any(step is None for step in steps):
            continue
        kind, losses = _losses(runs, [step for step in steps if step is not None], in_bytes)
        if any(loss is not None for loss in losses):
            winner = _winner(losses) if why_not is None or in_bytes else None
            rows.append(EqualRow(amount, kind, losses, winner))
    return tuple(rows)


def _amounts(runs: tuple[RunFigures, ...], axis: str) -> list[float]:
    """Where all runs have been: evaluations that all made, else halves of the furthest common point."""
    ends = [amount_of(f, axis, f.run.last_step) for f in runs]
    known = [end for end in ends if end is not None and end > 0]
    if len(known) < len(runs):
        return []
    furthest = min(known)
    if axis == "steps":
        shared = set.intersection(*({e.step for e in f.run.evals if e.step > 0} for f in runs))
        steps = sorted(step for step in shared if step <= furthest)
        if len(steps) >= 1:
            chosen = {
                steps[-1],
                *(steps[round(len(steps) * share)] for share in (0, 0.03, 0.1, 0.25, 0.5)),
            }
            return sorted(float(step) for step in chosen)
    return [furthest / 2**k for k in reversed(range(_ROWS - 1))]


def _losses(
    runs: tuple[RunFigures, ...], steps: list[float], in_bytes: bool
) -> tuple[str, tuple[Estimate | None, ...]]:
    """One kind of loss for all: evaluations where each run made one nearby, else training losses, else between them."""
    if in_bytes:
        return "bits_per_byte", tuple(f.bits_at(step) for f, step in zip(runs, steps, strict=True))
    val = tuple(f.loss_at(step, "val") for f, step in zip(runs, steps, strict=True))
    near = all(
        any(e.val_loss is not None and abs(e.step - step) <= _NEARBY * step for e in f.run.evals)
        for f, step in zip(runs, steps, strict=True)
    )
    train = tuple(f.loss_at(step, "train") for f, step in zip(runs, steps, strict=True))
    if all(val) and (near or not all(train)):
        return "val", val
    return ("train", train) if any(train) else ("val", val)


def _winner(losses: tuple[Estimate | None, ...]) -> int | None:
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    best, second, *_ = sorted(known, key=lambda loss: loss.value)
    clear = second.value - best.value > _CLEAR * math.hypot(best.error, second.error)
    return known.index(best) if clear else None
