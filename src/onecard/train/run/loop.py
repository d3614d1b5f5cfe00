"""The run itself: set up, then one loop, read downward.

>>> outcome = train(load("train_shakespeare_char", ["max_iters=200"]))     # doctest: +SKIP
>>> outcome.state, outcome.step                                            # doctest: +SKIP
('finished', 200)
"""

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model import machine
from onecard.model.power import power_meter
from onecard.planner.result import RunPlan
from onecard.train.optim import lr_at
from onecard.train.run import recovery
from onecard.train.run.energy import EnergyMeter
from onecard.train.run.faults import Faults
from onecard.train.run.outputs import Silent, Viewer
from onecard.train.run.processor_watch import ProcessorWatch
from onecard.train.run.progress import (
    RunState,
    StepClock,
    advance,
    eval_due,
    eval_missing,
    finished,
    log_due,
    random_seed,
    sample_due,
    save_due,
    tasks_due,
)
from onecard.train.run.sampling import Benchmark, run_benchmark, write_sample
from onecard.train.run.session import (
    Session,
    collect_save,
    keep_before_decay,
    save,
    try_evaluation,
    validate,
)
from onecard.train.run.setup import open_session
from onecard.train.run.signals import StopSignals
from onecard.train.run.workers import Workers


@dataclass(frozen=True)
class Outcome:
    state: Literal["finished", "stopped"]
    step: int
    loss: float | None  # of the last step done by this process
    val_loss: float | None
    folder: Path
    stopped_by: int | None = None  # the signal


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    view: Viewer | None = None,
    plan: RunPlan | None = None,
    faults: Faults | None = None,
    change: Collection[str] = (),
    branch: bool = False,
    benchmark: Benchmark | None = None,
) -> Outcome:
    """Train until max_iters or max_hours, a signal, or a failure that is reported; resume continues where a run stopped.

    `change` names config keys that may differ from the run's record at a resume (train/run/identity.py). `branch` goes
    on from the checkpoint before the decay, where one was kept (train/run/branch.py). `benchmark` measures the model
    when eval_tasks_interval is due and at the end, in the first process.
    """
    view = view or Silent()
    resume = resume or config.init_from == "resume"
    torch.set_float32_matmul_precision("high")  # TF32 where there is no lower dtype, as in nanoGPT
    device = machine.choose_device(config.device, Workers.local_rank())
    with (
        StopSignals(view.message) as stop,
        Workers(config.backend, device) as workers,
        open_session(config, workers, resume, view, plan, faults, change, branch) as (
            session,
            state,
        ),
    ):
        return _loop(session, state, stop, benchmark)


def _loop(
    session: Session, state: RunState, stop: StopSignals, benchmark: Benchmark | None
) -> Outcome:
    config, workers = session.config, session.workers
    loss: float | None = None
    machine.forget_peak_memory(workers.device)  # the preflight's
    try:
        if config.eval_only:
            state = validate(session, state)
            # a run that stopped on its way is not finished because somebody looked at it
            whole = finished(config, state.progress) or not state.progress.step
            return _end(session, state, "finished" if whole else "stopped", None)
        if eval_missing(config, state.progress):
            state = validate(session, state)
        elif not finished(config, state.progress):
            state = try_evaluation(session, state)
        clock, meter, processor = _meters(session)  # they begin with the first step

        while not finished(config, state.progress):
            clock.begin()
            step = state.progress.step
            state = keep_before_decay(session, state)
            rows = session.rows(step)
            seed = random_seed(config.seed, step, workers.rank)
            lr = lr_at(config, state.progress.position)
            loss, norm = session.stepper.gradients(rows, step, seed, lr)

            bad = state.progress.watch.verdict(loss, norm)
            if bad is not None:
                state, again = recovery.bad_step(session, state, bad)
                if again:
                    continue
            after, watts = _state_after_step(session, state, clock, meter, None if bad else loss)
            if bad is not None:
                session.stepper.skip(step)
            elif not session.stepper.apply(lr, step):
                out_of_memory = f"step {step + 1}: out of memory within the update"
                state = recovery.roll_back(session, state, out_of_memory)
                continue
            passed = clock.end(session.loader.wait_seconds)
            state = after.with_progress(seconds=after.progress.seconds + passed)

            step, last = step + 1, finished(config, state.progress)
            if log_due(config, state.progress, bool(bad)):
                _log(session, state, clock, watts, processor, (loss, lr, norm), bool(bad))
            best_before = state.progress.best_val_loss
            if eval_due(config, step, last):
                state = validate(session, state)
            improved = state.progress.best_val_loss != best_before
            (stopping,) = workers.any(stop.by is not None)
            if last or stopping or save_due(config, step, improved):
                state = _save(session, state, meter, last, stopping)
            else:
                state, _ = collect_save(session, state, wait=False)
            state = _sample_and_benchmark(session, state, last, benchmark, clock)
            if stopping and not last:
                return _end(session, state, "stopped", loss, stop.by)
        return _end(session, state, "finished", loss)
    except BaseException as error:  # whatever it is, the last finished step is saved first
        raise recovery.ended(session, state, error) from None


def _sample_and_benchmark(
    session: Session, state: RunState, last: bool, benchmark: Benchmark | None, clock: StepClock
) -> RunState:
    """Where due, in the first process. All processes must call it: the model may be sharded over them."""
    config, step, outputs = session.config, state.progress.step, session.outputs
    samples, measures = sample_due(config, step, last), tasks_due(config, step, last)
    measures = measures and (benchmark is not None or config.eval_tasks is not None)
    if not (samples or measures):
        return state
    with contextlib.ExitStack() as reading:
        opened = session.reading_model()
        model = outputs.best_effort.run("a copy of the model", reading.enter_context, opened)
        if model is not None and session.workers.first:
            if samples:
                outputs.best_effort.run("the sample", write_sample, session, model, step)
            if measures and benchmark is not None:
                state = run_benchmark(session, model, state, benchmark, clock)
    if measures and not last:
        session.workers.wait_for_first()
    return state


def _meters(session: Session) -> tuple[StepClock, EnergyMeter, ProcessorWatch]:
    read = power_meter(session.workers.device, cards=1).read_watts  # each process reads its own
    guarded = partial(session.outputs.best_effort.run, "the power reading", read)
    return StepClock(), EnergyMeter(guarded, session.workers), ProcessorWatch()


def _state_after_step(
    session: Session, state: RunState, clock: StepClock, meter: EnergyMeter, loss: float | None
) -> tuple[RunState, float | None]:
    """The state that holds once the step's update is applied (loss None: skipped), and the watts for its log line.

    Called before the update: what fails here costs nothing, and no process can be lost between an update and its line.
    """
    config, progress = session.config, state.progress
    schedule_steps = advance(config, state, clock.pace())
    if config.max_hours is not None:
        schedule_steps = session.workers.from_first(schedule_steps)
    after = replace(state, stride=schedule_steps).with_progress(
        step=progress.step + 1,
        tokens=progress.tokens + config.tokens_per_step,
        position=progress.position + schedule_steps,
        place=session.loader.place(progress.step + 1),
        val_loss=None,
        watch=progress.watch if loss is None else progress.watch.learn(loss),
    )
    if not log_due(config, after.progress, skipped=loss is None):
        return after, None
    watts, kwh = meter.read_all()
    return after.with_progress(kwh=progress.kwh + kwh), watts


def _log(
    session: Session,
    state: RunState,
    clock: StepClock,
    watts: float | None,
    processor: ProcessorWatch,
    measured: tuple[float, float, float],
    skipped: bool,
) -> None:
    """A line of the log for the steps since the last one."""
    progress, interval, attempt = state.progress, clock.interval(), session.outputs.best_effort.run
    fields = {
        "kind": "step",
        "step": progress.step,
        "tokens": progress.tokens,
        **dict(zip(("loss", "lr", "grad_norm"), measured, strict=True)),
        **_speed(session, interval.step_seconds),
        "data_wait": interval.data_wait,
        "epoch": session.loader.epoch(progress.step),
        "micro_batch": session.stepper.micro_batch,
        "memory_bytes": attempt(
            "the memory reading", machine.peak_memory_bytes, session.workers.device
        ),
        "watts": watts,
        "kwh": progress.kwh if watts is not None else None,
        "seconds": progress.seconds,
        **({"skipped": True} if skipped else {}),
    }
    waited = attempt("the processor's reading", processor.share)
    if waited is not None:
        fields["cpu_wait"] = waited
    session.outputs.measured(fields)
    if sentence := processor.sentence(waited):
        session.outputs.event(f"step {progress.step:,}: {sentence}", event="disturbed")


def _save(
    session: Session, state: RunState, meter: EnergyMeter, last: bool, stopping: bool
) -> RunState:
    """A checkpoint, with the energy of the evaluation before it. One that fails ends the run only where it is the last."""
    state = state.with_progress(kwh=state.progress.kwh + meter.read_all()[1])
    state, unsaved = save(session, state, wait=last or stopping)
    if unsaved is not None and (last or stopping):
        raise RunFailure(
            f"the run is {'finished' if last else 'stopped'}, but its last checkpoint could not be written",
            hint="once the cause is fixed, the option `resume` continues from the last good checkpoint",
        )
    return state


def _end(
    session: Session,
    state: RunState,
    how: Literal["finished", "stopped"],
    loss: float | None,
    stopped_by: int | None = None,
) -> Outcome:
    """Write the log's last line and run.json."""
    progress, outputs = state.progress, session.outputs
    kwh, seconds = progress.kwh or None, progress.seconds
    outputs.write(kind="end", step=progress.step, state=how, seconds=seconds, kwh=kwh)
    if outputs.record is not None:
        outputs.best_effort.run("writing run.json", outputs.record.end, how)
    return Outcome(how, progress.step, loss, progress.val_loss, session.folder, stopped_by)


def _speed(session: Session, seconds: float) -> dict[str, float | None]:
    """MFU is None where it would be above one: the peak was measured on a busy machine, or is of another arithmetic."""
    tokens_per_second = session.config.tokens_per_step / seconds
    mfu = session.flops_per_token * tokens_per_second / session.peak_flops
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "mfu": mfu if mfu <= 1 else None,
    }
