"""One run: its parts, which stay the same, and what is done with all of them: evaluate, save, restore.

Each takes the run's state and returns the next one (progress.py); only weights and optimizer change in place.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.model import checkpoint, machine
from onecard.model.gpt2 import GPT
from onecard.model.tensor_file import NotFiniteError, not_finite
from onecard.train.io.loader import Loader, to_device
from onecard.train.optim import optimizer_tensors, restore_optimizer
from onecard.train.run.outputs import Outputs, in_words
from onecard.train.run.part_saver import PartSaver, SavedParts
from onecard.train.run.progress import Progress, RunState, predecay_due
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.step import Stepper
from onecard.train.run.validation import BASE, PLAIN, Evaluation, evaluate
from onecard.train.run.workers import Workers

PREDECAY = "predecay"  # in the run's folder: the checkpoint before the decay


@dataclass(frozen=True)
class Session:
    config: RunConfig
    data: Dataset
    identity: dict[str, Any]  # what is recorded of the data (identity.py)
    model: GPT  # not compiled; FSDP2's where it is sharded
    stepper: Stepper  # its `forward` is the model as it is called, its `model` holds what the optimizer updates
    loader: Loader
    workers: Workers
    precision: machine.Precision
    flops_per_token: float
    peak_flops: float
    outputs: Outputs
    saver: PartSaver | None = None  # where the model is sharded over the processes

    @property
    def folder(self) -> Path:
        return Path(self.config.out_dir)

    def rows(self, step: int) -> Tensor:
        """This process's rows of the step."""
        try:
            return to_device(self.loader.rows(step), self.workers.device)
        except Exception as error:
            self.stepper.no_rows(error)

    def is_finite(self) -> bool:
        """Whether all weights and all of the optimizer's memory are finite."""
        kept = self.stepper.model
        moments = optimizer_tensors(kept, self.stepper.optimizer)
        bad = not_finite((*kept.named_parameters(), *moments.items()))
        return not self.workers.any(bad is not None)[0]

    @contextmanager
    def reading_model(self) -> Iterator[GPT | None]:
        """The model for what reads it beside the training, such as a sample. Of one that is sharded a copy in the first
        process, None in the others; all must call it."""
        sharding = self.stepper.sharding
        around: AbstractContextManager[object] = nullcontext()
        # bf16 weights can only be multiplied in the run's precision
        if self.config.weights != "float32":
            around = machine.autocast(self.workers.device, self.precision)
        with around:
            yield self.model if sharding is None else sharding.whole_model()

    def is_whole(self, state: RunState) -> bool:
        """Whether the weights are those of this state: they are not while an update or a roll-back is under way."""
        return self.stepper.weights_step == state.progress.step

    def close(self) -> None:
        self.loader.close()
        self.outputs.close()


def validate(session: Session, state: RunState) -> RunState:
    """The state with the validation loss here, which is logged and shown."""
    measured, state = _evaluated(session, state, session.config.eval_iters)
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
        return state.with_progress(val_loss=None)
    best = progress.best_val_loss
    if best is None or measured.loss < best:
        best = measured.loss
    return state.with_progress(val_loss=measured.loss, best_val_loss=best)


def try_evaluation(session: Session, state: RunState) -> RunState:
    """One batch of the evaluation, thrown away, where it has to be compiled: then compilation is in no evaluation's time, which
    the time left and max_hours are estimated with, and a batch that does not fit is found before hours of training."""
    if not session.config.compile:
        return state
    batches = min(session.config.eval_iters, session.workers.processes)
    return _evaluated(session, state, batches)[1]


def _evaluated(session: Session, state: RunState, batches: int) -> tuple[Evaluation, RunState]:
    """The loss over so many batches, and the state with how many sequences fit at a time."""
    config, stepper = session.config, session.stepper
    asked = min(stepper.micro_batch, state.eval_micro_batch or config.batch_size)
    measured = _measured(session, "val", batches * config.batch_size, asked, stepper.marks)
    if measured.micro_batch < asked:
        state = replace(state, eval_micro_batch=measured.micro_batch)
        session.outputs.event(
            f"out of memory in the evaluation: {asked} → {measured.micro_batch} sequences at a time",
            event="oom",
            micro_batch=stepper.micro_batch,
        )
    return measured, state


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
        session.data.text_bytes_per_token(split),
        marks,
        session.data.sources if split == "val" else None,
        session.stepper.sharding,
    )


def save(session: Session, state: RunState, wait: bool = True) -> tuple[RunState, str | None]:
    """A checkpoint of this step; why not, where it is not written (the one before stays).

    Of a model that is sharded, all processes write their parts, in the background unless it is waited for.
    """
    outputs = session.outputs
    state = _with_step_settings(session, state)
    if session.saver is not None:
        state, _ = collect_save(session, state)
        return _save_parts(session, state, session.folder, wait)
    if outputs.log is None:
        return state, None
    began, step = time.perf_counter(), state.progress.step
    try:
        folder = checkpoint.save(session.folder, step, *_tensors(session), _record(session, state))
    except (OSError, NotFiniteError) as error:
        return state, _failed(session, state, step, error)
    return _saved(session, state, SavedParts(step, time.perf_counter() - began, folder, None)), None


def _with_step_settings(session: Session, state: RunState) -> RunState:
    scaler = dict(session.stepper.scaler.state_dict())
    return state.with_progress(micro_batch=session.stepper.micro_batch, scaler=scaler)


def _save_parts(
    session: Session, state: RunState, folder: Path, wait: bool
) -> tuple[RunState, str | None]:
    assert session.saver is not None
    step, record = state.progress.step, partial(_record, session, state)
    try:
        session.saver.begin(folder, step, *_tensors(session), record)
    except (OSError, NotFiniteError) as error:
        return state, _failed(session, state, step, error)
    return collect_save(session, state) if wait else (state, None)


def collect_save(
    session: Session, state: RunState, wait: bool = True
) -> tuple[RunState, str | None]:
    """The state after a save in the background, if it is done or waited for; why it failed, where it did."""
    done = None if session.saver is None else session.saver.finished(wait)
    if done is None:
        return state, None
    if done.why is not None:
        return state, _failed(session, state, done.step, done.why)
    return _saved(session, state, done), None


def _saved(session: Session, state: RunState, done: SavedParts) -> RunState:
    outputs, keep = session.outputs, session.config.keep_checkpoints
    if outputs.log is not None:
        outputs.write(
            kind="checkpoint", step=done.step, path=done.folder.name, seconds=done.seconds
        )
        outputs.best_effort.run(
            "removing old checkpoints", checkpoint.prune, session.folder, keep, done.step
        )
    return replace(state, saved_step=done.step, save_seconds=done.seconds)


def _failed(session: Session, state: RunState, step: int, error: Exception | str) -> str:
    why = str(error)
    if isinstance(error, OSError) and error.strerror:
        why = in_words(error)
    elif isinstance(error, NotFiniteError):
        why = f"{error} is not finite"
    last = "" if state.saved_step is None else f"; that of step {state.saved_step} stays"
    session.outputs.event(f"no checkpoint at step {step}: {why}{last}", event="checkpoint_failed")
    return why


def keep_before_decay(session: Session, state: RunState) -> RunState:
    """At the last moment of the flat part of a schedule, unless it was kept already: a checkpoint in a folder of its own
    within the run's, to branch from, not to resume from."""
    config, outputs, folder = session.config, session.outputs, session.folder / PREDECAY
    step = state.progress.step
    if not predecay_due(config, state):
        return state
    kept = [checkpoint.step_of(path) for path in checkpoint.checkpoints(folder)]
    due = outputs.log is not None and all(before + 2 < step for before in kept)
    if session.saver is not None:  # as the first process finds it
        (due,) = session.workers.any(due)
    if not due:
        return state
    state, _ = collect_save(session, state)  # of a save in the background: there is one at a time
    kept_state, why = _with_step_settings(session, state), None
    try:
        if session.saver is None:
            checkpoint.save(folder, step, *_tensors(session), _record(session, kept_state))
        else:
            record = partial(_record, session, kept_state)
            session.saver.begin(folder, step, *_tensors(session), record)
            done = session.saver.finished(wait=True)
            why = None if done is None else done.why
    except (OSError, NotFiniteError) as error:
        why = str(error)
    if why is not None:
        outputs.event(f"nothing is kept in {PREDECAY}/: {why}", event="checkpoint_failed")
    elif outputs.log is not None:
        outputs.best_effort.run("removing old checkpoints", checkpoint.prune, folder, 1, step)
    return state


def _tensors(session: Session) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights and the optimizer's memory, or what this process keeps of them."""
    kept = session.stepper.model
    return dict(kept.named_parameters()), optimizer_tensors(kept, session.stepper.optimizer)


def _record(session: Session, state: RunState) -> dict[str, Any]:
    """What state.json holds beside the tensors; empty in processes that do not write it."""
    log = session.outputs.log
    if log is None:
        return {}
    log.sync()
    return {
        **state.progress.to_json(),
        "config": asdict(session.config),
        "identity": session.identity,
        "log_offset": log.offset,
        "processes": session.workers.processes,
        "torch": torch.__version__,
    }


def restore(session: Session, state: RunState, saved: checkpoint.Saved) -> RunState:
    """The state at a checkpoint, whose weights and optimizer are put in place."""
    record, weights, moments = saved
    if problem := checkpoint.misfit(session.stepper.model, weights):
        raise UserError(
            f"the checkpoint's weights are not this model's: {problem}",
            hint="name another out_dir",
        )
    progress = Progress.from_json(record)
    session.stepper.weights_step = progress.step
    kept = session.stepper.model
    parameters = dict(kept.named_parameters())
    with torch.no_grad():
        for name, tensor in weights.items():
            parameters[name].copy_(tensor)
    restore_optimizer(kept, session.stepper.optimizer, moments)
    if record["scaler"]:
        session.stepper.scaler.load_state_dict(record["scaler"])
    return replace(state, progress=progress, saved_step=progress.step)
