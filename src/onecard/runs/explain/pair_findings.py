"""What two runs show side by side: common misreadings corrected, and where the figures do not decide."""

from collections.abc import Iterator
from itertools import combinations

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.messages import Note
from onecard.planner import RunPlan, plan
from onecard.runs.compare import Comparison
from onecard.runs.explain.tune_findings import is_base_of
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding

_SHAPE = ("n_layer", "n_embd", "n_head", "block_size", "vocab_size")


def _pairs(c: Comparison) -> Iterator[tuple[RunFigures, RunFigures]]:
    yield from combinations(c.runs, 2)


def _differ(a: RunConfig, b: RunConfig) -> bool:
    """Whether they are of two models."""
    return any(getattr(a.shape, key, None) != getattr(b.shape, key, None) for key in _SHAPE)


def comparable(c: Comparison) -> Iterator[Finding]:
    """Whether the losses compare at all. Does not apply where tokenizer and data are the same or unknown."""
    if c.comparable is not None:
        yield Finding(c.comparable, dict(c.comparable.values), tuple(f.name for f in c.runs))


def mfu_is_not_speed(c: Comparison) -> Iterator[Finding]:
    """Does not apply where the run with the higher MFU also does more tokens a second."""
    for a, b in _pairs(c):
        known = [
            (f.mfu_card, f.tokens_per_second, f.flops_per_token, f.name)
            for f in (a, b)
            if f.mfu_card and f.tokens_per_second and f.flops_per_token
        ]
        if len(known) < 2:
            continue
        low, high = sorted(known, key=lambda run: run[0])
        (high_mfu, high_rate, high_flops, name), (low_mfu, low_rate, low_flops, other) = high, low
        if high_rate < 0.98 * low_rate:
            yield Finding(
                Note(
                    "mfu-is-not-speed",
                    high=name,
                    high_mfu=high_mfu,
                    low_mfu=low_mfu,
                    slower=low_rate / high_rate,
                    flops=high_flops / low_flops,
                ),
                {
                    "tokens_per_second": [high_rate, low_rate],
                    "flops_per_token": [high_flops, low_flops],
                    "mfu_card": [high_mfu, low_mfu],
                },
                (name, other),
            )


def larger_is_slower(c: Comparison) -> Iterator[Finding]:
    """Does not apply where both steps are of the same FLOPs, or the larger one is not slower."""
    for a, b in _pairs(c):
        known = [
            (f.flops_per_token * f.tokens_per_step, f.step_seconds, f.name)
            for f in (a, b)
            if f.flops_per_token and f.tokens_per_step and f.step_seconds
        ]
        if len(known) < 2:
            continue
        small, large = sorted(known, key=lambda step: step[0])
        ratio, slower = large[0] / small[0], large[1] / small[1]
        figures = {"large": large[2], "slower": slower, "work": ratio}
        evidence = {"step_seconds": [large[1], small[1]], "flops_per_step": ratio}
        if ratio > 1.1 and 1.0 < slower <= ratio:
            yield Finding(Note("larger-is-slower", **figures), evidence, (large[2], small[2]))
        elif ratio > 1.1 and slower > 1.05 * ratio:
            yield Finding(Note("slower-than-larger", **figures), evidence, (large[2], small[2]))


def micro_batch_and_mfu(c: Comparison) -> Iterator[Finding]:
    """Does not apply where the model is the same, or the smaller micro-batch does not have the higher MFU."""
    for a, b in _pairs(c):
        known = [(f.config, f.mfu_card, f) for f in (b, a) if f.config is not None and f.mfu_card]
        if len(known) < 2 or not _differ(known[0][0], known[1][0]):
            continue
        by_rows = sorted(known, key=lambda run: run[0].tokens_per_micro_batch)
        (config, mfu, small), (other, other_mfu, large) = by_rows
        if config.batch_size == other.batch_size or mfu <= other_mfu:
            continue
        gain = _micro_batch_gain(small, other)
        yield Finding(
            Note(
                "micro-batch-and-mfu",
                small=small.name,
                few=config.batch_size,
                many=other.batch_size,
                expected=_expected(small, other, gain),
            ),
            {
                "batch_size": [config.batch_size, other.batch_size],
                "mfu_card": [mfu, other_mfu],
                "expected_gain": gain,
            },
            (small.name, large.name),
        )


def _expected(f: RunFigures, like: RunConfig, gain: float | None) -> Note:
    """What the other run's micro-batch would do for this run: what does not fit is no way to be faster."""
    other = _with_micro_batch(f, like)
    if other is not None and other.memory.fits == "no":
        return Note("micro-batch-too-large", batch=like.batch_size, card=other.device.name)
    if gain is not None and gain > 0.005:
        return Note("micro-batch-gain", batch=like.batch_size, gain=gain)
    return Note("micro-batch-level", batch=like.batch_size)


def _micro_batch_gain(f: RunFigures, like: RunConfig) -> float | None:
    """What the other run's micro-batch would make of this run's step, by the plan."""
    other = _with_micro_batch(f, like)
    if other is None or f.config is None:
        return None
    now = plan(f.config, f.device).time.step_seconds.mid
    return 1 - other.time.step_seconds.mid / now


def _with_micro_batch(f: RunFigures, like: RunConfig) -> RunPlan | None:
    """This run's plan with the other's micro-batch and its own total batch."""
    if f.config is None or f.device is None or f.config.sequences_per_step % like.batch_size:
        return None
    steps = f.config.sequences_per_step // like.batch_size
    try:
        changed = f.config.replace(batch_size=like.batch_size, gradient_accumulation_steps=steps)
        return plan(changed, f.device)
    except UserError:
        return None


def accumulation(c: Comparison) -> Iterator[Finding]:
    """Does not apply where the total batch changed with the accumulation."""
    for a, b in _pairs(c):
        if a.config is None or b.config is None:
            continue
        few, many = a.config.gradient_accumulation_steps, b.config.gradient_accumulation_steps
        if few != many and a.tokens_per_step and a.tokens_per_step == b.tokens_per_step:
            yield Finding(
                Note("accumulation", a_n=few, b_n=many, tokens=a.tokens_per_step),
                {"gradient_accumulation_steps": [few, many], "tokens_per_step": a.tokens_per_step},
                (a.name, b.name),
            )


def learning_rate_and_width(c: Comparison) -> Iterator[Finding]:
    """Does not apply where only the learning rate changed, or the model only, or where one was tuned from the other."""
    for a, b in _pairs(c):
        if a.config is None or b.config is None or not _differ(a.config, b.config):
            continue
        if is_base_of(a, b) or is_base_of(b, a):
            continue
        if a.config.learning_rate != b.config.learning_rate:
            yield Finding(
                Note(
                    "learning-rate-and-width",
                    a_lr=a.config.learning_rate,
                    b_lr=b.config.learning_rate,
                ),
                {
                    "learning_rate": [a.config.learning_rate, b.config.learning_rate],
                    "params_nanogpt": [a.params_nanogpt, b.params_nanogpt],
                },
                (a.name, b.name),
            )


def level_or_not(c: Comparison) -> Iterator[Finding]:
    """Equal steps say one thing and equal hours another, or neither tells. Does not apply without losses to compare."""
    steps, hours = c.at_equal["steps"], c.at_equal["hours"]
    if len(c.runs) != 2 or not steps:
        return
    a, b = c.runs
    row = steps[-1]
    if row.losses[0] is None or row.losses[1] is None:
        return
    first, second = row.losses[0], row.losses[1]
    if row.winner is None and c.comparable is None:
        yield Finding(
            Note(
                "too-close",
                step=row.at,
                first=first.value,
                a=a.name,
                second=second.value,
                b=b.name,
                gap=abs(first.value - second.value),
            ),
            {"losses": [first.value, second.value], "errors": [first.error, second.error]},
            (a.name, b.name),
        )
    if hours and hours[-1].winner is not None and hours[-1].winner != row.winner:
        best = c.runs[hours[-1].winner]
        losses = [e.value for e in hours[-1].losses if e is not None]
        yield Finding(
            Note(
                "hours-decide",
                hours=hours[-1].at,
                best=best.name,
                low=min(losses),
                high=max(losses),
            ),
            {"hours": hours[-1].at, "losses": losses},
            (a.name, b.name),
        )


PAIR_RULES = (
    comparable,
    mfu_is_not_speed,
    larger_is_slower,
    micro_batch_and_mfu,
    accumulation,
    learning_rate_and_width,
    level_or_not,
)
