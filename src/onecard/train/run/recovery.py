"""When a step goes wrong or the run cannot go on: what is done, what is saved, and the sentence that says so."""

import torch

from onecard.errors import RunFailure
from onecard.model import checkpoint
from onecard.train.io.row_names import name_rows
from onecard.train.run.session import Session
from onecard.train.run.workers import WorkerLostError


def bad_step(session: Session, why: str, retried: bool) -> bool:
    """Name the rows, then follow on_bad_step. True: do the step again. False: skip it. May end the run.

    The weights are as before the step, for the bad gradient was not applied. So a retry is the same step from the last
    good state; only when the weights themselves are not numbers is a checkpoint needed.
    """
    config, progress = session.config, session.progress
    session.stepper.optimizer.zero_grad(set_to_none=True)
    windows = session.loader.windows(progress.step)
    rows = name_rows(session.data.splits["train"], config.block_size, windows, session.data.eot)
    healthy = all(torch.isfinite(p).all().item() for p in session.model.parameters())
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
    if not healthy:
        _roll_back(session, f"step {step}: {why}, and the weights are damaged", rows)
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


def _roll_back(session: Session, what: str, rows: dict) -> None:
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
        **rows,
    )
    session.restore(saved)


def saved_and_ended(session: Session, failure: RunFailure) -> RunFailure:
    """Save what there is, close the books, and give back the failure with where the run can be taken up."""
    healthy = all(torch.isfinite(p).all().item() for p in session.model.parameters())
    saved = healthy and session.progress.step > 0 and session.save()
    _close(session, failure.message)
    where = f"; saved at step {session.progress.step}" if saved else ""
    return RunFailure(failure.message + where, hint=failure.hint)


def worker_lost(session: Session, lost: WorkerLostError) -> RunFailure:
    """Another process is gone. The gradients were not applied, so every survivor holds the last good step."""
    spokesman = session.workers.lowest_alive() == session.workers.rank
    if not spokesman or (session.log is None and session.progress.step == 0):
        return RunFailure(
            ""
        )  # another says it; before the first step it is the first process's own mistake
    if session.log is None:
        session.take_over()
    saved = session.progress.step > 0 and session.save()
    _close(session, f"a worker process ended: {lost}")
    where = f"saved at step {session.progress.step}" if saved else "the last checkpoint stays"
    return RunFailure(
        f"a worker process of the run ended; {where}", hint="start it again with --resume"
    )


def _close(session: Session, why: str) -> None:
    session.write(
        kind="end",
        step=session.progress.step,
        state="stopped",
        why=why,
        seconds=session.progress.seconds,
    )
    if session.record is not None:
        session.record.end("stopped")
