"""What follows from a run: rates, MFU against the card's true peak, losses, energy, what is left. One frozen value.

figures(run, find_gpu("RTX 4070")).mfu_card      0.69 where nanoGPT printed 12.9 %

Made in stages, each from frozen values to a frozen value: resolve (what the run was), the figures here, forecast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onecard.facts.gpus import Device
from onecard.facts.prices import Price, electricity
from onecard.planner import RunPlan
from onecard.runs.forecast import expected_at, forecast
from onecard.runs.loss_curve import SEED_NOISE, Estimate, between
from onecard.runs.resolve import ResolvedRun, flops_per_second, resolve
from onecard.runs.run import Run
from onecard.units import HOUR

__all__ = ["RunFigures", "expected_at", "figures"]

_LATE = 0.9  # of the run: an evaluation from there on stands for its end


@dataclass(frozen=True, kw_only=True)
class RunFigures(ResolvedRun):
    """A resolved run's figures in base units; None where it cannot be known. `inferred` names those that were worked out."""

    name: str
    tokens_per_second: float | None
    tflops: float | None
    mfu_card: float | None
    mfu_printed: float | None
    final_loss: float | None
    final_loss_kind: str | None  # "val" or "train"
    final_bits_per_byte: float | None
    tokens_seen: float | None
    seconds: float | None  # of training, evaluations and compile left out
    kwh: float | None
    cost: float | None
    currency: str | None
    max_steps: int | None
    plan: RunPlan | None
    predicted: Mapping[str, float | None]
    projected_loss: float | None
    seconds_left: float | None

    def to_json(self) -> dict[str, Any]:
        run = self.run
        plain = {name: getattr(self, name) for name in _PLAIN}
        changes = [
            {"step": c.step, "key": c.key, "before": c.before, "after": c.after}
            for c in run.changes
        ]
        return {
            "name": self.name,
            "source": run.source,
            "format": run.format,
            "state": run.state,
            "gpu": self.device.name if self.device else run.gpu,
            **plain,
            "last_step": run.last_step,
            "predicted": dict(self.predicted),
            "projected": {"loss": self.projected_loss, "seconds_left": self.seconds_left},
            "inferred": sorted(self.inferred),
            "changes": changes,
            "unreadable_lines": run.unreadable,
            "superseded_lines": run.superseded,
            "evaluation_seconds_in_steps": run.times.leaked_seconds,
            "first_step_seconds": run.times.first,
            "not_finite_steps": list(run.not_finite),
        }

    def loss_at(self, step: float, kind: str) -> Estimate | None:
        """The validation ("val") or training ("train") loss at a step, with its noise."""
        if kind == "train":
            return self.run.curve.loss_at(step)
        known = [(e.step, e.val_loss) for e in self.run.evals if e.val_loss is not None]
        return _between_evals(known, step)

    def bits_at(self, step: float) -> Estimate | None:
        known = [(e.step, e.bits_per_byte) for e in self.run.evals if e.bits_per_byte is not None]
        return _between_evals(known, step)


_PLAIN = (
    "gpus",
    "dtype",
    "params_nanogpt",
    "params_total",
    "tokens_per_step",
    "flops_per_token",
    "step_seconds",
    "tokens_per_second",
    "tflops",
    "mfu_card",
    "mfu_printed",
    "final_loss",
    "final_loss_kind",
    "final_bits_per_byte",
    "max_steps",
    "tokens_seen",
    "seconds",
    "kwh",
    "cost",
    "currency",
)


@dataclass(frozen=True)
class _FinalLoss:
    value: float | None
    kind: str | None
    bits_per_byte: float | None


def figures(run: Run, gpu: Device | None = None, price: Price | None = None) -> RunFigures:
    """All that follows from the log, the config and the card together."""
    return figures_of(resolve(run, gpu), price or electricity("WORLD"))


def figures_of(resolved: ResolvedRun, price: Price) -> RunFigures:
    run, tokens = resolved.run, resolved.tokens_per_step
    loss = _final_loss(run)
    seconds = _training_seconds(resolved)
    kwh = _kwh(resolved, seconds)
    rate = flops_per_second(resolved)
    max_steps = run.max_steps or (resolved.config.max_iters if resolved.config else None)
    ahead = forecast(resolved, max_steps, loss.value)
    return RunFigures(
        **{**vars(resolved), "inferred": _inferred(resolved, kwh)},
        name=run.name,
        tokens_per_second=tokens / resolved.step_seconds
        if tokens and resolved.step_seconds
        else None,
        tflops=rate / 1e12 if rate is not None else None,
        mfu_card=rate / resolved.peak_flops if rate is not None and resolved.peak_flops else None,
        mfu_printed=run.mfu_printed,
        final_loss=loss.value,
        final_loss_kind=loss.kind,
        final_bits_per_byte=loss.bits_per_byte,
        tokens_seen=float(tokens) * run.last_step if tokens is not None else None,
        seconds=seconds,
        kwh=kwh,
        cost=kwh * price.per_kwh if kwh is not None else None,
        currency=price.currency if kwh is not None else None,
        max_steps=max_steps,
        plan=ahead.plan,
        predicted=ahead.predicted,
        projected_loss=ahead.projected_loss,
        seconds_left=ahead.seconds_left,
    )


def _final_loss(run: Run) -> _FinalLoss:
    """The last evaluation's where one was made near the end, else the training loss, smoothed."""
    late = [e for e in reversed(run.evals) if e.step >= _LATE * run.last_step]
    bits = next((e.bits_per_byte for e in late if e.bits_per_byte is not None), None)
    val = next((e.val_loss for e in late if e.val_loss is not None), None)
    if val is not None:
        return _FinalLoss(val, "val", bits)
    if not run.curve.steps:
        return _FinalLoss(None, None, bits)
    estimate = run.curve.loss_at(run.curve.steps[-1])
    return _FinalLoss(estimate.value if estimate else run.curve.losses[-1], "train", bits)


def _training_seconds(resolved: ResolvedRun) -> float | None:
    curve = resolved.run.curve
    if curve.seconds and curve.seconds[-1]:
        return curve.seconds[-1]
    if resolved.step_seconds is not None:
        return resolved.step_seconds * resolved.run.last_step
    return curve.seconds[-1] if curve.seconds else None


def _kwh(resolved: ResolvedRun, seconds: float | None) -> float | None:
    """As logged, else the card's rated power over the training time."""
    if resolved.run.kwh is not None:
        return resolved.run.kwh
    if resolved.device is None or seconds is None:
        return None
    return resolved.device.watts * resolved.gpus * seconds / HOUR / 1000


def _inferred(resolved: ResolvedRun, kwh: float | None) -> frozenset[str]:
    names = set(resolved.inferred)
    if names & {"flops_per_token", "tokens_per_step"}:
        names |= {"tokens_per_second", "tflops", "mfu_card"}
    if kwh is not None and resolved.run.kwh is None:
        names |= {"kwh", "cost"}
    steps = resolved.run.curve.steps
    if len(steps) > 1 and steps[0] > 2 * (steps[1] - steps[0]):  # the log begins in mid-run
        names.add("seconds")
    return frozenset(names)


def _between_evals(points: list[tuple[int, float]], step: float) -> Estimate | None:
    value = between([float(s) for s, _ in points], [loss for _, loss in points], step)
    if value is None:
        return None
    near = min(abs(s - step) for s, _ in points)
    # Between two evaluations the curve bends below the straight line: a share of the fall between them is unsure.
    gap = 0.0
    if near > 0:
        before = max((p for p in points if p[0] <= step), key=lambda p: p[0])
        after = min((p for p in points if p[0] >= step), key=lambda p: p[0])
        gap = abs(before[1] - after[1]) / 8
    return Estimate(value, max(SEED_NOISE, gap))
