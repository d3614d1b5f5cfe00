"""Why it is as fast as it is, how far that is from what the card should do, and what to try, with the gain `plan` expects."""

from collections.abc import Iterator
from typing import Any

from onecard.errors import UserError
from onecard.messages import Note, T
from onecard.planner import RunPlan, plan
from onecard.runs.figures import RunFigures
from onecard.runs.finding import Finding
from onecard.runs.run import DISTURBED

_WORTH = 0.02  # a gain below this is not worth a person's time


def gain_of(f: RunFigures, **changes: Any) -> tuple[float, RunPlan] | None:
    """The share of the step's time that a change of config saves by the plan, and that plan; None where that is unknown."""
    if f.plan is None or f.config is None or f.device is None:
        return None
    try:
        changed = plan(f.config.replace(**changes), f.device, gpus=f.gpus)
    except UserError:
        return None
    return 1 - changed.time.step_seconds.mid / f.plan.time.step_seconds.mid, changed


def compile_off(f: RunFigures) -> Iterator[Finding]:
    """Does not apply on a CPU or an Apple card, where compiling gains little, nor where the config is unknown."""
    if f.config is None or f.device is None or f.device.kind != "cuda":
        return
    fell_back = "compile-fallback" in f.run.signs
    if f.config.compile and not fell_back:
        return
    faster = gain_of(f, compile=True) if not f.config.compile else gain_of(f, compile=False)
    gain = (
        None if faster is None else faster[0] if not f.config.compile else 1 - 1 / (1 - faster[0])
    )
    if fell_back:
        yield Finding(Note("compile-fell-back"), {"gain": gain}, gain=gain)
    else:
        yield Finding(
            Note("compile-off", gain=gain or 0.0), {"compile": False, "gain": gain}, gain=gain
        )


def recompiles(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to logs that do not mention torch's recompile limit."""
    if "recompiles" in f.run.signs:
        yield Finding(Note("recompiles"), {})


def attention(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where flash attention runs, as far as the log tells."""
    slow = "slow-attention" in f.run.signs or "attention-fallback" in f.run.signs
    chosen = f.config is not None and f.config.attention == "math"
    if not slow and not chosen:
        return
    faster = gain_of(f, attention="flash") if chosen else None
    if f.config is not None and not chosen:
        # the plan thinks that it is flash: turn its answer round
        back = gain_of(f, attention="math")
        faster = (1 - 1 / (1 - back[0]), back[1]) if back is not None and back[0] < 1 else None
    gain = faster[0] if faster is not None else None
    yield Finding(Note("attention-slow", gain=gain or 0.0), {"gain": gain}, gain=gain)


def micro_batch(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where nothing is accumulated, or the larger micro-batch does not fit or gain."""
    if f.config is None or f.plan is None or f.config.gradient_accumulation_steps % 2:
        return
    best: tuple[int, float] | None = None
    batch, steps = f.config.batch_size, f.config.gradient_accumulation_steps
    while steps % 2 == 0:
        batch, steps = batch * 2, steps // 2
        gain = gain_of(f, batch_size=batch, gradient_accumulation_steps=steps)
        if gain is None or gain[1].memory.fits != "yes":
            break
        if best is None or gain[0] > best[1] + 0.005:
            best = batch, gain[0]
    if best is not None and best[1] >= _WORTH:
        yield Finding(
            Note(
                "micro-batch-small",
                now=f.config.batch_size,
                card=f.plan.device.name,
                batch=best[0],
                steps=f.config.sequences_per_step // best[0],
                gain=best[1],
            ),
            {"batch_size": f.config.batch_size, "try": best[0], "gain": best[1]},
            gain=best[1],
        )


def logits_bound(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where the output head is less than a third of the FLOPs."""
    if f.config is None or f.flops_per_token is None:
        return
    head = 6 * f.config.shape.vocab_size * f.config.n_embd / f.flops_per_token
    if head < 1 / 3:
        return
    gain = gain_of(f, chunked_loss=True) if not f.config.chunked_loss else None
    yield Finding(
        Note("logits-bound", share=head, vocab=f.config.shape.vocab_size),
        {"head_share": head, "chunked_loss_gain": gain[0] if gain else None},
        gain=gain[0] if gain is not None and gain[0] >= _WORTH else None,
    )


def data_wait(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to foreign logs, which do not time it."""
    if f.run.data_wait is not None and f.run.data_wait > 0.05:
        yield Finding(
            Note("data-wait", share=f.run.data_wait),
            {"data_wait": f.run.data_wait},
            gain=f.run.data_wait,
        )


def other_programs(f: RunFigures) -> Iterator[Finding]:
    """Does not apply to foreign logs, nor outside Linux, where nobody counts it."""
    if f.run.cpu_wait is not None and f.run.cpu_wait > DISTURBED:
        yield Finding(
            Note("other-programs", share=f.run.cpu_wait),
            {"cpu_wait": f.run.cpu_wait},
            gain=f.run.cpu_wait,
        )


def evaluation_often(f: RunFigures) -> Iterator[Finding]:
    """Does not apply where evaluation takes less than 5 % of the time, or its time is not in the log."""
    # Of the steps that the log covers; our own log's clock covers the whole run.
    spent, trained = f.run.times.leaked_seconds, f.run.logged_seconds
    if f.run.wall_seconds is not None and f.seconds and f.run.wall_seconds - f.seconds > spent:
        spent, trained = f.run.wall_seconds - f.seconds, f.seconds
    if not trained:
        return
    share = spent / (spent + trained)
    if share > 0.05:
        yield Finding(
            Note("evaluation-often", share=share), {"seconds": spent, "share": share}, gain=share
        )


def slows_down(f: RunFigures) -> Iterator[Finding]:
    """Does not apply below 40 timed steps, nor to a drift of less than 5 %."""
    drift = f.run.times.drift
    if drift is not None and drift > 1.05:
        nvidia = f.device is None or f.device.vendor == "NVIDIA"
        yield Finding(
            Note(
                "slows-down",
                share=drift - 1,
                tool=T("; nvidia-smi -q -d PERFORMANCE shows which") if nvidia else "",
            ),
            {"drift": drift, "watts": f.run.watts},
            gain=1 - 1 / drift,
        )


def uneven(f: RunFigures) -> Iterator[Finding]:
    """Does not apply below 20 timed steps, nor where half of the steps are within 5 % of the median, or the log says why."""
    spread = f.run.times.spread
    if spread is not None and spread > 0.05 and not any(other_programs(f)):
        yield Finding(
            Note("uneven-steps", share=spread), {"spread": spread, "stalls": f.run.times.stalls}
        )


RULES = (
    compile_off,
    recompiles,
    attention,
    micro_batch,
    logits_bound,
    data_wait,
    other_programs,
    evaluation_often,
    slows_down,
    uneven,
)
