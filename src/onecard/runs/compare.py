"""Comparison: what changed between runs, what came of it at equal steps, tokens, hours and FLOPs, and who wins at what.

comparison = compare([figures(a, card), figures(b, card)])
comparison.winners["equal_hours"]      "small", "it depends", or None when it is too close to call
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.messages import Note
from onecard.runs.curve import Estimate
from onecard.runs.explain.finding import Finding
from onecard.runs.figures import RunFigures
from onecard.units import HOUR

SCHEMA = "onecard.compare/1"
DEPENDS = "it depends"
AXES = ("steps", "tokens", "hours", "flops")
GPT2_VOCABULARIES = range(50257, 50689)  # GPT-2's tokens, padded as people do
_ROWS = 6


@dataclass(frozen=True)
class Difference:
    """A config key whose value is not the same in all runs, and what that does."""

    key: str
    values: tuple[Any, ...]
    effect: Note


@dataclass(frozen=True)
class EqualRow:
    """The losses of all runs at one amount of steps, tokens, hours or FLOPs; `winner` is None when it is too close."""

    at: float
    kind: str  # "val", "train" or "bits_per_byte"
    losses: tuple[Estimate | None, ...]
    winner: int | None


@dataclass
class Comparison:
    runs: list[RunFigures]
    differences: list[Difference] = field(default_factory=list)
    at_equal: dict[str, list[EqualRow]] = field(default_factory=dict)
    winners: dict[str, str | None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    comparable: Note | None = None  # why the losses cannot be compared; None when they can

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "runs": [f.to_json() for f in self.runs],
            "differences": [
                {"key": d.key, "values": list(d.values), "effect": str(d.effect)}
                for d in self.differences
            ],
            "at_equal": {axis: [self._row(row) for row in self.at_equal[axis]] for axis in AXES},
            "winners": self.winners,
            "findings": [finding.to_json() for finding in self.findings],
        }

    def _row(self, row: EqualRow) -> dict[str, Any]:
        return {
            "at": row.at,
            "kind": row.kind,
            "losses": [e.value if e else None for e in row.losses],
            "errors": [e.error if e else None for e in row.losses],
            "winner": self.runs[row.winner].name if row.winner is not None else None,
        }


def compare(runs: list[RunFigures]) -> Comparison:
    """Compare two runs or more."""
    if len(runs) < 2:
        raise UserError(
            "a comparison takes two runs",
            hint="onecard compare RUN_A RUN_B; one run: onecard explain RUN",
        )
    _name_apart(runs)
    c = Comparison(runs)
    c.comparable = _why_not(runs)
    c.differences = _differences(runs)
    c.at_equal = {axis: _at_equal(runs, axis, c.comparable) for axis in AXES}
    c.winners = _winners(c)
    from onecard.runs.explain import explain_pair  # its rules read the Comparison

    c.findings = explain_pair(c)
    return c


def _name_apart(runs: list[RunFigures]) -> None:
    """Two runs of one name get their place in the list beside it."""
    names = [f.name for f in runs]
    for i, f in enumerate(runs):
        if names.count(f.name) > 1:
            f.name = f"{f.name} ({i + 1})"


def vocabulary(f: RunFigures) -> int | None:
    """The tokens' number, GPT-2's padded forms counted as one; None where nothing tells."""
    size = f.config.shape.vocab_size if f.config is not None else f.run.vocab_size
    return 50257 if size in GPT2_VOCABULARIES else size


def _why_not(runs: list[RunFigures]) -> Note | None:
    sizes = [vocabulary(f) for f in runs]
    if len({size for size in sizes if size is not None}) > 1:
        if all(f.final_bits_per_byte is not None for f in runs):
            return Note(
                "tokenizers-differ-bytes",
                "the runs use different tokens, so that losses per token do not "
                "compare; bits per byte do, and are used here",
            )
        return Note(
            "tokenizers-differ",
            "the runs use different tokens ({sizes}), so that their losses do not compare; "
            "bits per byte would, but the logs do not have them",
            sizes=", ".join(map(str, sizes)),
        )
    data = [f.run.dataset or f.run.value("dataset") for f in runs]
    if len({name for name in data if name}) > 1:
        return Note(
            "datasets-differ",
            "the runs learn from different data ({data}): a lower loss may be the easier text",
            data=", ".join(str(name) for name in data),
        )
    return None


def _differences(runs: list[RunFigures]) -> list[Difference]:
    found = []
    for spec in fields(RunConfig):
        values = tuple(_value(f, spec.name) for f in runs)
        told = [v for v in values if v is not _UNKNOWN]
        if len(told) == len(values) and any(v != told[0] for v in told):
            found.append(Difference(spec.name, values, _effect(spec.name, runs, values)))
    return found


_UNKNOWN = object()


def _value(f: RunFigures, key: str) -> Any:
    if f.config is not None:
        return getattr(f.config, key)
    return f.run.config[key].value if key in f.run.config else _UNKNOWN


def _effect(key: str, runs: list[RunFigures], values: tuple[Any, ...]) -> Note:
    first, last = runs[0], runs[-1]
    affects = RunConfig.facts(key).affects
    if affects <= {"output", "machine"}:
        return Note("effect-none", "no effect on what is learnt or on the step itself")
    if "shape" in affects and "learning" not in affects:
        if (
            first.params_nanogpt
            and last.params_nanogpt
            and first.flops_per_token
            and last.flops_per_token
        ):
            return Note(
                "effect-shape",
                "together with the rest of the shape: {params:.2f} times the parameters, "
                "{flops:.2f} times the FLOPs per token",
                params=last.params_nanogpt / first.params_nanogpt,
                flops=last.flops_per_token / first.flops_per_token,
            )
        return Note("effect-model", "another model")
    if "batch" in affects:
        if first.tokens_per_step and first.tokens_per_step == last.tokens_per_step:
            return Note(
                "effect-same-batch",
                "the total batch stays {tokens:int} tokens a step: the same optimizer steps; "
                "only speed and memory change",
                tokens=first.tokens_per_step,
            )
        if first.tokens_per_step and last.tokens_per_step:
            return Note(
                "effect-batch",
                "the total batch becomes {ratio:.2f} times as large",
                ratio=last.tokens_per_step / first.tokens_per_step,
            )
    if key == "max_iters":
        return Note("effect-length", "another length, and with it another schedule")
    if affects <= {"learning", "memory"}:
        return Note("effect-learning", "changes how fast it learns, not how fast it runs")
    if affects <= {"speed", "memory"}:
        return Note("effect-speed", "changes how fast it runs, hardly what it learns")
    return Note("effect-unknown", "its effect alone cannot be told from these runs")


# -- at equal amounts ---------------------------------------------------------------------------------------------------


def _step_of(f: RunFigures, axis: str, amount: float) -> float | None:
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


def _at_equal(runs: list[RunFigures], axis: str, why_not: Note | None) -> list[EqualRow]:
    if why_not is not None and why_not.code == "tokenizers-differ":
        return []
    in_bytes = why_not is not None and why_not.code == "tokenizers-differ-bytes"
    rows = []
    for amount in _amounts(runs, axis):
        steps = [_step_of(f, axis, amount) for f in runs]
        if any(step is None for step in steps):
            continue
        kind, losses = _losses(runs, [step for step in steps if step is not None], in_bytes)
        if any(loss is not None for loss in losses):
            winner = _winner(losses) if why_not is None or in_bytes else None
            rows.append(EqualRow(amount, kind, losses, winner))
    return rows


def _amounts(runs: list[RunFigures], axis: str) -> list[float]:
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
    runs: list[RunFigures], steps: list[float], in_bytes: bool
) -> tuple[str, tuple[Estimate | None, ...]]:
    """One kind of loss for all: evaluations where each run made one nearby, else training losses, else between them."""
    if in_bytes:
        return "bits_per_byte", tuple(f.bits_at(step) for f, step in zip(runs, steps, strict=True))
    val = tuple(f.loss_at(step, "val") for f, step in zip(runs, steps, strict=True))
    near = all(
        any(e.val_loss is not None and abs(e.step - step) <= 0.02 * step for e in f.run.evals)
        for f, step in zip(runs, steps, strict=True)
    )
    train = tuple(f.loss_at(step, "train") for f, step in zip(runs, steps, strict=True))
    if all(val) and (near or not all(train)):
        return "val", val
    return ("train", train) if any(train) else ("val", val)


def _winner(losses: tuple[Estimate | None, ...]) -> int | None:
    if any(loss is None for loss in losses):
        return None
    order = sorted(range(len(losses)), key=lambda i: losses[i].value)  # type: ignore[union-attr]
    best, second = losses[order[0]], losses[order[1]]
    assert best is not None
    assert second is not None
    clear = second.value - best.value > 2 * math.hypot(best.error, second.error)
    return order[0] if clear else None


# -- who wins at what ---------------------------------------------------------------------------------------------------


def _winners(c: Comparison) -> dict[str, str | None]:
    winners = {
        "tokens_per_second": _best(c.runs, lambda f: f.tokens_per_second, 0.01),
        "mfu_card": _best(c.runs, lambda f: f.mfu_card, 0.01),
    }
    for axis in AXES:
        rows = [
            row for row in c.at_equal[axis][-3:] if row.winner is not None
        ]  # who led at the very start says little
        names = {c.runs[row.winner].name for row in rows if row.winner is not None}
        last = c.at_equal[axis][-1].winner if c.at_equal[axis] else None
        if len(names) > 1:
            winners[f"equal_{axis}"] = DEPENDS
        else:
            winners[f"equal_{axis}"] = c.runs[last].name if last is not None else None
    if c.comparable is None:
        winners["projected_loss"] = _best(
            c.runs, lambda f: -f.projected_loss if f.projected_loss else None, 0.01
        )
    ends = {winners[f"equal_{axis}"] for axis in AXES} - {None}
    winners["loss"] = next(iter(ends)) if len(ends) == 1 else DEPENDS if ends else None
    return winners


def _best(
    runs: list[RunFigures], figure: Callable[[RunFigures], float | None], margin: float
) -> str | None:
    """The run with the highest figure; None when one is unknown or the two best are within the margin."""
    found = [figure(f) for f in runs]
    known = [value for value in found if value is not None]
    if len(known) < len(runs):
        return None
    first, second = sorted(known, reverse=True)[:2]
    if first - second <= margin * abs(first):
        return None
    return runs[found.index(first)].name
