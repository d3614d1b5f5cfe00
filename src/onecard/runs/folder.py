"""Our own run folders as Runs.

run = read_folder(Path("out"))
"""

import math
import statistics
from pathlib import Path
from typing import Any

from onecard.config import KEYS, RunConfig
from onecard.errors import UserError
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord
from onecard.runs.run import Run, RunBuilder
from onecard.untrusted import printable

_MOST = 4096
_CHANGES = 20  # that are shown


def read_folder(path: Path) -> Run | None:
    """The run of a folder; None while it has logged nothing."""
    record = RunRecord.open(path)
    builder = RunBuilder(path.name or str(path), "onecard", str(path))
    run = builder.run
    try:
        _config(builder, record.config())
    except UserError:
        builder.unreadable("config.toml")
    gathered: dict[str, list[float]] = {"memory_bytes": [], "data_wait": [], "watts": []}
    if record.log_path.is_file():
        lines = read_log(record.log_path)
        for line in lines:
            _line(builder, line, gathered)
        run.superseded += lines.superseded
        run.unreadable += lines.unreadable
    run.memory_bytes = max(gathered["memory_bytes"], default=None)
    run.data_wait = statistics.median(gathered["data_wait"]) if gathered["data_wait"] else None
    run.watts = statistics.median(gathered["watts"]) if gathered["watts"] else None
    run.plan = record.plan()
    run.state = record.state
    return builder.done()


def _config(builder: RunBuilder, config: RunConfig) -> None:
    for key in KEYS:
        builder.know(key, getattr(config, key), "config")
    builder.tokens_per_step(config.tokens_per_step, "config")
    builder.run.max_steps = config.max_iters
    builder.run.vocab_size = config.shape.vocab_size


def _line(builder: RunBuilder, line: dict[str, Any], gathered: dict[str, list[float]]) -> None:
    run, kind, step = builder.run, line.get("kind"), line.get("step")
    if kind == "start":
        _start(builder, line)
    elif kind == "step" and isinstance(step, int):
        builder.step(
            step,
            loss=_loss(line, "loss"),
            seconds=_number(line, "step_seconds"),
            mfu=_number(line, "mfu"),
        )
        for key, values in gathered.items():
            value = _number(line, key)
            if value is not None and len(values) < _MOST:
                values.append(value)
        run.kwh = _number(line, "kwh") or run.kwh
        run.wall_seconds = _number(line, "seconds") or run.wall_seconds
    elif kind == "eval" and isinstance(step, int):
        figures = {key: _loss(line, key) for key in ("val_loss", "train_loss", "bits_per_byte")}
        builder.eval(step, **figures)
    elif kind == "event" and isinstance(line.get("event"), str):
        builder.sign(line["event"])
        if line["event"] == "run_changed" and isinstance(step, int) and len(run.changes) < _CHANGES:
            before, after = (printable(str(line.get(key))[:60]) for key in ("before", "after"))
            run.changes.append(
                (step, f"{printable(str(line.get('key'))[:40])}: {before} → {after}")
            )
    elif kind not in ("step", "eval", "event", "checkpoint", "sample", "end"):
        builder.unreadable(str(line))


def _start(builder: RunBuilder, line: dict[str, Any]) -> None:
    run = builder.run
    where = line.get("environment")
    named = where.get("gpu") if isinstance(where, dict) else None
    run.gpu = named if isinstance(named, str) else run.gpu or _text(line, "device")
    run.dtype = _text(line, "dtype") or run.dtype
    run.dataset_tokens = _whole(line, "dataset_tokens") or run.dataset_tokens
    run.params_total = _whole(line, "parameters") or run.params_total
    run.gpus = _whole(line, "processes") or run.gpus
    run.peak_flops = run.printed_peak_flops = _number(line, "peak_flops") or run.peak_flops


def _loss(line: dict[str, Any], key: str) -> float | None:
    """A number, or the NaN that a lost run logs, which must not be hidden."""
    value = line.get(key)
    return value if isinstance(value, float) and not math.isfinite(value) else _number(line, key)


def _number(line: dict[str, Any], key: str) -> float | None:
    value = line.get(key)
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        else None
    )


def _whole(line: dict[str, Any], key: str) -> int | None:
    value = line.get(key)
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**18
        else None
    )


def _text(line: dict[str, Any], key: str) -> str | None:
    value = line.get(key)
    return value if isinstance(value, str) else None
