"""Is this loss curve normal for the model and the point of the schedule, or stuck, diverging, spiking, repeating?"""

import math
import statistics
from collections.abc import Iterator

from onecard.messages import Note
from onecard.planner.warnings import usual_learning_rate
from onecard.runs.explain.finding import Finding
from onecard.runs.figures import RunFigures, expected_at


def not_finite(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to losses that stay numbers."""
    if f.run.not_finite:
        yield Finding(
            Note(
                "not-finite",
                "{name}: the loss is not a number at step {step:int}: what comes after it is lost; a lower "
                "learning rate, or bf16 instead of fp16",
                name=f.name,
                step=f.run.not_finite[0],
            ),
            {"steps": f.run.not_finite},
            (f.name,),
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
        yield Finding(
            Note(
                "loss-early",
                "{name}: at step {step:int} it is still in its warm-up of {warm:int} steps, where curves differ "
                "widely: I can't tell yet whether the loss of {loss:.3f} is normal",
                name=f.name,
                step=f.run.last_step,
                warm=warm,
                loss=f.final_loss,
            ),
            {"loss": f.final_loss, "warmup_iters": warm},
            (f.name,),
        )
        return
    expected = expected_at(f.plan, f.run.last_step)
    if expected is None:
        return
    band = _band(f)
    evidence = {
        "loss": f.final_loss,
        "expected": expected,
        "band": band,
        "step": f.run.last_step,
        "in_support": f.plan.loss.in_support,
    }
    figures = {
        "name": f.name,
        "loss": f.final_loss,
        "expected": expected,
        "band": band,
        "step": f.run.last_step,
    }
    if abs(f.final_loss - expected) <= band:
        yield Finding(
            Note(
                "loss-normal",
                "{name}: a loss of {loss:.3f} at step {step:int} is normal for this model and schedule "
                "({expected:.2f} ± {band:.2f})",
                **figures,
            ),
            evidence,
            (f.name,),
        )
    elif f.final_loss > expected:
        yield Finding(
            Note(
                "loss-high",
                "{name}: a loss of {loss:.3f} at step {step:int} is higher than is normal for this model and "
                "schedule ({expected:.2f} ± {band:.2f})",
                **figures,
            ),
            evidence,
            (f.name,),
        )
    else:
        yield Finding(
            Note(
                "loss-low",
                "{name}: a loss of {loss:.3f} at step {step:int} is lower than is normal for this model and "
                "schedule ({expected:.2f} ± {band:.2f}): easier data, or text that is seen again",
                **figures,
            ),
            evidence,
            (f.name,),
        )


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
            Note(
                "stuck",
                "{name}: after {step:int} steps the loss is {loss:.2f}, hardly below an untrained model's "
                "{untrained:.2f}: it does not learn. Look at the learning rate, the data and the targets' shift by one",
                name=f.name,
                step=f.run.last_step,
                loss=f.final_loss,
                untrained=untrained,
            ),
            {"loss": f.final_loss, "untrained": untrained},
            (f.name,),
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
            Note(
                "diverging",
                "{name}: the loss rose from {lowest:.2f} near step {at:int} to {last:.2f} and stays there: the "
                "run diverged. A lower learning rate or a longer warm-up, from a checkpoint before it",
                name=f.name,
                lowest=lowest,
                at=at,
                last=last,
            ),
            {"lowest": lowest, "last": last, "step": at},
            (f.name,),
        )


def spikes(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs where each point is a mean of many steps, in which spikes drown, nor below 50 points."""
    losses, steps = f.run.curve.losses, f.run.curve.steps
    if len(losses) < 50 or f.run.curve.counts[0] > 4:
        return
    found: list[float] = []
    for i in range(10, len(losses)):
        before = losses[i - 10 : i]
        usual = statistics.median(before)
        spread = statistics.median(abs(loss - usual) for loss in before)
        if losses[i] > usual + max(0.5, 8 * spread) and (
            not found or steps[i] - found[-1] > 0.01 * steps[-1]
        ):
            found.append(steps[i])
    if found and not any(True for _ in diverging(f)):
        yield Finding(
            Note(
                "spikes",
                "{name}: the loss jumps up and comes back ({n:int}×), first near step {step:int}: a few do no "
                "harm; many ask for a lower learning rate or beta2 = 0.95",
                name=f.name,
                n=len(found),
                step=found[0],
            ),
            {"steps": found[:20], "count": len(found)},
            (f.name,),
        )


def repeating(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where the data set's size is unknown and validation does not rise."""
    unique = f.run.dataset_tokens or (f.plan.tokens.unique if f.plan is not None else None)
    epochs = f.tokens_seen / unique if unique and f.tokens_seen else None
    if epochs is not None and epochs > 4:
        yield Finding(
            Note(
                "data-repeats",
                "{name}: it has seen its {tokens:count} tokens {epochs:.1f} times; past about 4 times they "
                "teach little more",
                name=f.name,
                tokens=unique,
                epochs=epochs,
            ),
            {"epochs": epochs, "unique_tokens": unique},
            (f.name,),
        )
    both = [
        (e.train_loss, e.val_loss)
        for e in f.run.evals
        if e.train_loss is not None and e.val_loss is not None
    ]
    if len(both) >= 4:
        lowest = min(range(len(both)), key=lambda i: both[i][1])
        rise, fall = both[-1][1] - both[lowest][1], both[lowest][0] - both[-1][0]
        if lowest <= len(both) - 3 and rise > 0.02 and fall > 0.02:
            yield Finding(
                Note(
                    "overfitting",
                    "{name}: since step {step:int} the training loss falls by {fall:.2f} while validation "
                    "rises by {rise:.2f}: it learns its text by heart; stop there, take more data or dropout",
                    name=f.name,
                    step=f.run.evals[lowest].step,
                    fall=fall,
                    rise=rise,
                ),
                {"rise": rise, "fall": fall, "best_step": f.run.evals[lowest].step},
                (f.name,),
            )


def learning_rate(f: RunFigures) -> Iterator[Finding]:
    """Against GPT-2's recipe by size. Does not apply to other recipes and optimizers, nor within a factor of three."""
    if (
        f.config is None
        or not f.params_nanogpt
        or f.config.recipe != "gpt2"
        or f.config.optimizer != "adamw"
    ):
        return
    if f.config.init_from.startswith("gpt2"):
        return  # fine-tuning wants a lower one
    usual = usual_learning_rate(f.params_nanogpt)
    ratio = f.config.learning_rate / usual
    evidence = {"learning_rate": f.config.learning_rate, "usual": usual}
    figures = {
        "name": f.name,
        "rate": f.config.learning_rate,
        "usual": usual,
        "size": f.params_nanogpt,
    }
    hurt = bool(f.run.not_finite) or any(True for _ in diverging(f)) or any(True for _ in spikes(f))
    if ratio > 3:
        yield Finding(
            Note(
                "learning-rate-high",
                "{name}: a learning rate of {rate:g} is far above the {usual:.1e} that is usual for "
                "{size:count} parameters, and the curve shows it",
                **figures,
            )
            if hurt
            else Note(
                "learning-rate-high-calm",
                "{name}: a learning rate of {rate:g} is far above the {usual:.1e} that is "
                "usual for {size:count} parameters; the curve is calm, so it may be right for this recipe",
                **figures,
            ),
            evidence,
            (f.name,),
        )
    elif ratio < 1 / 3:
        yield Finding(
            Note(
                "learning-rate-low",
                "{name}: a learning rate of {rate:g} is far below the {usual:.1e} that is usual for "
                "{size:count} parameters: it learns more slowly than it could",
                **figures,
            ),
            evidence,
            (f.name,),
        )
    if f.config.decay_lr and f.config.lr_decay_iters > 1.5 * f.config.max_iters:
        yield Finding(
            Note(
                "never-decays",
                "{name}: lr_decay_iters = {decay:int} lies beyond max_iters = {last:int}: the learning rate "
                "never comes down, and the last fall of the loss is missed",
                name=f.name,
                decay=f.config.lr_decay_iters,
                last=f.config.max_iters,
            ),
            {"lr_decay_iters": f.config.lr_decay_iters, "max_iters": f.config.max_iters},
            (f.name,),
        )


RULES = (not_finite, normal, stuck, diverging, spikes, repeating, learning_rate)
