"""Everything a run needs, checked and made in the order that loses nothing when something is wrong; read downward.

The folder's lock comes first. Nothing else is written into out_dir until the data, the tokeniser, the checkpoint, the
model, the disk and the dashboards have been found good; where one is not, the folder is left as it was.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.data import Dataset, open_dataset
from onecard.model import checkpoint, machine, processor
from onecard.model.build import lowered, make_model
from onecard.model.gpt2 import GPT
from onecard.model.weights import load_weights
from onecard.planner.flops import nanogpt_per_token
from onecard.planner.result import RunPlan
from onecard.train.io.loader import Loader
from onecard.train.optim import make_optimizer
from onecard.train.run import preflight, trial
from onecard.train.run.backward_updates import backward_updates
from onecard.train.run.branch import DECAYED, decayed_since
from onecard.train.run.branch import branch as branch_off
from onecard.train.run.faults import Faults
from onecard.train.run.identity import Change, changes_since, check_names, identity_of
from onecard.train.run.outputs import Outputs, Viewer
from onecard.train.run.part_saver import PartSaver
from onecard.train.run.preflight import Preflight
from onecard.train.run.progress import Progress, RunState
from onecard.train.run.resume_point import newest_good
from onecard.train.run.row_marks import RowMarks, row_marks
from onecard.train.run.run_folder import claimed, open_folder
from onecard.train.run.session import PREDECAY, Session, restore, save
from onecard.train.run.sharding import Sharding, sharding_of
from onecard.train.run.step import Stepper, gradient_sums
from onecard.train.run.workers import Workers
from onecard.units import show_duration


@dataclass(frozen=True)
class RunParts:
    """What a run is made from, found good; nothing of it has been written."""

    config: RunConfig
    data: Dataset
    identity: dict[str, Any]
    saved: checkpoint.Saved | None  # where it continues from
    changes: list[Change]  # against the record of `saved`


@contextmanager
def open_session(
    config: RunConfig,
    workers: Workers,
    resume: bool,
    view: Viewer,
    plan: RunPlan | None = None,
    faults: Faults | None = None,
    change: Collection[str] = (),
    branch: bool = False,
) -> Iterator[tuple[Session, RunState]]:
    """The parts of one run, opened together and closed together, and where it stands."""
    machine.keep_freed_memory(workers.device)
    if workers.device.type == "cuda":
        torch.cuda.set_device(workers.device)
    flight = Preflight()
    with ExitStack() as open_parts:
        record = open_parts.enter_context(claimed(Path(config.out_dir), resume, workers.first))
        folder = Path(config.out_dir)
        branch_step = decayed_since(folder, config) if branch else None
        if branch_step is not None:
            flight.say(
                f"continues from step {branch_step:,}, before the decay; the decayed end is in {DECAYED}/"
            )
        source = folder if branch_step is None else folder / PREDECAY
        parts = find_parts(config, workers, source if resume else None, change, flight)
        if workers.first and not parts.config.eval_only:
            preflight.check_disk(parts.config, flight)
        session = _session(parts, workers, view, faults or Faults(), flight, plan)
        open_parts.callback(session.close)
        state, resumed, changes = RunState(Progress()), None, parts.changes
        if parts.saved is not None:
            state, resumed = _resumed(session, parts.saved, flight), parts.saved.state
        try:
            with session.reading_model() as model:
                if model is not None:
                    preflight.check_sampler(model, parts.data)
        except MemoryError as error:  # of a model that is sharded: the run itself needs no copy
            flight.say(f"there will be no samples: {error}")
        del parts  # the checkpoint's tensors, which the model has by now
        if record is not None:
            if branch_step is not None:  # all processes have read their checkpoint by now
                branch_off(folder, branch_step)
            open_folder(session, state, record, resumed, changes, plan)
        if any(change.named for change in changes) and not session.config.eval_only:
            state, _ = save(session, state)  # a new record: what comes after is compared with it
        for line in flight.lines:
            session.outputs.event(line, routine=line in flight.routine, event="preflight")
        yield session, state


def find_parts(
    config: RunConfig,
    workers: Workers,
    source: Path | None,
    change: Collection[str],
    flight: Preflight,
) -> RunParts:
    """The data and, for a resume, the newest good checkpoint of the folder `source`, which must be of the same run."""
    check_names(change)
    data = open_dataset(config.dataset)
    saved = None
    if source is not None:
        saved = newest_good(source, config, workers, flight.say)
    if saved is not None and config.vocab_size is None:
        config = config.replace(vocab_size=saved.state["config"]["vocab_size"])
    config = preflight.resolve_vocab(config, data)
    preflight.check_data(config, data, flight)
    preflight.check_tokenizer(data)
    identity = identity_of(data)
    changes: list[Change] = []
    if saved is not None:
        changes = changes_since(saved.state, config, identity, change)
        if "identity" not in saved.state:
            flight.say("data: its content was not recorded when the run began, and is from now on")
    return RunParts(config, data, identity, saved, changes)


def _session(
    parts: RunParts,
    workers: Workers,
    view: Viewer,
    faults: Faults,
    flight: Preflight,
    plan: RunPlan | None,
) -> Session:
    """The model on its device with the optimizer, and the rows of its next step on their way."""
    config, data, device = parts.config, parts.data, workers.device
    if config.offload_optimizer or config.offload_activations:
        preflight.check_host(config, workers.processes)
    if config.fp8:
        machine.require_fp8(device)
    preflight.check_rows(config, workers.processes)
    model = _model(config, parts.saved, device, flight, data, workers.shards(config))
    precision = agreed_precision(machine.precision_of(config.matmul_dtype, device), workers)
    sharding = sharding_of(config, model, precision, workers) if workers.shards(config) else None
    flight.say(f"precision: {precision.why}", routine=True)
    for sentence in (
        processor.prepare(config, device),
        machine.unseen_card(device, config.device, _planned_time(plan)),
        machine.limit_paged_memory(device),
    ):
        if sentence:
            flight.say(sentence)
    marks = row_marks(config, data)
    outputs = Outputs(view, workers.first, step_now=lambda: stepper.weights_step)
    stepper = _stepper(config, model, precision, workers, flight, outputs, faults, marks, sharding)
    progress = Progress() if parts.saved is None else Progress.from_json(parts.saved.state)
    loader = Loader(
        data.splits["train"],
        config.block_size,
        config.sequences_per_step,
        config.seed,
        share=(workers.rank, workers.processes),
        first=(progress.step, progress.place),
        pin=device.type == "cuda",
    )
    return Session(
        config=config,
        data=data,
        identity=parts.identity,
        model=model,
        stepper=stepper,
        loader=loader,
        workers=workers,
        precision=precision,
        flops_per_token=nanogpt_per_token(config.shape),
        peak_flops=_peak_of_all(machine.peak_flops(device, precision.dtype), workers),
        outputs=outputs,
        saver=None if sharding is None else PartSaver(workers, sharding.slices, config.state_bits),
    )


def _planned_time(plan: RunPlan | None) -> str:
    if plan is None:
        return ""
    low, high = plan.time.total_seconds.low, plan.time.total_seconds.high
    return f"the plan for the whole run: {show_duration(low)} to {show_duration(high)}"


def _stepper(
    config: RunConfig,
    model: GPT,
    precision: machine.Precision,
    workers: Workers,
    flight: Preflight,
    outputs: Outputs,
    faults: Faults,
    marks: RowMarks,
    sharding: Sharding | None,
) -> Stepper:
    """The step, compiled where that works, with the micro-batch that fits."""
    device = workers.device
    forward = trial.compiled_forward(model, config, device, precision, flight, sharding)
    fitting = trial.fitting_micro_batch(forward, model, config, device, precision, flight, sharding)
    kept, slices = (model, None) if sharding is None else (sharding.local, sharding.slices)

    def shrunk(before: int, now: int) -> None:
        outputs.event(
            f"out of memory: micro-batch {before} → {now}, accumulation raised to match; the same step again",
            event="oom",
            micro_batch=now,
        )

    optimizer = make_optimizer(config, kept, slices)
    sums = gradient_sums(config, model, forward)
    updates = None
    if config.update_in_backward:
        updates = backward_updates(model, optimizer, workers.processes, precision.scaled)
    return Stepper(
        config=config,
        model=kept,
        forward=forward,
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=precision.scaled),
        precision=precision,
        workers=workers,
        micro_batch=fitting,
        marks=marks,
        faults=faults,
        shrunk=shrunk,
        sums=sums,
        updates=updates,
        sharding=sharding,
    )


def _resumed(session: Session, saved: checkpoint.Saved, flight: Preflight) -> RunState:
    """The session with the checkpoint's weights, optimizer and micro-batch; the state it was saved in."""
    config, stepper = session.config, session.stepper
    state = restore(session, RunState(Progress()), saved)
    flight.say(f"resumed: step {state.progress.step:,} of {config.max_iters:,}")
    if config.batch_size == saved.state["config"]["batch_size"]:
        # what an earlier shrink found to fit
        stepper.micro_batch = min(stepper.micro_batch, state.progress.micro_batch)
    return state


def agreed_precision(own: machine.Precision, workers: Workers) -> machine.Precision:
    """One dtype for all processes: gradients that float16 scaled up cannot be added to others that are not."""
    dtypes = ("float32", "float16", "bfloat16")  # what any card computes in comes first
    used = workers.any(*(own.dtype == dtype for dtype in dtypes))
    common = next(dtype for dtype, there in zip(dtypes, used, strict=True) if there)
    if sum(used) == 1:
        return own
    why = f"{common}: the cards of this run differ, and this one all of them compute in"
    return machine.Precision(common, common == "float16", why)


def _peak_of_all(peak_flops: float, workers: Workers) -> float:
    """The sum over the processes' cards, which need not be of one kind."""
    return workers.add(torch.tensor(peak_flops, dtype=torch.float64)).item()


def _model(
    config: RunConfig,
    saved: checkpoint.Saved | None,
    device: torch.device,
    flight: Preflight,
    data: Dataset,
    sharded: bool,
) -> GPT:
    """On its device, or on the host where it is sharded from there, layer by layer."""
    torch.manual_seed(config.seed)
    model = make_model(config)
    if config.init_from not in ("scratch", "resume") and saved is None:
        load_weights(model, config.init_from, flight.say, data.new_ids_from)
        flight.say(f"weights: from {config.init_from}", routine=True)
    lowered(model, config)
    if not sharded:
        model.to(device)
    model.train()
    return model
