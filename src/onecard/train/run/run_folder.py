"""The run's folder when a process starts: claimed before anything else, written to when all else has been found good."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from onecard.config import RunConfig, load, to_toml
from onecard.data import keep_record
from onecard.data.read.kept import RECORD
from onecard.data.read.manifest import MANIFEST
from onecard.errors import UserError
from onecard.facts.nvml import driver_version
from onecard.files import write_text
from onecard.model.checkpoint import checkpoints
from onecard.planner.params import params
from onecard.planner.result import RunPlan
from onecard.runs.record import RunRecord, environment, refuse_a_second_run
from onecard.train.io.loggers import open_loggers
from onecard.train.run.identity import Change
from onecard.train.run.progress import RunState
from onecard.train.run.session import Session
from onecard.version import __version__


@contextmanager
def claimed(folder: Path, resume: bool, first: bool) -> Iterator[RunRecord | None]:
    """The folder's lock, for the first process; a new run needs a folder that holds no run, a resume one with a checkpoint."""
    if resume:
        require_checkpoint(folder)
    if not first:
        yield None
        return
    if not resume:
        refuse_a_second_run(folder)
    record = RunRecord(folder)
    record.claim()
    try:
        if not resume:
            refuse_a_second_run(folder)  # another may have begun and ended here meanwhile
        yield record
    finally:
        record.release()


def require_checkpoint(folder: Path) -> None:
    """A resume that finds nothing is a mistake, never a new run."""
    if checkpoints(folder):
        return
    looked = f"no checkpoint in {folder / 'checkpoints'}"
    if not folder.exists():
        raise UserError(
            f"nothing to resume: there is no folder {folder}",
            hint="check out_dir, or leave the option `resume` out to start a new run",
        )
    raise UserError(
        f"nothing to resume: {looked}",
        hint="check out_dir; a run that ended before its first checkpoint starts again in a new out_dir, without the option `resume`",
    )


def open_folder(
    session: Session,
    state: RunState,
    record: RunRecord,
    resumed: Mapping[str, Any] | None,
    changes: list[Change],
    plan: RunPlan | None,
) -> None:
    """The dashboards, the record, the log and its start line."""
    config, folder, outputs = session.config, session.folder, session.outputs
    outputs.loggers = open_loggers(config, folder, outputs.view.message)
    if resumed is None:
        record.write_new(config, plan, _environment(session))
    else:
        _update_config(config, folder)
    kept = (
        folder / "data"
    )  # the run is whole without its data folder; a tuned one has its data here
    if not any((kept / name).is_file() for name in (RECORD, MANIFEST)):
        outputs.best_effort.run("the record of the data", keep_record, session.data, kept)
    outputs.open(record, truncate_at=0 if resumed is None else resumed["log_offset"])
    outputs.write(
        kind="start",
        step=state.progress.step,
        resumed=resumed is not None,
        config=to_toml(config),
        parameters=params(config.shape).total,
        device=_gpu(session.workers.device) or str(session.workers.device),
        dtype=session.precision.dtype,
        processes=session.workers.processes,
        peak_flops=session.peak_flops,
        flops_per_token=session.flops_per_token,
        dataset_tokens=session.data.splits["train"].tokens,
        torch=torch.__version__,
        onecard=__version__,
    )
    for change in changes:
        outputs.event(
            f"changed {'by request' if change.named else 'at the resume'}: {change}",
            event="config_changed" if change.named else "setting_changed",
            key=change.key,
            before=change.before,
            after=change.after,
        )


def _update_config(config: RunConfig, folder: Path) -> None:
    """config.toml as the run continues; untouched where it says the same. That it is only looked at this time is not a
    part of it: else the next resume would not train either."""
    path, config = folder / "config.toml", config.replace(eval_only=False)
    try:
        if load(path) == config:
            return
    except UserError:
        pass
    write_text(path, to_toml(config, head=f"onecard {__version__}"))


def _environment(session: Session) -> dict[str, Any]:
    return environment(
        torch_version=torch.__version__,
        gpu=_gpu(session.workers.device),
        driver=driver_version() if session.workers.device.type == "cuda" else None,
        with_diff=session.config.record_diff,
        device=str(session.workers.device),
        threads=torch.get_num_threads(),
        dataset=str(session.data.path),
        processes=session.workers.processes,
    )


def _gpu(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None
