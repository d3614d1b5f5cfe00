"""Is this loss curve normal for the model and the point of the schedule, or stuck, diverging, spiking, repeating?"""

import math
import statistics
from collections.abc import Iterator
from typing import Any

from onecard.messages import Note
from onecard.runs.figures import RunFigures, expected_at
from onecard.runs.finding import Finding


def not_finite(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to losses that stay numbers."""
    if f.run.not_finite:
        yield Finding(
            Note("not-finite", step=f.run.not_finite[0]), {"steps": list(f.run.not_finite)}
        )


def normal(f: RunFigures) -> Iterator[Finding]:
    """Against the plan's curve. Does not apply without one (unknown data set, other tokens), nor to a run that is lost."""
    if (
        f.plan is None
        or f.plan.loss is None
        or f.final_loss is None
        or f.config is None
        or _lost(f)
    ):
        return
    warm = max(100, f.config.warmup_iters if f.config.decay_lr else 0)
    if f.run.last_step <= warm:
        yield _too_early(f, warm)
        return
    expected = expected_at(f.plan, f.run.last_step)
    if expected is None:
        return
    band = _band(f)
    figures = {"loss": f.final_loss, "expected": expected, "band": band, "step": f.run.last_step}
    yield Finding(_loss_verdict(figures), {**figures, "in_support": f.plan.loss.in_support})


def _too_early(f: RunFigures, warm: int) -> Finding:
    return Finding(
        Note("loss-early", step=f.run.last_step, warm=warm, loss=f.final_loss),
        {"loss": f.final_loss, "warmup_iters": warm},
    )


def _loss_verdict(figures: dict[str, Any]) -> Note:
    above = figures["loss"] - figures["expected"]
    if abs(above) <= figures["band"]:
        return Note("loss-normal", **figures)
    if above > 0:
        return Note("loss-high", **figures)
    return Note("loss-low", **figures)


def _band(f: RunFigures) -> float:
    """The end's 80 % range, wider early: there the schedule, the warm-up and the seed still show."""
    assert f.plan is not None
    assert f.plan.loss is not None
    done = min(1.0, f.run.last_step / max(1, f.config.max_iters if f.config else 1))
    end = (f.plan.loss.expected.high - f.plan.loss.expected.low) / 2
    return end + 0.1 * (f.final_loss or 0.0) * (1 - done) ** 2


def _lost(f: RunFigures) -> bool:
    return bool(f.run.not_finite) or any(True for _ in diverging(f))


def stuck(f: RunFigures) -> Iterator[Finding]:
    """Does not apply in the warm-up, nor below 200 steps, nor where the vocabulary is unknown."""
    if f.config is None or len(f.run.curve) < 10:
        return
    warm = max(200, f.config.warmup_iters)
    if f.run.last_step < warm or f.final_loss is None:
        return
    untrained = math.log(f.config.shape.vocab_size)
    if 0.93 * untrained < f.final_loss < untrained + 1:
        yield Finding(
            Note("stuck", step=f.run.last_step, loss=f.final_loss, untrained=untrained),
            {"loss": f.final_loss, "untrained": untrained},
        )


def diverging(f: RunFigures) -> Iterator[Finding]:
    """Does not apply below 20 points; a spike that comes back is no divergence."""
    losses = f.run.curve.losses
    if len(losses) < 20:
        return
    window = max(5, len(losses) // 20)
    smooth = [
        statistics.median(losses[max(0, i - window) : i + 1])
        for i in range(window, len(losses), max(1, window // 2))
    ]
    lowest, last = min(smooth), smooth[-1]
    spread = statistics.median(abs(a - b) for a, b in zip(losses[1:], losses, strict=False))
    if last > lowest + max(0.3, 5 * spread):
        at = f.run.curve.steps[
            min(len(losses) - 1, window + smooth.index(lowest) * max(1, window // 2))
        ]
        yield Finding(
            Note("diverging", lowest=lowest, at=at, last=last),
            {"lowest": lowest, "last": last, "step": at},
        )


def spikes(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs where each point is a mean of many steps, in which spikes drown, nor below 50 points."""
    losses, steps = f.run.curve.losses, f.run.curve.steps
    if len(losses) < 50 or f.run.curve.counts[0] > 4:
        return
    jumps: list[float] = []
    for i in range(10, len(losses)):
        before = losses[i - 10 : i]
        usual = statistics.median(before)
        spread = statistics.median(abs(loss - usual) for loss in before)
        if losses[i] > usual + max(0.5, 8 * spread) and (
            not jumps or steps[i] - jumps[-1] > 0.01 * steps[-1]
        ):
            jumps.append(steps[i])
    if jumps and not any(True for _ in diverging(f)):
        yield Finding(
            Note("spikes", n=len(jumps), step=jumps[0]), {"steps": jumps[:20], "count": len(jumps)}
        )


RULES = (not_finite, normal, stuck, diverging, spikes)
