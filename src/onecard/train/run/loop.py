"""The run itself: set up, then one loop, read downward.

>>> outcome = train(load("train_shakespeare_char", ["max_iters=200"]))     # doctest: +SKIP
>>> outcome.state, outcome.step                                            # doctest: +SKIP
('finished', 200)
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from onecard.config import RunConfig
from onecard.config.model_rules import evaluation_due
from onecard.errors import RunFailure, UserError
from onecard.model import machine
from onecard.model.power import power_meter
from onecard.planner.result import RunPlan
from onecard.runs.record import holds_a_run
from onecard.train.optim import lr_at
from onecard.train.run import recovery
from onecard.train.run.faults import Faults
from onecard.train.run.progress import advance, finished, random_seed
from onecard.train.run.sampling import write_sample
from onecard.train.run.session import Session, Silent, Viewer, open_session
from onecard.train.run.signals import StopSignals
from onecard.train.run.workers import WorkerLostError, Workers


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
) -> Outcome:
    """Train until max_iters or max_hours, a signal, or a failure that is told; resume goes on where a run stopped."""
    view = view or Silent()
    resume = resume or config.init_from == "resume"
    if holds_a_run(Path(config.out_dir)) and not resume:
        raise UserError(
            f"{config.out_dir} already holds a run",
            hint="go on with it by --resume, or name another out_dir",
        )
    torch.set_float32_matmul_precision("high")  # TF32 where there is no lower dtype, as in nanoGPT
    device = machine.choose_device(config.device, Workers.local_rank())
    with (
        StopSignals(view.message) as stop,
        Workers(config.backend, device) as workers,
        open_session(config, workers, resume, view, plan, faults) as session,
    ):
        try:
            outcome = _loop(session, stop)
        except WorkerLostError as lost:
            raise recovery.worker_lost(session, lost) from None
        except RunFailure as failure:
            raise recovery.saved_and_ended(session, failure) from None
        except BaseException:
            if session.record is not None:
                session.record.end("stopped")
            raise
        session.write(
            kind="end", step=outcome.step, state=outcome.state, seconds=session.progress.seconds
        )
        if session.record is not None:
            session.record.end(outcome.state)
    return outcome


def _loop(session: Session, stop: StopSignals) -> Outcome:
    config, progress, workers, stepper = (
        session.config,
        session.progress,
        session.workers,
        session.stepper,
    )
    device = workers.device
    meter = power_meter(device)
    loss: float | None = None
    sitting_began = tick = time.perf_counter()
    sitting_steps = 0
    interval_seconds, interval_wait, interval_steps = 0.0, 0.0, 0  # since the last log line
    bad_before: int | None = None  # the step that is being done again

    if config.eval_only:
        return Outcome("finished", progress.step, None, session.evaluate().loss, session.folder)

    while not finished(config, progress):
        began = time.perf_counter()
        step = progress.step
        rows = session.loader.rows(step).to(device, non_blocking=True)
        loss, norm = stepper.gradients(rows, step, random_seed(config.seed, step, workers.rank))

        bad = progress.watch.verdict(loss, norm)
        if bad is not None:
            again = recovery.bad_step(session, bad, retried=bad_before == step)
            progress = session.progress  # a roll-back brings another
            bad_before = step
            if again:
                continue
        lr = lr_at(config, progress.position)
        if bad is None:
            stepper.apply(lr, step)
            progress.watch.learn(loss)

        # how far it is now
        now = time.perf_counter()
        sitting_steps += 1
        pace = (now - sitting_began) / sitting_steps if sitting_steps >= 3 else None
        pressed = advance(config, progress, pace, session.save_seconds + session.eval_seconds)
        progress.position += (
            workers.from_first(pressed) if config.max_hours is not None else pressed
        )
        progress.step += 1
        progress.tokens += config.tokens_per_step
        progress.place = session.loader.place(progress.step)
        progress.val_loss = None
        progress.seconds += now - tick
        tick = now
        interval_seconds += now - began
        interval_wait += session.loader.wait_seconds
        interval_steps += 1

        last = finished(config, progress)
        if workers.first and (progress.step % config.log_interval == 0 or last or bad):
            seconds = interval_seconds / interval_steps
            power = meter.read_watts()
            progress.kwh += (power or 0.0) * interval_seconds / 3.6e6
            fields = {
                "kind": "step",
                "step": progress.step,
                "tokens": progress.tokens,
                "loss": loss,
                "lr": lr,
                "step_seconds": seconds,
                "tokens_per_second": config.tokens_per_step / seconds,
                "mfu": session.flops_per_token
                * config.tokens_per_step
                / seconds
                / session.peak_flops,
                "grad_norm": norm,
                "data_wait": interval_wait / interval_seconds,
                "epoch": session.loader.epoch(progress.step),
                "micro_batch": stepper.micro_batch,
                "memory_bytes": machine.peak_memory_bytes(device),
                "watts": power,
                "kwh": progress.kwh if power is not None else None,
                "seconds": progress.seconds,
            }
            if bad:
                fields["skipped"] = True
            session.write(**fields)
            session.view.step(fields)
            session.loggers.log(fields)
            interval_seconds, interval_wait, interval_steps = 0.0, 0.0, 0

        (stopping,) = (
            workers.any(stop.by is not None) if workers.processes > 1 else (stop.by is not None,)
        )
        improved = False
        if last or evaluation_due(config, progress.step):
            found = session.evaluate()
            improved = progress.best_val_loss is None or found.loss < progress.best_val_loss
            progress.best_val_loss = found.loss if improved else progress.best_val_loss
        if workers.first and _sample_due(config, progress.step, last):
            write_sample(session)
        if last or stopping or _save_due(config, progress.step, improved):
            saved = session.save()
            if last and not saved:
                raise RunFailure(
                    "the run is finished, but its last checkpoint could not be written",
                    hint="free some disk, then go on with --resume",
                )
        if stopping and not last:
            return Outcome(
                "stopped", progress.step, loss, progress.val_loss, session.folder, stop.by
            )
    return Outcome("finished", progress.step, loss, progress.val_loss, session.folder)


def _save_due(config: RunConfig, step: int, improved: bool) -> bool:
    if config.checkpoint_interval is not None:
        return step % config.checkpoint_interval == 0
    return step % config.eval_interval == 0 and (improved or config.always_save_checkpoint)


def _sample_due(config: RunConfig, step: int, last: bool) -> bool:
    return last or step % (config.sample_interval or config.eval_interval) == 0
