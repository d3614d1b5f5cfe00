"""When a step goes wrong or the run cannot continue: what is done, what is saved, and the sentence that says so.

Whatever ends a run comes through `ended`: the last finished step is saved if its state is whole and finite.
"""

import contextlib
import traceback
from dataclasses import replace
from typing import Any

import torch

from onecard.errors import InternalError, OnecardError, RunFailure
from onecard.files import write_text
from onecard.model import checkpoint
from onecard.model.out_of_memory import is_out_of_memory
from onecard.runs.record import RunRecord
from onecard.train.io.row_names import name_rows
from onecard.train.run.outputs import in_words
from onecard.train.run.progress import RunState
from onecard.train.run.resume_point import newest_good
from onecard.train.run.session import Session, collect_save, restore, save
from onecard.train.run.workers import OthersFailedError, WorkerLostError
from onecard.units import utc_now
from onecard.version import __version__


def bad_step(session: Session, state: RunState, why: str) -> tuple[RunState, bool]:
    """Name the rows, then follow on_bad_step. True: do the step again. False: skip it. May end the run.

    The weights are as before the step, for the bad gradient was not applied. So a retry is the same step from the last
    good state; only when the weights themselves are not numbers is a checkpoint needed. With update_in_backward the bad
    gradient was applied, and a checkpoint is always needed.
    """
    config, outputs, done = session.config, session.outputs, state.progress.step
    retried, state = state.last_bad_step == done, replace(state, last_bad_step=done)
    session.stepper.discard()
    rows = (
        outputs.best_effort.run("naming the rows of a bad step", _rows_of_step, session, done) or {}
    )
    step = done + 1

    def report(what_is_done: str, action: str) -> None:
        text = f"step {step}: {why}; {what_is_done}"
        outputs.event(text, event="bad_step", action=action, **rows)

    if config.on_bad_step == "stop":
        report("stopping, as on_bad_step says", "stop")
        raise RunFailure(
            f"step {step}: {why}",
            hint="log.jsonl names the rows; on_bad_step='skip' passes over them",
        )
    if session.stepper.updates is not None:
        return roll_back(session, state, f"step {step}: {why}, and was applied", rows), True
    if not session.is_finite():
        damaged = f"step {step}: {why}, and the weights or the optimizer are damaged"
        return roll_back(session, state, damaged, rows), True
    if config.on_bad_step == "retry" and not retried:
        report("done again from the same state", "retry")
        return state, True
    report("skipped, its rows are in log.jsonl", "skip")
    return state.with_progress(skipped=(*state.progress.skipped, step)), False


def roll_back(
    session: Session, state: RunState, what: str, rows: dict[str, Any] | None = None
) -> RunState:
    """Back to the newest good checkpoint, once for each step; ends the run where there is none."""
    outputs, reached = session.outputs, state.progress.step
    session.stepper.discard()
    state, _ = collect_save(session, state)
    saved = newest_good(
        session.folder,
        session.config,
        session.workers,
        lambda text: outputs.event(text, event="checkpoint_damaged"),
    )
    if saved is None or reached in state.rolled_back:
        raise RunFailure(
            f"{what}; there is no good state to go back to",
            hint="a lower learning_rate or a longer warm-up may help",
        )
    text = f"{what}; back to the checkpoint of step {saved.state['step']}"
    outputs.event(text, event="bad_step", action="rollback", **(rows or {}))
    return restore(session, replace(state, rolled_back=state.rolled_back | {reached}), saved)


def ended(session: Session, state: RunState, error: BaseException) -> BaseException:
    """Save what is good, write the traceback and the log's last line; the error to show the user. Never raises."""
    lost = isinstance(error, WorkerLostError)
    if lost and session.workers.lowest_alive() != session.workers.rank:
        return RunFailure("")  # another process reports it
    outputs = session.outputs
    saves = outputs.log is not None or lost or session.saver is not None
    if lost and outputs.log is None:
        if state.progress.step == 0:
            return RunFailure("")  # it is the first process's own mistake, which it reports
        with contextlib.suppress(Exception):
            outputs.take_over(RunRecord(session.folder))
    where = _save_last_step(session, state, error) if saves else "the other processes save the run"
    if isinstance(error, OthersFailedError):
        return RunFailure("")
    report = _report(session, state, error, where)
    why = report.message if isinstance(report, OnecardError) else in_words(error)
    _close(session, state, str(why))
    if not isinstance(report, OnecardError):  # Ctrl-C outside our handler, sys.exit
        outputs.view.message(f"stopped; {where}")
    return report


def _parts_missing(session: Session, error: BaseException) -> str | None:
    """Why a model that is sharded cannot be saved: not all processes are there to do it."""
    if session.saver is None:
        return None
    if isinstance(error, WorkerLostError):
        return "a part of the model was in the process that ended"
    sharding = session.stepper.sharding
    known = sharding is not None and sharding.failed_together
    if not known and not isinstance(error, RunFailure):
        return "the other processes do not know of the error"
    return None


def _save_last_step(session: Session, state: RunState, error: BaseException) -> str:
    """Save the last finished step, unless it is on disk; from where the run can be resumed."""
    with contextlib.suppress(Exception):
        state, _ = collect_save(session, state)
    step, newest = state.progress.step, state.saved_step
    # only the first process, which is gone, knew what was saved: look on the disk
    if session.saver is None and not session.workers.first:
        saved = checkpoint.checkpoints(session.folder)
        newest = checkpoint.step_of(saved[-1]) if saved else None
    why = _parts_missing(session, error) if newest != step else None
    if why is None and not session.is_whole(state):
        why = "the update was applied in part"
    if why is None:
        if step == 0:
            return "no step was finished"
        if state.saved_step == step:
            return f"saved at step {step}"
        why = _save_error(session, state)
        if why is None:
            return f"saved at step {step}"
    last = (
        "there is no checkpoint yet" if newest is None else f"the checkpoint of step {newest} stays"
    )
    return f"step {step} could not be saved ({why}); {last}"


def _save_error(session: Session, state: RunState) -> str | None:
    """Save the state; why that failed."""
    try:
        _, why = save(session, state)
    except BaseException as error:  # a card that failed cannot be read either
        return in_words(error)
    return why


def _report(session: Session, state: RunState, error: BaseException, where: str) -> BaseException:
    if isinstance(error, WorkerLostError):
        return RunFailure(
            f"a worker process of the run ended; {where}",
            hint="start it again with the option `resume`",
        )
    if isinstance(error, OnecardError):
        # what one process alone met in mid-run is no mistake that the first one reports too
        kind = type(error) if session.workers.first else RunFailure
        return kind(f"{error.message}; {where}", hint=error.hint)
    if not isinstance(error, Exception):
        return error
    trace = _write_trace(session, state, error)
    again = f"continue with the option `resume`; the traceback is in {trace}"
    if is_out_of_memory(error):
        return RunFailure(f"out of memory ({in_words(error)}); {where}", hint=again)
    if isinstance(error, OSError):
        return RunFailure(f"{in_words(error)}; {where}", hint=again)
    if isinstance(error, torch.AcceleratorError):
        return RunFailure(f"the card failed ({in_words(error)}); {where}", hint=again)
    return InternalError(
        f"internal error: {in_words(error)}; {where}",
        hint=f"the traceback is in {trace}; the option `resume` continues",
    )


def _write_trace(session: Session, state: RunState, error: BaseException) -> str:
    """The traceback into the run's folder; its path."""
    rank = f"-{session.workers.rank}" if session.workers.rank else ""
    path = session.folder / f"error{rank}.txt"
    head = (
        f"onecard {__version__}, torch {torch.__version__}, after step {state.progress.step}, "
        f"{utc_now()}\n\n"
    )
    with contextlib.suppress(Exception):
        write_text(path, head + "".join(traceback.format_exception(error)), private=True)
    return str(path)


def _close(session: Session, state: RunState, why: str) -> None:
    """The end in log.jsonl and run.json, where they can still be written."""
    with contextlib.suppress(Exception):
        seconds = state.progress.seconds
        session.outputs.write(
            kind="end", step=state.progress.step, state="stopped", why=why, seconds=seconds
        )
    if session.outputs.record is not None:
        with contextlib.suppress(Exception):
            session.outputs.record.end("stopped")


def _rows_of_step(session: Session, step: int) -> dict[str, Any]:
    windows = session.loader.windows(step)
    split = session.data.splits["train"]
    return name_rows(split, session.config.block_size, windows, session.data.eot)
