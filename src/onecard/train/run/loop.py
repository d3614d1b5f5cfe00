"""The run itself: set up, then one loop, read downward.

>>> outcome = train(load("train_shakespeare_char", ["max_iters=200"]))     # doctest: +SKIP
>>> outcome.state, outcome.step                                            # doctest: +SKIP
('finished', 200)
"""

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from onecard.config import RunConfig
from onecard.config.model_rules import evaluation_due
from onecard.data import Dataset
from onecard.errors import RunFailure
from onecard.model import machine
from onecard.model.gpt2 import GPT
from onecard.model.power import power_meter
from onecard.planner.result import RunPlan
from onecard.train.io.loader import to_device
from onecard.train.optim import lr_at
from onecard.train.run import recovery
from onecard.train.run.energy import EnergyMeter
from onecard.train.run.faults import Faults
from onecard.train.run.progress import Progress, advance, finished, random_seed
from onecard.train.run.sampling import write_sample
from onecard.train.run.session import Session
from onecard.train.run.setup import open_session
from onecard.train.run.side_shows import Silent, Viewer
from onecard.train.run.signals import StopSignals
from onecard.train.run.workers import Workers

# the model, its data and the step → for each task its figures
Benchmark = Callable[[GPT, Dataset, int], Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Outcome:
    state: Literal["finished", "stopped"]
    step: int
    loss: float | None  # of the last step done in this sitting
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
    benchmark: Benchmark | None = None,
) -> Outcome:
    """Train until max_iters or max_hours, a signal, or a failure that is reported; resume goes on where a run stopped.

    `change` names config keys that may differ from the run's record at a resume (train/run/identity.py);
    `benchmark` measures the model when eval_tasks_interval is due and at the end, in the first process.
    """
    view = view or Silent()
    resume = resume or config.init_from == "resume"
    torch.set_float32_matmul_precision("high")  # TF32 where there is no lower dtype, as in nanoGPT
    device = machine.choose_device(config.device, Workers.local_rank())
    with (
        StopSignals(view.message) as stop,
        Workers(config.backend, device) as workers,
        open_session(config, workers, resume, view, plan, faults, change) as session,
    ):
        try:
            outcome = _loop(session, stop, benchmark)
            session.write(
                kind="end",
                step=outcome.step,
                state=outcome.state,
                seconds=session.progress.seconds,
                kwh=session.progress.kwh or None,
            )
        except BaseException as error:  # whatever it is, the last finished step is saved first
            raise recovery.ended(session, error) from None
        if session.record is not None:
            session.shows.run("writing run.json", session.record.end, outcome.state)
    return outcome


def _loop(session: Session, stop: StopSignals, benchmark: Benchmark | None = None) -> Outcome:
    config, workers, stepper = session.config, session.workers, session.stepper
    device, folder = workers.device, session.folder
    meter = EnergyMeter(_power_reading(session), workers)
    loss: float | None = None
    sitting_began = tick = time.perf_counter()
    sitting_steps = 0
    interval_seconds, interval_wait, interval_steps = 0.0, 0.0, 0  # since the last log line
    bad_before: int | None = None  # the step that is being done again
    machine.forget_peak_memory(device)  # the preflight's

    if config.eval_only:
        return Outcome("finished", session.progress.step, None, session.evaluate().loss, folder)
    if _eval_missing(config, session.progress):  # a failure came between a step and its evaluation
        _evaluate(session)

    while not finished(config, session.progress):
        began = time.perf_counter()
        progress = session.progress  # a roll-back brings another
        step = progress.step
        rows = to_device(session.loader.rows(step), device)
        loss, norm = stepper.gradients(rows, step, random_seed(config.seed, step, workers.rank))

        bad = progress.watch.verdict(loss, norm)
        if bad is not None:
            again = recovery.bad_step(session, bad, retried=bad_before == step)
            bad_before = step
            if again:
                continue
        lr = lr_at(config, progress.position)
        pace = (tick - sitting_began) / sitting_steps if sitting_steps >= 3 else None
        pressed = advance(config, progress, pace, session.save_seconds + session.eval_seconds)
        if config.max_hours is not None:
            pressed = workers.from_first(pressed)
        place = session.loader.place(step + 1)

        # not whole until the progress agrees with the weights: an error in between is not saved
        session.whole = False
        if bad is None:
            if not stepper.apply(lr, step):
                recovery.roll_back(session, f"step {step + 1}: out of memory within the update")
                continue
            progress.watch.learn(loss)
        now = time.perf_counter()
        progress.step += 1
        progress.tokens += config.tokens_per_step
        progress.position += pressed
        progress.place = place
        progress.val_loss = None
        progress.seconds += now - tick
        session.whole = True

        sitting_steps += 1
        tick = now
        interval_seconds += now - began
        interval_wait += session.loader.wait_seconds
        interval_steps += 1
        last = finished(config, progress)
        if progress.step % config.log_interval == 0 or last or bad:
            watts, kwh = meter.in_all()
            progress.kwh += kwh
            fields = {
                "kind": "step",
                "step": progress.step,
                "tokens": progress.tokens,
                "loss": loss,
                "lr": lr,
                **_speed(session, interval_seconds / interval_steps),
                "grad_norm": norm,
                "data_wait": interval_wait / interval_seconds,
                "epoch": session.loader.epoch(progress.step),
                "micro_batch": stepper.micro_batch,
                "memory_bytes": session.shows.run(
                    "the memory reading", machine.peak_memory_bytes, device
                ),
                "watts": watts,
                "kwh": progress.kwh if watts is not None else None,
                "seconds": progress.seconds,
                **({"skipped": True} if bad else {}),
            }
            session.write(**fields)
            session.show("step", fields)
            interval_seconds, interval_wait, interval_steps = 0.0, 0.0, 0

        improved = _eval_due(config, progress.step, last) and _evaluate(session)
        (stopping,) = (
            workers.any(stop.by is not None) if workers.processes > 1 else (stop.by is not None,)
        )
        if last or stopping or _save_due(config, progress.step, improved):
            progress.kwh += meter.in_all()[1]  # evaluations take energy too
            unsaved = session.save()
            if unsaved is not None and (last or stopping):
                raise RunFailure(
                    f"the run is {'finished' if last else 'stopped'}, but its last checkpoint could not be written",
                    hint="once the cause is mended, --resume goes on from the last good checkpoint",
                )
        if workers.first and _sample_due(config, progress.step, last):
            session.shows.run("the sample", write_sample, session)
        if benchmark is not None and workers.first and _tasks_due(config, progress.step, last):
            # its time is its own: neither a step's, nor the run's seconds and pace
            apart = _run_benchmark(session, benchmark)
            tick, sitting_began = tick + apart, sitting_began + apart
        if stopping and not last:
            return Outcome("stopped", progress.step, loss, progress.val_loss, folder, stop.by)
    progress = session.progress
    return Outcome("finished", progress.step, loss, progress.val_loss, folder)


def _evaluate(session: Session) -> bool:
    """Evaluate; whether this is the best loss so far."""
    progress, found = session.progress, session.evaluate()
    best = progress.best_val_loss
    improved = math.isfinite(found.loss) and (best is None or found.loss < best)
    if improved:
        progress.best_val_loss = found.loss
    return improved


def _run_benchmark(session: Session, benchmark: Benchmark) -> float:
    """Measure and log; the seconds it took. What fails is reported, and the run goes on."""
    began = time.perf_counter()
    step, training = session.progress.step, session.model.training
    session.model.eval()
    found = session.shows.run("the benchmark", benchmark, session.model, session.data, step)
    session.model.train(training)
    seconds = time.perf_counter() - began
    for name, figures in (found or {}).items():
        session.write(kind="tasks", step=step, task=name, **figures)
        words = ", ".join(f"{key} {value:.3f}" for key, value in figures.items() if value)
        session.view.message(f"step {step:,}: {name}: {words}")
    session.write(kind="event", step=step, event="tasks", seconds=seconds, text="benchmarks")
    return seconds


def _speed(session: Session, seconds: float) -> dict[str, float | None]:
    """MFU is None where it would be above one: the peak was measured on a busy machine, or is of another arithmetic."""
    tokens_per_second = session.config.tokens_per_step / seconds
    mfu = session.flops_per_token * tokens_per_second / session.peak_flops
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "mfu": mfu if mfu <= 1 else None,
    }


def _power_reading(session: Session) -> Callable[[], float | None]:
    read = power_meter(session.workers.device, cards=1).read_watts  # each process reads its own
    return lambda: session.shows.run("the power reading", read)


def _eval_due(config: RunConfig, step: int, last: bool) -> bool:
    return last or evaluation_due(config, step)


def _eval_missing(config: RunConfig, progress: Progress) -> bool:
    done = progress.step > 0 and progress.val_loss is None
    return done and _eval_due(config, progress.step, finished(config, progress))


def _save_due(config: RunConfig, step: int, improved: bool) -> bool:
    if config.checkpoint_interval is not None:
        return step % config.checkpoint_interval == 0
    return step % config.eval_interval == 0 and (improved or config.always_save_checkpoint)


def _tasks_due(config: RunConfig, step: int, last: bool) -> bool:
    interval = config.eval_tasks_interval
    return last or (interval is not None and step % interval == 0)


def _sample_due(config: RunConfig, step: int, last: bool) -> bool:
    return last or step % (config.sample_interval or config.eval_interval) == 0
