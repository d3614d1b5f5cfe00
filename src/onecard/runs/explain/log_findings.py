"""What the log itself tells and hides: unreadable parts, compile and evaluation time inside step times, clocks, gaps, and
figures of it that are commonly misread."""

import math
from collections.abc import Iterator

from onecard.messages import Note
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding


def unreadable(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to lines that are not measurements: a log may hold anything between them."""
    run = f.run
    if run.unreadable:
        yield Finding(
            Note(
                "unreadable",
                n=run.unreadable,
                line=repr(run.unreadable_lines[0]) if run.unreadable_lines else "?",
            ),
            {"lines": run.unreadable, "examples": list(run.unreadable_lines)},
        )


def disagreements(f: RunFigures) -> Iterator[Finding]:
    """Where two statements of the log cannot both be true. Does not apply where it makes only one of them."""
    for problem in f.problems:
        yield Finding(problem, dict(problem.values))


def too_short(f: RunFigures) -> Iterator[Finding]:
    """Does not apply from six counted steps on."""
    if f.run.times.first is not None and f.run.times.count == 0 and not f.run.times.every_one_leaks:
        yield Finding(Note("one-iteration"), {"first_step_seconds": f.run.times.first})
    elif 0 < f.run.times.count < 6:
        yield Finding(Note("few-iterations", n=f.run.times.count), {"steps": f.run.times.count})


def compile_leak(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where the first step is no slower than twice the usual one."""
    first, usual = f.run.times.first, f.step_seconds
    if first is not None and usual is not None and f.run.first_step <= 1 and first > 2 * usual:
        yield Finding(
            Note("compile-in-first-step", first=first, extra=first - usual),
            {"first_step_seconds": first, "step_seconds": usual},
        )


def evaluation_leak(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs whose clock stops for evaluations, ours among them."""
    times = f.run.times
    if times.every_one_leaks:
        yield Finding(
            Note("every-time-leaks", seconds=f.step_seconds or 0.0),
            {"step_seconds_at_most": f.step_seconds},
        )
    elif times.leaks and f.step_seconds:
        each = times.leaked_seconds / times.leaks
        yield Finding(
            Note("evaluation-in-steps", n=times.leaks, each=each),
            {"steps": times.leaks, "seconds": times.leaked_seconds},
        )


def clock(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs without clock readings."""
    if f.run.clock_jumps:
        yield Finding(Note("clock-back", n=f.run.clock_jumps), {"jumps": f.run.clock_jumps})


def resumed(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to a run that was never resumed."""
    if f.run.superseded:
        yield Finding(Note("resumed", n=f.run.superseded), {"lines": f.run.superseded})


def config_changes(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to a run that kept its config through every resume."""
    for change in f.run.changes:
        yield Finding(
            Note(
                "config-changed",
                step=change.step,
                key=change.key,
                before=repr(change.before),
                after=repr(change.after),
            ),
            {
                "step": change.step,
                "key": change.key,
                "before": change.before,
                "after": change.after,
            },
        )


def gaps(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs whose lines come evenly."""
    if f.run.widest_gap is not None:
        first, last = f.run.widest_gap
        yield Finding(
            Note("gaps", n=f.run.gaps, first=first, last=last),
            {"gaps": f.run.gaps, "widest": [first, last]},
        )


def evaluation_apart(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where one of the two losses is missing, nor to the first steps, where the curve falls steeply."""
    apart = []
    for e in f.run.evals:
        around = f.run.curve.loss_at(e.step) if e.val_loss is not None and e.step > 20 else None
        if (
            around is not None
            and e.val_loss is not None
            and abs(e.val_loss - around.value) > max(0.4, 5 * around.error)
        ):
            apart.append((e.step, e.val_loss, around.value))
    if apart:
        step, val, train = apart[-1]
        yield Finding(
            Note("evaluation-apart", step=step, val=val, train=train),
            {"steps": [s for s, _, _ in apart[:20]], "val_loss": val, "train_loss": train},
        )


def missing(f: RunFigures) -> Iterator[Finding]:
    """What is not known and what would show. Does not apply where everything is known."""
    known = {problem.code for problem in f.problems}
    no_card = f.device is None and f.run.peak_flops is None and "card-impossible" not in known
    if no_card and f.step_seconds is not None:
        yield Finding(Note("no-card"), {})
    if f.config is None and not f.problems and f.flops_per_token is None:
        yield Finding(Note("no-config"), {})
    if f.step_seconds is None and f.run.times.first is None:
        yield Finding(Note("no-times"), {})


def mfu_of_an_a100(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to an A100, to other formats (they name the card they divide by), or where the card is unknown."""
    if (
        f.run.format != "nanogpt"
        or f.mfu_printed is None
        or f.mfu_card is None
        or f.device is None
        or not f.dtype
    ):
        return
    peak = f.device.matmul_flops(f.dtype)
    if abs(peak / 312e12 - 1) < 0.02:
        return
    yield Finding(
        Note(
            "mfu-against-a100",
            printed=f.mfu_printed,
            card=f.device.name,
            peak=peak / 1e12,
            true=f.mfu_card,
        ),
        {"mfu_printed": f.mfu_printed, "mfu_card": f.mfu_card, "peak_tflops": peak / 1e12},
    )


def perplexity_for_loss(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to the first steps, nor to a loss that an untrained model could have."""
    values = [e.val_loss for e in f.run.evals if e.val_loss is not None] or f.run.curve.losses
    if not values or f.run.last_step < 100:
        return
    vocab = f.config.shape.vocab_size if f.config is not None else f.run.vocab_size or 50304
    last = values[-1]
    if (
        last > math.log(vocab) + 1
        and math.log(last) < math.log(vocab)
        and min(values) > math.log(vocab)
    ):
        yield Finding(
            Note("perplexity-for-loss", value=last, untrained=math.log(vocab), loss=math.log(last)),
            {"value": last, "loss": math.log(last)},
        )


RULES = (
    unreadable,
    disagreements,
    too_short,
    compile_leak,
    evaluation_leak,
    clock,
    resumed,
    config_changes,
    gaps,
    evaluation_apart,
    missing,
    mfu_of_an_a100,
    perplexity_for_loss,
)
