"""Histories as CSV: wandb's exports (a run's history, or a chart of several runs) and litgpt's metrics.csv.

    Step,baseline - train/loss,wide - train/loss          a chart: one run a column
    _step,_timestamp,train/loss,val/loss,lr,mfu           a history: one run

Tabs may stand in place of the commas. Columns are known by their usual names; a cell that is empty says nothing, one that is no number is counted.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain

from onecard.runs.builder import RunBuilder
from onecard.runs.run import Run, check_count

_STEP = (
    "iter",
    "step",
    "_step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "iteration",
)
_NAMES = {
    "loss": ("train/loss", "loss", "train_loss", "training_loss", "train/train_loss", "loss/train"),
    "val_loss": (
        "val/loss",
        "val_loss",
        "eval/loss",
        "eval_loss",
        "valid_loss",
        "validation_loss",
        "loss/val",
    ),
    "bits_per_byte": ("val/bpb", "val_bpb", "bits_per_byte"),
    "seconds": ("step_seconds", "train/dt", "dt", "step_time", "time/step"),
    "milliseconds": ("train/time", "iter_time_ms", "step_ms", "dt_ms"),
    "elapsed": ("_runtime", "runtime", "elapsed", "total_training_time", "wall_time"),
    "clock": ("_timestamp", "timestamp"),
    "mfu": ("mfu", "train/mfu"),
    "lr": ("lr", "learning_rate", "train/learning_rate", "train/lr"),
    "tokens": ("tokens", "total_tokens", "train/tokens"),
}
_SHOWN_CELLS = 20
_FIGURES = {name: figure for figure, names in _NAMES.items() for name in names}


def read_csv(lines: Iterable[str], name: str) -> list[Run]:
    """The runs of a CSV; empty when it has no step column and no loss."""
    lines = iter(lines)
    first = next(lines, "")
    rows = csv.reader(chain([first], lines), strict=False, delimiter="\t" if "\t" in first else ",")
    try:
        heads = [head.strip().strip("﻿\"'") for head in next(rows)]
    except (StopIteration, csv.Error):
        return []
    lower = [head.lower() for head in heads]
    step = next((lower.index(column) for column in _STEP if column in lower), None)
    if step is None:
        return []
    columns = _charts(heads)
    if not columns:
        figures = {figure: i for i, head in enumerate(lower) if (figure := _FIGURES.get(head))}
        columns = {name: figures}
    check_count(len(columns))
    if not any(
        set(figures) & {"loss", "val_loss", "bits_per_byte"} for figures in columns.values()
    ):
        return []
    builders = {run: RunBuilder(run, "csv", name) for run in columns}
    for row in _rows(rows, builders):
        for run, places in columns.items():
            _take(builders[run], row, step, places)
    return [run for builder in builders.values() for run in builder.runs()]


def _charts(heads: list[str]) -> dict[str, dict[str, int]]:
    """The columns of each run where the header is a chart's: "wide - train/loss"."""
    columns: dict[str, dict[str, int]] = {}
    for i, head in enumerate(heads):
        run, _, name = head.rpartition(" - ")
        # its __MIN and __MAX columns are no figures
        if run and (figure := _FIGURES.get(name.lower())):
            columns.setdefault(run, {})[figure] = i
    return columns


def _rows(rows: Iterator[list[str]], builders: dict[str, RunBuilder]) -> Iterator[list[str]]:
    row: list[str] | None = []
    while row is not None:
        try:
            row = next(rows, None)
        except csv.Error as error:
            for builder in builders.values():
                builder.unreadable(str(error))
            continue
        if row:
            yield row


def _take(builder: RunBuilder, row: list[str], step_column: int, columns: dict[str, int]) -> None:
    figures: dict[str | None, float] = {}
    if len(row) <= step_column:
        builder.unreadable(",".join(row[:_SHOWN_CELLS]))
        return
    for figure, column in ((None, step_column), *columns.items()):
        cell = row[column].strip().lower() if column < len(row) else ""
        if cell in ("", "null", "none", "n/a"):
            continue
        try:
            figures[figure] = float(cell)
        except ValueError:
            builder.unreadable(",".join(row[:_SHOWN_CELLS]))
            return
    if None not in figures or not figures[None] >= 0 or figures[None] > 1e12:
        if len(figures) > 0:
            builder.unreadable(",".join(row[:_SHOWN_CELLS]))
        return
    step = int(figures[None])
    if "val_loss" in figures or "bits_per_byte" in figures:
        builder.eval(
            step, val_loss=figures.get("val_loss"), bits_per_byte=figures.get("bits_per_byte")
        )
    if "loss" not in figures:
        return
    seconds = figures.get(
        "seconds", figures["milliseconds"] / 1000 if "milliseconds" in figures else None
    )
    elapsed = figures.get("elapsed", figures.get("clock")) if seconds is None else None
    mfu = figures.get("mfu")
    if mfu is not None and mfu > 1:  # nanoGPT logs per cent to wandb
        mfu /= 100
    builder.step(step, loss=figures["loss"], seconds=seconds, elapsed=elapsed, mfu=mfu)
    if "tokens" in figures and step > 0 and figures["tokens"] % step == 0:
        builder.tokens_per_step(int(figures["tokens"]) // step, "inferred")
