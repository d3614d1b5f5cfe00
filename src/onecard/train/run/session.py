"""The parts of one run, opened together and closed together; loop.py reads downward because they are made here.

Order matters: nothing is written into out_dir until the data, the config and the checkpoint have been found good.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig, to_toml
from onecard.data import Dataset, open_dataset
from onecard.errors import UserError
from onecard.files import write_text
from onecard.model import checkpoint, machine
from onecard.model.build import make_model
from onecard.model.gpt2 import GPT
from onecard.model.weights import load_weights
from onecard.planner.flops import nanogpt_per_token
from onecard.planner.params import params
from onecard.planner.result import RunPlan
from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord, environment, holds_a_run
from onecard.train.io.loader import Loader
from onecard.train.io.loggers import Loggers, open_loggers
from onecard.train.optim import make_optimizer, optimizer_tensors, restore_optimizer
from onecard.train.run import preflight, trial
from onecard.train.run.faults import Faults
from onecard.train.run.progress import Progress, check_same_model
from onecard.train.run.side_shows import GuardedView, SideShows, Viewer, in_words
from onecard.train.run.side_shows import Silent as Silent  # for those who open a session
from onecard.train.run.step import Stepper
from onecard.train.run.validation import Evaluation, evaluate
from onecard.train.run.workers import Workers
from onecard.version import __version__


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

    def save(self) -> str | None:
        """A checkpoint of this step; why not, where it is not written (the one before stays)."""
        self.progress.micro_batch = self.stepper.micro_batch
        self.progress.scaler = self.stepper.scaler.state_dict()
        if self.log is None:
            return None
        began = time.perf_counter()
        self.log.sync()
        state = {
            **self.progress.to_json(),
            "config": dataclasses.asdict(self.config),
            "log_offset": self.log.offset,
            "processes": self.workers.processes,
            "torch": torch.__version__,
        }
        step = self.progress.step
        try:
            folder = checkpoint.save(
                self.folder,
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


@contextmanager
def open_session(
    config: RunConfig,
    workers: Workers,
    resume: bool,
    view: Viewer,
    plan: RunPlan | None = None,
    faults: Faults | None = None,
) -> Iterator[Session]:
    """Everything found good, then made, in the order that loses nothing when something is wrong."""
    device, folder = workers.device, Path(config.out_dir)
    machine.keep_freed_memory(device)
    flight = preflight.Preflight()
    data = open_dataset(config.dataset)
    config = preflight.resolve_vocab(config, data)
    preflight.check_data(config, data, flight)
    saved = checkpoint.newest_good(folder, flight.say) if resume else None
    if saved is not None:
        check_same_model(config, saved[0]["config"])

    torch.manual_seed(config.seed)
    model = make_model(config)
    if config.init_from not in ("scratch", "resume") and saved is None:
        load_weights(model, config.init_from)
        flight.say(f"weights: from {config.init_from}")
    model.to(device)
    model.train()
    shape = params(config.shape)
    precision = machine.precision_of(config.dtype, device)
    flight.say(f"precision: {precision.why}")
    for sentence in (
        machine.unseen_card(device, config.device),
        machine.limit_paged_memory(device),
    ):
        if sentence:
            flight.say(sentence)
    if workers.first and not config.eval_only:
        preflight.check_disk(config, shape.total, folder, flight)
    forward = trial.compiled_forward(model, config, device, precision, flight)
    micro_batch = trial.fitting_micro_batch(forward, model, config, device, precision, flight)

    def shrunk(before: int, now: int) -> None:
        session.event(
            f"out of memory: micro-batch {before} → {now}, accumulation raised to match; the same step again",
            event="oom",
            micro_batch=now,
        )

    stepper = Stepper(
        config,
        model,
        forward,
        make_optimizer(config, model),
        torch.amp.GradScaler(device.type, enabled=precision.scaled),
        precision,
        workers,
        micro_batch,
        data.eot if config.mask_documents else None,
        faults or Faults(),
        shrunk,
    )
    session = Session(
        config=config,
        data=data,
        model=model,
        stepper=stepper,
        loader=None,  # type: ignore[arg-type]
        progress=Progress(),
        workers=workers,
        precision=precision,
        view=view,
        record=None,
        log=None,
        loggers=Loggers([], view.message),
        flops_per_token=nanogpt_per_token(config.shape),
        peak_flops=machine.peak_flops(device, precision.dtype) * workers.processes,
    )
    if saved is not None:
        session.restore(saved)
        flight.say(f"resumed: step {session.progress.step:,} of {config.max_iters:,}")
        if (
            config.batch_size == saved[0]["config"]["batch_size"]
        ):  # what an earlier shrink found to fit
            stepper.micro_batch = min(stepper.micro_batch, session.progress.micro_batch)
    session.loader = Loader(
        data.splits["train"],
        config.block_size,
        config.batch_size * config.gradient_accumulation_steps,
        config.seed,
        share=(workers.rank, workers.processes),
        first=(session.progress.step, session.progress.place),
        pin=device.type == "cuda",
    )
    try:
        if workers.first:
            _open_folder(session, saved, resume, plan)
        for line in flight.lines:
            session.event(line, event="preflight")
        yield session
    finally:
        session.loader.close()
        session.loggers.close()
        if session.log is not None:
            session.log.close()


def _open_folder(session: Session, saved: tuple | None, resume: bool, plan: RunPlan | None) -> None:
    config, folder, device = session.config, session.folder, session.workers.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    where = environment(
        torch_version=torch.__version__,
        gpu=gpu,
        device=str(device),
        threads=torch.get_num_threads(),
        dataset=str(session.data.path),
        processes=session.workers.processes,
    )
    if resume and holds_a_run(folder):
        folder.mkdir(parents=True, exist_ok=True)
        record = RunRecord(folder)
        record.begin()
        write_text(folder / "config.toml", to_toml(config))
    else:
        record = RunRecord.create(folder, config, plan, where)
        record.begin()
    session.record = record
    session.loggers = open_loggers(config, folder, session.view.message)
    offset = saved[0]["log_offset"] if saved is not None else 0
    session.log = LogWriter(record.log_path, truncate_at=offset, warn=session.view.message)
    session.write(
        kind="start",
        step=session.progress.step,
        resumed=saved is not None,
        config=to_toml(config),
        parameters=params(config.shape).total,
        device=gpu or str(device),
        dtype=session.precision.dtype,
        processes=session.workers.processes,
        peak_flops=session.peak_flops,
        flops_per_token=session.flops_per_token,
        dataset_tokens=session.data.splits["train"].tokens,
        torch=torch.__version__,
        onecard=__version__,
    )
