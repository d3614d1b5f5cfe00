"""One run while it goes on: its parts, and what is done with all of them: evaluate, save, restore, report."""

import dataclasses
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.model import checkpoint, machine
from onecard.model.gpt2 import GPT
from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord
from onecard.train.io.loader import Loader
from onecard.train.io.loggers import Loggers
from onecard.train.optim import optimizer_tensors, restore_optimizer
from onecard.train.run.progress import Progress
from onecard.train.run.side_shows import GuardedView, SideShows, Viewer, in_words
from onecard.train.run.side_shows import Silent as Silent  # for those who open a session
from onecard.train.run.step import Stepper
from onecard.train.run.validation import Evaluation, evaluate
from onecard.train.run.workers import Workers


@dataclass
class Session:
    config: RunConfig
    data: Dataset
    model: GPT
    stepper: Stepper
    loader: Loader
    progress: Progress
    workers: Workers
    precision: machine.Precision
    view: Viewer
    record: RunRecord | None  # the first process's alone, as is the log
    log: LogWriter | None
    loggers: Loggers
    flops_per_token: float
    peak_flops: float
    identity: dict[str, Any]  # what is recorded of the data (identity.py)
    save_seconds: float = 0.0  # the last checkpoint's
    eval_seconds: float = 0.0
    eval_micro_batch: int | None = None  # what fits, once an evaluation ran out of memory
    whole: bool = True  # False while an update is applied: weights and progress are of two steps
    saved_step: int | None = None  # of the newest checkpoint on disk
    rolled_back: set[int] = field(
        default_factory=set
    )  # steps that already cost a roll-back to a checkpoint

    def __post_init__(self) -> None:
        self.shows = SideShows(
            lambda text, part: self.event(text, event="side_show_failed", part=part)
        )
        self.view = GuardedView(self.view, self.shows)

    @property
    def folder(self) -> Path:
        return Path(self.config.out_dir)

    def is_finite(self) -> bool:
        """Whether all weights and all of the optimizer's memory are finite."""
        moments = optimizer_tensors(self.model, self.stepper.optimizer)
        return checkpoint.not_finite((*self.model.named_parameters(), *moments.items())) is None

    def close(self) -> None:
        self.loader.close()
        self.loggers.close()
        if self.log is not None:
            self.log.close()

    def write(self, **fields: Any) -> None:
        if self.log is not None:
            self.log.write(**fields)

    def event(self, text: str, **fields: Any) -> None:
        """Something the user must hear of: shown and logged, never silent."""
        if self.workers.first:
            self.view.message(text)
            self.write(kind="event", step=self.progress.step, text=text, **fields)

    def take_over(self) -> None:
        """The first process is gone: this one writes in its place."""
        self.record = RunRecord(self.folder)
        self.record.begin()
        self.log = LogWriter(self.record.log_path, warn=self.view.message)

    def evaluate(self) -> Evaluation:
        """The validation loss here, noted in the progress and the log."""
        c = self.config
        asked = min(self.stepper.micro_batch, self.eval_micro_batch or c.batch_size)
        found = evaluate(
            self.stepper.forward,
            self.data.splits["val"],
            c.block_size,
            c.eval_iters * c.batch_size,
            asked,
            self.workers,
            self.precision,
            self.data.bytes_per_token,
            self.stepper.mask_token,
            self.data.sources,
        )
        if found.micro_batch < asked:
            self.eval_micro_batch = found.micro_batch
            self.event(
                f"out of memory in the evaluation: {asked} → {found.micro_batch} sequences at a time",
                event="oom",
                micro_batch=self.stepper.micro_batch,
            )
        self.progress.val_loss = found.loss if math.isfinite(found.loss) else None
        self.eval_seconds = found.seconds
        fields = {
            "kind": "eval",
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            **found.fields(),
        }
        self.write(**fields)
        self.show("eval", fields)
        return found

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """A step's or an evaluation's fields to the view and the dashboards."""
        if self.workers.first:
            (self.view.step if kind == "step" else self.view.eval)(fields)
            self.shows.run("the dashboards", self.loggers.log, fields)

    def save(self, apart: str = "") -> str | None:
        """A checkpoint of this step; why not, where it is not written (the one before stays).

        One that is kept `apart`, in a folder of its own within the run's, is no place to resume from.
        """
        self.progress.micro_batch = self.stepper.micro_batch
        self.progress.scaler = self.stepper.scaler.state_dict()
        if self.log is None:
            return None
        began = time.perf_counter()
        self.log.sync()
        state = {
            **self.progress.to_json(),
            "config": dataclasses.asdict(self.config),
            "identity": self.identity,
            "log_offset": self.log.offset,
            "processes": self.workers.processes,
            "torch": torch.__version__,
        }
        step = self.progress.step
        try:
            folder = checkpoint.save(
                self.folder / apart,
                step,
                dict(self.model.named_parameters()),
                optimizer_tensors(self.model, self.stepper.optimizer),
                state,
            )
        except (OSError, checkpoint.NotFiniteError) as error:
            why = in_words(error) if isinstance(error, OSError) else f"{error} is not finite"
            last = "" if self.saved_step is None else f"; that of step {self.saved_step} stays"
            self.event(f"no checkpoint at step {step}: {why}{last}", event="checkpoint_failed")
            return why
        if apart:
            self.shows.run(
                "removing old checkpoints", checkpoint.prune, self.folder / apart, 1, step
            )
            return None
        self.saved_step = step
        self.save_seconds = time.perf_counter() - began
        self.write(kind="checkpoint", step=step, path=folder.name, seconds=self.save_seconds)
        self.shows.run(
            "removing old checkpoints",
            checkpoint.prune,
            self.folder,
            self.config.keep_checkpoints,
            step,
        )
        return None

    def restore(self, saved: checkpoint.Saved) -> None:
        """Weights, optimizer and progress of a checkpoint, in place."""
        state, weights, moments = saved
        parameters = dict(self.model.named_parameters())
        if problem := checkpoint.misfit(self.model, weights):
            raise UserError(
                f"the checkpoint's weights are not this model's: {problem}",
                hint="name another out_dir",
            )
        with torch.no_grad():
            for name, tensor in weights.items():
                parameters[name].copy_(tensor)
        restore_optimizer(self.model, self.stepper.optimizer, moments)
        self.progress = Progress.from_json(state)
        if state["scaler"]:
            self.stepper.scaler.load_state_dict(state["scaler"])
        self.whole, self.saved_step = True, self.progress.step
