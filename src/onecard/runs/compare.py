"""Comparison: what changed between runs, what came of it at equal steps, tokens, hours and FLOPs, and who wins at what.

comparison = compare([figures(a, card), figures(b, card)])
comparison.winners["equal_hours"]      "small", "it depends", or None when it is too close to call
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.messages import Note
from onecard.runs.equal_amounts import AXES, EqualRow, amount_of, rows_at_equal
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding

__all__ = ["AXES", "DEPENDS", "Comparison", "Difference", "EqualRow", "amount_of", "compare"]

SCHEMA = "onecard.compare/1"
DEPENDS = "it depends"
GPT2_VOCABULARIES = range(50257, 50689)  # GPT-2's tokens, padded as people do
MOST_RUNS = 64  # every pair of them is looked at


@dataclass(frozen=True)
class Difference:
    """A config key whose value is not the same in all runs, and what that does."""

    key: str
    values: tuple[Any, ...]
    effect: Note


@dataclass(frozen=True)
class Comparison:
    runs: tuple[RunFigures, ...]
    differences: tuple[Difference, ...]
    at_equal: Mapping[str, tuple[EqualRow, ...]]
    winners: Mapping[str, str | None]
    comparable: Note | None = None  # why the losses cannot be compared; None when they can
    findings: tuple[Finding, ...] = field(default=())  # explain.explained() adds them

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "runs": [f.to_json() for f in self.runs],
            "differences": [
                {"key": d.key, "values": list(d.values), "effect": str(d.effect)}
                for d in self.differences
            ],
            "at_equal": {axis: [self._row(row) for row in self.at_equal[axis]] for axis in AXES},
            "winners": dict(self.winners),
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


def compare(runs: Sequence[RunFigures]) -> Comparison:
    """Compare two runs or more."""
    if len(runs) < 2:
        raise UserError(
            "a comparison takes two runs",
            hint="onecard compare RUN_A RUN_B; one run: onecard explain RUN",
        )
    if len(runs) > MOST_RUNS:
        raise UserError(
            f"{len(runs):,} runs are too many to compare at once (at most {MOST_RUNS})",
            hint="name the ones that matter; FILE#2 is the second run of a file",
        )
    named = _named_apart(runs)
    comparable = _why_not(named)
    at_equal = {axis: rows_at_equal(named, axis, comparable) for axis in AXES}
    return Comparison(
        runs=named,
        differences=_differences(named),
        at_equal=at_equal,
        winners=_winners(named, at_equal, comparable),
        comparable=comparable,
    )


def _named_apart(runs: Sequence[RunFigures]) -> tuple[RunFigures, ...]:
    """Two runs of one name get their place in the list beside it."""
    names = [f.name for f in runs]
    return tuple(
        replace(f, name=f"{f.name} ({i + 1})") if names.count(f.name) > 1 else f
        for i, f in enumerate(runs)
    )


def vocabulary(f: RunFigures) -> int | None:
    """The tokens' number, GPT-2's padded forms counted as one; None where nothing tells."""
    size = f.config.shape.vocab_size if f.config is not None else f.run.vocab_size
    return 50257 if size in GPT2_VOCABULARIES else size


def _why_not(runs: tuple[RunFigures, ...]) -> Note | None:
    if len({f.run.value("learn_from") == "answers" for f in runs}) > 1:
        return Note("tuned-differs")
    sizes = [vocabulary(f) for f in runs]
    if len({size for size in sizes if size is not None}) > 1:
        if all(f.final_bits_per_byte is not None for f in runs):
            return Note("tokenizers-differ-bytes")
        return Note("tokenizers-differ", sizes=", ".join(map(str, sizes)))
    data = [f.run.dataset or f.run.value("dataset") for f in runs]
    if len({name for name in data if name}) > 1:
        return Note("datasets-differ", data=", ".join(str(name) for name in data))
    return None


def _differences(runs: tuple[RunFigures, ...]) -> tuple[Difference, ...]:
    differences = []
    for spec in fields(RunConfig):
        values = tuple(_value(f, spec.name) for f in runs)
        if _UNKNOWN not in values and any(value != values[0] for value in values):
            differences.append(Difference(spec.name, values, _effect(spec.name, runs)))
    return tuple(differences)


_UNKNOWN = object()


def _value(f: RunFigures, key: str) -> Any:
    if f.config is not None:
        return getattr(f.config, key)
    return f.run.config[key].value if key in f.run.config else _UNKNOWN


def _effect(key: str, runs: tuple[RunFigures, ...]) -> Note:
    first, last = runs[0], runs[-1]
    affects = RunConfig.facts(key).affects
    if affects <= {"output", "machine"}:
        return Note("effect-none")
    if "shape" in affects and "learning" not in affects:
        if (
            first.params_nanogpt
            and last.params_nanogpt
            and first.flops_per_token
            and last.flops_per_token
        ):
            return Note(
                "effect-shape",
                params=last.params_nanogpt / first.params_nanogpt,
                flops=last.flops_per_token / first.flops_per_token,
            )
        return Note("effect-model")
    if "batch" in affects:
        if first.tokens_per_step and first.tokens_per_step == last.tokens_per_step:
            return Note("effect-same-batch", tokens=first.tokens_per_step)
        if first.tokens_per_step and last.tokens_per_step:
            return Note("effect-batch", ratio=last.tokens_per_step / first.tokens_per_step)
    if key == "max_iters":
        return Note("effect-length")
    if affects <= {"learning", "memory"}:
        return Note("effect-learning")
    if affects <= {"speed", "memory"}:
        return Note("effect-speed")
    return Note("effect-unknown")


def _winners(
    runs: tuple[RunFigures, ...],
    at_equal: Mapping[str, tuple[EqualRow, ...]],
    comparable: Note | None,
) -> dict[str, str | None]:
    winners = {
        "tokens_per_second": _best(runs, _believed_speed, 0.01),
        "mfu_card": _best(runs, lambda f: f.mfu_card, 0.01),
    }
    for axis in AXES:
        late = at_equal[axis][-3:]  # who led at the very start says little
        names = {runs[row.winner].name for row in late if row.winner is not None}
        last = late[-1].winner if late else None
        if len(names) > 1:
            winners[f"equal_{axis}"] = DEPENDS
        else:
            winners[f"equal_{axis}"] = runs[last].name if last is not None else None
    if comparable is None:
        winners["projected_loss"] = _best(
            runs, lambda f: -f.projected_loss if f.projected_loss else None, 0.01
        )
    ends = {winners[f"equal_{axis}"] for axis in AXES} - {None}
    winners["loss"] = next(iter(ends)) if len(ends) == 1 else DEPENDS if ends else None
    return winners


def _believed_speed(f: RunFigures) -> float | None:
    """No run wins by a speed that its card cannot reach."""
    return None if f.beyond_its_card else f.tokens_per_second


def _best(
    runs: tuple[RunFigures, ...], figure: Callable[[RunFigures], float | None], margin: float
) -> str | None:
    """The run with the highest figure; None when one is unknown or the two best are within the margin."""
    values = [figure(f) for f in runs]
    known = [value for value in values if value is not None]
    if len(known) < len(runs):
        return None
    first, second = sorted(known, reverse=True)[:2]
    if first - second <= margin * abs(first):
        return None
    return runs[values.index(first)].name
