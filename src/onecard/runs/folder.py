"""Our own run folders as Runs.

run = read_folder(Path("out"))
"""

import copy
import math
import statistics
from pathlib import Path
from typing import Any

from onecard.config import KEYS, RunConfig
from onecard.errors import UserError
from onecard.runs.builder import RunBuilder
from onecard.runs.eval_results import kept
from onecard.runs.exports import noted_exports
from onecard.runs.foreign.numbers import json_number
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord
from onecard.runs.run import ConfigChange, Run
from onecard.untrusted import finite

_MOST = 4096
_MOST_SOURCES = 64
_SHOWN = 120  # characters of a text that a log may hold in full
_MEDIANS = ("data_wait", "cpu_wait", "watts")  # of a step's line, what a run has the median of
_OTHER_KINDS = ("event", "checkpoint", "sample", "tasks", "end")
# Events of our own log, by the names that the rules of `explain` know.
_SIGNS = {"oom": "out-of-memory"}
_EAGER = "compile: off"  # how the preflight's event begins where torch.compile failed


class FolderBuilder:
    """A run folder's lines, taken as they come; `done` may be asked again and again while more arrive."""

    def __init__(self, path: Path):
        self._record = RunRecord.open(path)
        self._builder = RunBuilder(path.name or str(path), "onecard", str(path))
        self._gathered: dict[str, list[float]] = {key: [] for key in ("memory_bytes", *_MEDIANS)}
        try:
            _config(self._builder, self._record.config())
        except UserError:
            self._builder.unreadable("config.toml")

    def add(self, line: dict[str, Any]) -> None:
        _line(self._builder, line, self._gathered)

    def unreadable(self, name: str) -> None:
        self._builder.unreadable(name)

    def left_out(self, unreadable: int, superseded: int) -> None:
        self._builder.left_out(unreadable=unreadable, superseded=superseded)

    def done(self) -> Run | None:
        """The run so far; None while it has logged nothing."""
        builder, gathered = copy.deepcopy(self._builder), self._gathered
        builder.set(
            memory_bytes=max(gathered["memory_bytes"], default=None),
            **{key: statistics.median(gathered[key]) for key in _MEDIANS if gathered[key]},
            plan=self._record.plan(),
            state=self._record.state,
            results=tuple(kept(self._record.path)),
            exports=noted_exports(self._record.path),
        )
        return builder.done()


def read_folder(path: Path) -> Run | None:
    """The run of a folder; None while it has logged nothing."""
    builder = FolderBuilder(path)
    log = RunRecord.open(path).log_path
    if log.is_file():
        lines = read_log(log)
        try:
            for line in lines:
                builder.add(line)
        except OSError:
            builder.unreadable("log.jsonl")
        builder.left_out(unreadable=lines.unreadable, superseded=lines.superseded)
    return builder.done()


def _config(builder: RunBuilder, config: RunConfig) -> None:
    for key in KEYS:
        builder.know(key, getattr(config, key), "config")
    builder.tokens_per_step(config.tokens_per_step, "config")
    builder.set(max_steps=config.max_iters, vocab_size=config.shape.vocab_size)


def _line(builder: RunBuilder, line: dict[str, Any], gathered: dict[str, list[float]]) -> None:
    kind, step = line.get("kind"), _count(line, "step")
    if kind == "start":
        _start(builder, line)
    elif kind == "step" and step is not None:
        builder.step(
            step,
            loss=json_number(line.get("loss")),
            seconds=finite(line.get("step_seconds")),
            mfu=finite(line.get("mfu")),
        )
        _gather(line, gathered)
        kwh, seconds = finite(line.get("kwh")), finite(line.get("seconds"))
        builder.set(kwh=kwh or None, wall_seconds=seconds or None)
    elif kind == "eval" and step is not None:
        names = ("val_loss", "train_loss", "bits_per_byte", "base_val_loss")
        figures = {key: json_number(line.get(key)) for key in names}
        builder.eval(step, _by_source(line.get("sources")), **figures)
    elif kind == "event" and isinstance(line.get("event"), str):
        _event(builder, line, step or 0)
    elif kind in ("step", "eval") or kind not in _OTHER_KINDS:
        builder.unreadable(str(line)[:_SHOWN])


def _gather(line: dict[str, Any], gathered: dict[str, list[float]]) -> None:
    """Of the memory the most there ever was; of the others as many values as a median needs."""
    memory = finite(line.get("memory_bytes"))
    if memory is not None and memory > max(gathered["memory_bytes"], default=-1.0):
        gathered["memory_bytes"] = [memory]
    for key in _MEDIANS:
        if len(gathered[key]) < _MOST and (value := finite(line.get(key))) is not None:
            gathered[key].append(value)


def _event(builder: RunBuilder, line: dict[str, Any], step: int) -> None:
    event = line["event"]
    if event == "config_changed" and isinstance(line.get("key"), str):
        before, after = _scalar(line.get("before")), _scalar(line.get("after"))
        builder.changed(ConfigChange(step, line["key"][:_SHOWN], before, after))
    if event == "preflight" and str(line.get("text")).startswith(_EAGER):
        builder.sign("compile-fallback")
    if event in _SIGNS:
        builder.sign(_SIGNS[event])


def _start(builder: RunBuilder, line: dict[str, Any]) -> None:
    where = line.get("environment")
    named = _text(where, "gpu") if isinstance(where, dict) else None
    peak = finite(line.get("peak_flops"))
    peak = peak if peak is not None and 0 < peak < 1e21 else None
    builder.set(
        gpu=named or builder.get("gpu") or _text(line, "device"),
        dtype=_text(line, "dtype"),
        dataset_tokens=_count(line, "dataset_tokens") or None,
        params_total=_count(line, "parameters") or None,
        gpus=_count(line, "processes", most=100_000) or None,
        peak_flops=peak,
        printed_peak_flops=peak,
    )


def _by_source(losses: Any) -> dict[str, float]:
    """The losses of a mix's sources; what is no such table is as if it were not there."""
    if not isinstance(losses, dict):
        return {}
    pairs = {str(name)[:_SHOWN]: finite(losses[name]) for name in list(losses)[:_MOST_SOURCES]}
    return {name: loss for name, loss in pairs.items() if loss is not None and loss >= 0}


def _count(line: dict[str, Any], key: str, most: int = 10**18) -> int | None:
    value = line.get(key)
    return value if type(value) is int and 0 <= value < most else None


def _text(line: dict[str, Any], key: str) -> str | None:
    value = line.get(key)
    return value[:_SHOWN] if isinstance(value, str) else None


def _scalar(value: Any) -> Any:
    """A config value as a log may hold it; anything else as text."""
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 1e18):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)[:_SHOWN]
