"""One run: its parts, which stay the same, and what is done with all of them: evaluate, save, restore.

Each takes the run's state and returns the next one (progress.py); only weights and optimizer change in place.
"""

import math
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.model import checkpoint, machine
from onecard.model.gpt2 import GPT
from onecard.train.io.loader import Loader
from onecard.train.optim import optimizer_tensors, restore_optimizer
from onecard.train.run.outputs import Outputs, in_words
from onecard.train.run.progress import Progress, RunState
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.step import Stepper
from onecard.train.run.validation import BASE, PLAIN, Evaluation, evaluate
from onecard.train.run.workers import Workers


@dataclass(frozen=True)
class Session:
    config: RunConfig
    data: Dataset
    identity: dict[str, Any]  # what is recorded of the data (identity.py)
    model: GPT
    stepper: Stepper
    loader: Loader
    workers: Workers
    precision: machine.Precision
    flops_per_token: float
    peak_flops: float
    outputs: Outputs

    @property
    def folder(self) -> Path:
        return Path(self.config.out_dir)

    def is_finite(self) -> bool:
        """Whether all weights and all of the optimizer's memory are finite."""
        moments = optimizer_tensors(self.model, self.stepper.optimizer)
        return checkpoint.not_finite((*self.model.named_parameters(), *moments.items())) is None

    def reading(self) -> AbstractContextManager[object]:
        """For what reads the model beside the training: bf16 weights can only be multiplied in the run's precision."""
        if self.config.weights == "float32":
            return nullcontext()
        return machine.autocast(self.workers.device, self.precision)

    def is_whole(self, state: RunState) -> bool:
        """Whether the weights are those of this state: they are not while an update or a roll-back is under way."""
        return self.stepper.weights_step == state.progress.step

    def close(self) -> None:
        self.loader.close()
        self.outputs.close()


def validate(session: Session, state: RunState) -> RunState:
    """The state with the validation loss here, which is logged and shown."""
    config, stepper = session.config, session.stepper
    asked = min(stepper.micro_batch, state.eval_micro_batch or config.batch_size)
    windows = config.eval_iters * config.batch_size
    measured = _measured(session, "val", windows, asked, stepper.marks)
    if measured.micro_batch < asked:
        state = replace(state, eval_micro_batch=measured.micro_batch)
        session.outputs.event(
            f"out of memory in the evaluation: {asked} → {measured.micro_batch} sequences at a time",
            event="oom",
            micro_batch=stepper.micro_batch,
        )
    progress = state.progress
    step, tokens = progress.step, progress.tokens
    fields = {"kind": "eval", "step": step, "tokens": tokens, **measured.fields()}
    seconds = measured.seconds
    if BASE in session.data.splits:  # of a tuned model: what is forgotten of the text before
        whole = session.data.splits[BASE].tokens
        of_base = _measured(session, BASE, whole, measured.micro_batch, PLAIN)
        fields["base_val_loss"] = of_base.loss
        seconds += of_base.seconds
    session.outputs.measured(fields)
    state = replace(state, eval_seconds=seconds)
    if not math.isfinite(measured.loss):
        return state.progressed(val_loss=None)
    best = progress.best_val_loss
    if best is None or measured.loss < best:
        best = measured.loss
    return state.progressed(val_loss=measured.loss, best_val_loss=best)


def _measured(
    session: Session, split: str, windows: int, micro_batch: int, marks: RowMarks
) -> Evaluation:
    return evaluate(
        session.stepper.forward,
        session.data.splits[split],
        session.config.block_size,
        windows,
        micro_batch,
        session.workers,
        session.precision,
        session.data.bytes_per_token,
        marks,
        session.data.sources if split == "val" else None,
    )


def save(session: Session, state: RunState) -> tuple[RunState, str | None]:
    """A checkpoint of this step; why not, where it is not written (the one before stays)."""
    outputs, stepper = session.outputs, session.stepper
    state = state.progressed(
        micro_batch=stepper.micro_batch, scaler=dict(stepper.scaler.state_dict())
    )
    if outputs.log is None:
        return state, None
    began, step = time.perf_counter(), state.progress.step
    try:
        folder = _write(session, state, session.folder)
    except (OSError, checkpoint.NotFiniteError) as error:
        why = in_words(error) if isinstance(error, OSError) else f"{error} is not finite"
        last = "" if state.saved_step is None else f"; that of step {state.saved_step} stays"
        outputs.event(f"no checkpoint at step {step}: {why}{last}", event="checkpoint_failed")
        return state, why
    seconds = time.perf_counter() - began
    outputs.write(kind="checkpoint", step=step, path=folder.name, seconds=seconds)
    keep = session.config.keep_checkpoints
    outputs.shows.run("removing old checkpoints", checkpoint.prune, session.folder, keep, step)
    return replace(state, saved_step=step, save_seconds=seconds), None


def save_apart(session: Session, state: RunState, name: str) -> None:
    """A checkpoint in a folder of its own within the run's: one to branch from, not to resume from."""
    outputs, folder = session.outputs, session.folder / name
    if outputs.log is None:
        return
    scaler = dict(session.stepper.scaler.state_dict())
    state = state.progressed(micro_batch=session.stepper.micro_batch, scaler=scaler)
    try:
        _write(session, state, folder)
    except (OSError, checkpoint.NotFiniteError) as error:
        outputs.event(f"nothing is kept in {name}/: {error}", event="checkpoint_failed")
        return
    step = state.progress.step
    outputs.shows.run("removing old checkpoints", checkpoint.prune, folder, 1, step)


def _write(session: Session, state: RunState, folder: Path) -> Path:
    log = session.outputs.log
    assert log is not None
    log.sync()
    record = {
        **state.progress.to_json(),
        "config": asdict(session.config),
        "identity": session.identity,
        "log_offset": log.offset,
        "processes": session.workers.processes,
        "torch": torch.__version__,
    }
    weights = dict(session.model.named_parameters())
    moments = optimizer_tensors(session.model, session.stepper.optimizer)
    return checkpoint.save(folder, state.progress.step, weights, moments, record)


def restore(session: Session, state: RunState, saved: checkpoint.Saved) -> RunState:
    """The state at a checkpoint, whose weights and optimizer are put in place."""
    record, weights, moments = saved
    if problem := checkpoint.misfit(session.model, weights):
        raise UserError(
            f"the checkpoint's weights are not this model's: {problem}",
            hint="name another out_dir",
        )
    progress = Progress.from_json(record)
    session.stepper.weights_step = progress.step
    parameters = dict(session.model.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
    restore_optimizer(session.model, session.stepper.optimizer, moments)
    if record["scaler"]:
        session.stepper.scaler.load_state_dict(record["scaler"])
    return replace(state, progress=progress, saved_step=progress.step)
