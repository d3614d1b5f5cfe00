"""What two runs show side by side: common misreadings corrected, and where the figures do not decide."""

from collections.abc import Iterator
from itertools import combinations

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.messages import Note
from onecard.planner import plan
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
        if not (a.mfu_card and b.mfu_card and a.tokens_per_second and b.tokens_per_second):
            continue
        high, low = (a, b) if a.mfu_card > b.mfu_card else (b, a)
        if not (
            high.tokens_per_second
            and low.tokens_per_second
            and high.flops_per_token
            and low.flops_per_token
        ):
            continue
        if high.tokens_per_second < 0.98 * low.tokens_per_second:
            yield Finding(
                Note(
                    "mfu-is-not-speed",
                    "{high} has the higher MFU ({high_mfu:.1%} against {low_mfu:.1%}) and yet "
                    "does {slower:.1f} times fewer tokens a second: each token is {flops:.2f} times the FLOPs. The MFU says "
                    "that it uses the card better, and no more",
                    high=high.name,
                    high_mfu=high.mfu_card,
                    low_mfu=low.mfu_card,
                    slower=low.tokens_per_second / high.tokens_per_second,
                    flops=high.flops_per_token / low.flops_per_token,
                ),
                {
                    "tokens_per_second": [high.tokens_per_second, low.tokens_per_second],
                    "flops_per_token": [high.flops_per_token, low.flops_per_token],
                    "mfu_card": [high.mfu_card, low.mfu_card],
                },
                (high.name, low.name),
            )


def larger_is_slower(c: Comparison) -> Iterator[Finding]:
    """Does not apply where both steps are of the same FLOPs, or the larger one is not slower."""
    for a, b in _pairs(c):
        work = [
            f.flops_per_token * f.tokens_per_step if f.flops_per_token and f.tokens_per_step else 0
            for f in (a, b)
        ]
        if not all(work) or not a.step_seconds or not b.step_seconds:
            continue
        (small, large), ratio = (
            ((a, b), work[1] / work[0]) if work[1] >= work[0] else ((b, a), work[0] / work[1])
        )
        assert small.step_seconds is not None
        assert large.step_seconds is not None
        slower = large.step_seconds / small.step_seconds
        if ratio > 1.1 and 1.0 < slower <= ratio:
            yield Finding(
                Note(
                    "larger-is-slower",
                    "{large}'s step takes {slower:.1f} times as long for {work:.2f} times the FLOPs: a "
                    "larger step, not a slower card or a regression",
                    large=large.name,
                    slower=slower,
                    work=ratio,
                ),
                {"step_seconds": [large.step_seconds, small.step_seconds], "flops_per_step": ratio},
                (large.name, small.name),
            )
        elif ratio > 1.1 and slower > 1.05 * ratio:
            yield Finding(
                Note(
                    "slower-than-larger",
                    "{large}'s step takes {slower:.1f} times as long for only {work:.2f} times the "
                    "FLOPs: the size does not explain it all",
                    large=large.name,
                    slower=slower,
                    work=ratio,
                ),
                {"step_seconds": [large.step_seconds, small.step_seconds], "flops_per_step": ratio},
                (large.name, small.name),
            )


def micro_batch_and_mfu(c: Comparison) -> Iterator[Finding]:
    """Does not apply where the model is the same, or the smaller micro-batch does not have the higher MFU."""
    for a, b in _pairs(c):
        if (
            a.config is None
            or b.config is None
            or not a.mfu_card
            or not b.mfu_card
            or not _differ(a.config, b.config)
        ):
            continue
        small, large = (
            (a, b) if a.config.tokens_per_micro_batch < b.config.tokens_per_micro_batch else (b, a)
        )
        assert small.config is not None
        assert large.config is not None
        assert small.mfu_card is not None
        assert large.mfu_card is not None
        if small.config.batch_size == large.config.batch_size or small.mfu_card <= large.mfu_card:
            continue
        gain = _micro_batch_gain(small, large.config)
        expected = (
            Note(
                "micro-batch-gain",
                "micro-batch {batch:int} would make it {gain:percent} faster",
                batch=large.config.batch_size,
                gain=gain,
            )
            if gain is not None and gain > 0.005
            else Note(
                "micro-batch-level",
                "micro-batch {batch:int} would not be slower",
                batch=large.config.batch_size,
            )
        )
        yield Finding(
            Note(
                "micro-batch-and-mfu",
                "{small}'s smaller micro-batch ({few:int} against {many:int}) did not raise its MFU: "
                "its larger model did. With the model held fixed the larger micro-batch is the faster one until memory runs "
                "out: {expected}",
                small=small.name,
                few=small.config.batch_size,
                many=large.config.batch_size,
                expected=expected,
            ),
            {
                "batch_size": [small.config.batch_size, large.config.batch_size],
                "mfu_card": [small.mfu_card, large.mfu_card],
                "expected_gain": gain,
            },
            (small.name, large.name),
        )


def _micro_batch_gain(f: RunFigures, like: RunConfig) -> float | None:
    """What the other run's micro-batch would make of this run's step, by the plan."""
    if f.config is None or f.device is None:
        return None
    total = f.config.batch_size * f.config.gradient_accumulation_steps
    if total % like.batch_size:
        return None
    try:
        other = f.config.replace(
            batch_size=like.batch_size, gradient_accumulation_steps=total // like.batch_size
        )
        now = plan(f.config, f.device).time.step_seconds.mid
        return 1 - plan(other, f.device).time.step_seconds.mid / now
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
                Note(
                    "accumulation",
                    "accumulating {a_n:int} or {b_n:int} micro-batches changes no optimizer step: both runs "
                    "take one every {tokens:int} tokens",
                    a_n=few,
                    b_n=many,
                    tokens=a.tokens_per_step,
                ),
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
                    "learning rate ({a_lr:g} and {b_lr:g}) and model changed together: neither "
                    "can be credited or blamed for the loss alone; a run with one of them changed would show",
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
                "at step {step:int} the losses {first:.4f} ({a}) and {second:.4f} ({b}) are {gap:.4f} apart, "
                "within what another seed would change: too close to call",
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
                "after the same {hours:.2f} hours {best} is ahead, {low:.3f} against {high:.3f}: it makes "
                "more steps in the time, which equal steps hide",
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
