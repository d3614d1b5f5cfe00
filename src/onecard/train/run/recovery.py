"""When a step goes wrong or the run cannot go on: what is done, what is saved, and the sentence that says so.

Whatever ends a run comes through `ended`: the last finished step is saved if its state is whole and finite.
"""

import contextlib
import datetime
import traceback

import torch

from onecard.errors import InternalError, OnecardError, RunFailure
from onecard.files import write_text
from onecard.model import checkpoint
from onecard.model.out_of_memory import is_out_of_memory
from onecard.train.io.row_names import name_rows
from onecard.train.run.session import Session
from onecard.train.run.side_shows import in_words
from onecard.train.run.workers import WorkerLostError
from onecard.version import __version__


def bad_step(session: Session, why: str, retried: bool) -> bool:
    """Name the rows, then follow on_bad_step. True: do the step again. False: skip it. May end the run.

    The weights are as before the step, for the bad gradient was not applied. So a retry is the same step from the last
    good state; only when the weights themselves are not numbers is a checkpoint needed.
    """
    config, progress = session.config, session.progress
    session.stepper.discard()
    rows = session.shows.run("naming the rows of a bad step", _rows_of_this_step, session) or {}
    step = progress.step + 1
    if config.on_bad_step == "stop":
        session.event(
            f"step {step}: {why}; stopping, as on_bad_step says",
            event="bad_step",
            action="stop",
            **rows,
        )
        raise RunFailure(
            f"step {step}: {why}",
            hint="log.jsonl names the rows; on_bad_step='skip' passes over them",
        )
    if not session.is_finite():
        roll_back(
            session, f"step {step}: {why}, and the weights or the optimizer are damaged", rows
        )
        return True
    if config.on_bad_step == "retry" and not retried:
        session.event(
            f"step {step}: {why}; done again from the same state",
            event="bad_step",
            action="retry",
            **rows,
        )
        return True
    session.event(
        f"step {step}: {why}; skipped, its rows are in log.jsonl",
        event="bad_step",
        action="skip",
        **rows,
    )
    progress.skipped.append(step)
    return False


def roll_back(session: Session, what: str, rows: dict | None = None) -> None:
    """Back to the newest good checkpoint, once for each step; ends the run where there is none."""
    session.stepper.discard()
    saved = checkpoint.newest_good(
        session.folder, lambda text: session.event(text, event="checkpoint_damaged")
    )
    reached = session.progress.step
    if saved is None or reached in session.rolled_back:
        raise RunFailure(
            f"{what}; there is no good state to go back to",
            hint="a lower learning_rate or a longer warm-up may help",
        )
    session.rolled_back.add(reached)
    session.event(
        f"{what}; back to the checkpoint of step {saved[0]['step']}",
        event="bad_step",
        action="rollback",
        **(rows or {}),
    )
    session.restore(saved)


def ended(session: Session, error: BaseException) -> BaseException:
    """Save what is good, write the traceback down, close the books; the error that the user is to see. Never raises."""
    if (
        isinstance(error, WorkerLostError)
        and session.workers.lowest_alive() != session.workers.rank
    ):
        return RunFailure("")  # another process reports it
    saves = session.log is not None or isinstance(error, WorkerLostError)
    if isinstance(error, WorkerLostError) and session.log is None:
        if session.progress.step == 0:
            return RunFailure("")  # it is the first process's own mistake, which it reports
        with contextlib.suppress(Exception):
            session.take_over()
    where = _saved(session) if saves else "the other processes save the run"
    report = _report(session, error, where)
    _close(session, str(report.message if isinstance(report, OnecardError) else in_words(error)))
    if not isinstance(report, OnecardError):  # Ctrl-C outside our handler, sys.exit
        session.view.message(f"stopped; {where}")
    return report


def _saved(session: Session) -> str:
    """Save the last finished step, unless it is on disk; where the run can be taken up."""
    step, newest = session.progress.step, session.saved_step
    why: str | None
    if not session.whole:
        why = "the update was applied in part"
    elif step == 0:
        return "no step was finished"
    elif newest == step:
        return f"saved at step {step}"
    else:
        try:
            why = session.save()
        except BaseException as again:  # a card that failed cannot be read either
            why = in_words(again)
        if why is None:
            return f"saved at step {step}"
    last = (
        "there is no checkpoint yet" if newest is None else f"the checkpoint of step {newest} stays"
    )
    return f"step {step} could not be saved ({why}); {last}"


def _report(session: Session, error: BaseException, where: str) -> BaseException:
    if isinstance(error, WorkerLostError):
        return RunFailure(
            f"a worker process of the run ended; {where}", hint="start it again with --resume"
        )
    if isinstance(error, OnecardError):
        # what one process alone met in mid-run is no mistake that the first one reports too
        kind = type(error) if session.workers.first else RunFailure
        return kind(f"{error.message}; {where}", hint=error.hint)
    if not isinstance(error, Exception):
        return error
    trace = _write_trace(session, error)
    again = f"go on with --resume; the traceback is in {trace}"
    if is_out_of_memory(error):
        return RunFailure(f"out of memory ({in_words(error)}); {where}", hint=again)
    if isinstance(error, OSError):
        return RunFailure(f"{in_words(error)}; {where}", hint=again)
    if isinstance(error, torch.AcceleratorError):
        return RunFailure(f"the card failed ({in_words(error)}); {where}", hint=again)
    return InternalError(
        f"internal error: {in_words(error)}; {where}",
        hint=f"please report it with {trace}; --resume goes on",
    )


def _write_trace(session: Session, error: BaseException) -> str:
    """The traceback into the run's folder; its path."""
    rank = f"-{session.workers.rank}" if session.workers.rank else ""
    path = session.folder / f"error{rank}.txt"
    head = (
        f"onecard {__version__}, torch {torch.__version__}, after step {session.progress.step}, "
        f"{datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}\n\n"
    )
    with contextlib.suppress(Exception):
        write_text(path, head + "".join(traceback.format_exception(error)), private=True)
    return str(path)


def _close(session: Session, why: str) -> None:
    """The end in log.jsonl and run.json, where they can still be written."""
    with contextlib.suppress(Exception):
        session.write(
            kind="end",
            step=session.progress.step,
            state="stopped",
            why=why,
            seconds=session.progress.seconds,
        )
    if session.record is not None:
        with contextlib.suppress(Exception):
            session.record.end("stopped")


def _rows_of_this_step(session: Session) -> dict:
    windows = session.loader.windows(session.progress.step)
    split = session.data.splits["train"]
    return name_rows(split, session.config.block_size, windows, session.data.eot)
