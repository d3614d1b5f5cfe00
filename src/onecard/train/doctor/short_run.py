"""A short training run for the report file: its config, what the plan expects of it, and its log, step by step."""

import statistics
from dataclasses import dataclass
from typing import Any

from onecard.config import RunConfig
from onecard.errors import OnecardError, first_line
from onecard.model.machine import choose_precision
from onecard.planner import plan
from onecard.planner.result import Range
from onecard.runs.log import read_log
from onecard.train.doctor.answers import Answers, Check
from onecard.train.doctor.compute import small_data, step_config
from onecard.train.run.loop import train
from onecard.train.run.signals import end_as_asked
from onecard.units import show_duration

_NAMED = ("dataset", "out_dir")  # config keys that hold a path
_STEPS = 10
_FIELDS = (
    "step",
    "tokens",
    "loss",
    "lr",
    "step_seconds",
    "tokens_per_second",
    "mfu",
    "grad_norm",
    "data_wait",
    "micro_batch",
    "memory_bytes",
    "watts",
)


@dataclass(frozen=True)
class ShortRun:
    config: dict[str, Any]  # what differs from the defaults; nothing that names a folder
    dtype: str  # that `auto` came to
    plan: dict[str, dict[str, float]]  # empty where the device cannot be planned for
    log: list[dict[str, Any]]  # the step lines


def short_run(answers: Answers, rows: list[Check]) -> tuple[Check, ShortRun | None]:
    """Trains a small model in a folder that goes away, as this device can: with the fall-backs of `rows`, and compiled
    where the compiled step worked."""
    settings = {key: value for row in rows for key, value in row.settings}
    compiles = any(row.check == "compiled step" and row.status == "ok" for row in rows)
    config = step_config(answers.device).replace(
        **{"compile": compiles, **settings}, max_iters=_STEPS, lr_decay_iters=_STEPS, log_interval=1
    )
    try:
        with small_data(config) as placed:
            outcome = train(placed)
            end_as_asked(outcome.stopped_by)
            lines = list(read_log(outcome.folder / "log.jsonl"))
    except Exception as error:
        return Check("short run", "action", f"it fails: {first_line(error)}"), None
    log = [
        {key: line[key] for key in _FIELDS if key in line}
        for line in lines
        if line["kind"] == "step"
    ]
    dtype = choose_precision(config.dtype, answers.kind, answers.capability, answers.gcn_arch).dtype
    kept = {key: value for key, value in placed.changed().items() if key not in _NAMED}
    made = ShortRun(kept, dtype, _planned(placed, answers), log)
    return Check("short run", "ok", f"{_summary(made)}; its log is in the report"), made


def _summary(run: ShortRun) -> str:
    seconds = statistics.median(line["step_seconds"] for line in run.log)
    shown = f"{len(run.log)} steps of {show_duration(seconds)}"
    if planned := run.plan.get("step_seconds"):
        low, high = (show_duration(planned[end]) for end in ("low", "high"))
        shown += f", planned {low} to {high}"
    return shown


def _planned(config: RunConfig, answers: Answers) -> dict[str, dict[str, float]]:
    if answers.facts is None:
        return {}
    try:
        made = plan(config, answers.facts)
    except OnecardError:
        return {}
    figures: dict[str, Range] = {
        "step_seconds": made.time.step_seconds,
        "tokens_per_second": made.time.tokens_per_second,
        "mfu": made.mfu.card,
    }
    if answers.kind == "cuda":  # elsewhere the log holds the whole process's memory
        figures["memory_bytes"] = made.memory.allocated_bytes
    return {
        name: {"low": figure.low, "mid": figure.mid, "high": figure.high}
        for name, figure in figures.items()
    }
