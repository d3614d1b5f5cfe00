"""Predictions for people nobody here knew: readings predicted before they were looked at, one table from the other, and each
project's code from all other projects'. What docs/accuracy.md says of unseen runs comes from here.

    python bench/unseen.py

A batch of unseen runs was written down and committed before anything was predicted for it; its file of predictions has what the constants of
the commit before gave. The first three and the fifth batch are fitted on since (of the fifth, its times); the others' misses count for the
ranges of time alone.
"""

import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit import memory, speed  # noqa: E402
from fit.runs import ALL_TABLES, DATA, UNFITTED, Run, all_runs, read_runs  # noqa: E402

from bench.accuracy import predict  # noqa: E402
from bench.score import Answer, by_family, family_mean, is_geforce, percent, score  # noqa: E402

FIRST = ("public_runs.csv", "extra_runs.csv")
SECOND = ("public_runs_2.csv",)
HEAD = [
    "| predicted | from | | rows | median | families' mean | GeForce | compiled | not | in the 80 % range |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


@dataclass(frozen=True)
class Batch:
    """Tables of fit/data: runs and losses that nobody here had seen, and what was predicted for them before they were looked at."""

    name: str
    runs: str
    losses: str
    predictions: str


BATCHES = tuple(
    Batch(
        name,
        f"blind_runs{'' if number == 1 else f'_{number}'}.csv",
        f"public_losses_{number + 2}.csv",
        f"blind_predictions{'' if number == 1 else f'_{number}'}.csv",
    )
    for number, name in enumerate(
        ("first", "second", "third", "fourth", "fifth", "sixth", "seventh"), 1
    )
)


def blind(batch: Batch) -> list[Answer]:
    """As predicted before the rows were known; those of quality C, as they were called then, left out."""
    with (DATA / batch.predictions).open(encoding="utf-8", newline="") as table:
        return [
            Answer(
                row["id"],
                row["family"],
                row["kind"],
                predicted=float(row["predicted"]),
                low=float(row["low"]),
                high=float(row["high"]),
                measured=float(row["measured"]),
                quality=row["quality"],
            )
            for row in csv.DictReader(table)
            if row["quality"] != "C"
        ]


def read(names: tuple[str, ...]) -> list[Run]:
    return [run for name in names for run in read_runs(DATA / name) if run.quality != "C"]


def from_others(runs: list[Run], known: list[Run], unfitted: Iterable[Run] = ()) -> list[Answer]:
    """These runs by constants of the known ones alone; the misses of `unfitted` count for the ranges of time."""
    families = {run.family for run in runs}
    return predict(
        runs,
        dict.fromkeys(families, speed.fit_from(known, unfitted)),
        dict.fromkeys(families, memory.fit_from(known)),
    )


def by_project() -> list[Answer]:
    """Each project's rows by constants and ranges from all other projects'."""
    runs = [run for run in all_runs() if run.quality != "C" and run.workload is not None]
    projects = sorted({run.workload.stack for run in runs if run.workload})
    answers = []
    for project in projects:
        own = [run for run in runs if run.workload and run.workload.stack == project]
        rest = [run for run in runs if run.workload and run.workload.stack != project]
        answers += from_others(own, rest)
    return answers


def by_card(name: str) -> list[Answer]:
    """One card's rows by constants that saw no family with that card in it."""
    runs = [run for run in all_runs() if run.quality != "C" and run.device]
    own = [run for run in runs if run.device and run.device.name == name]
    families = {run.family for run in own}
    return from_others(own, [run for run in runs if run.family not in families])


def from_other_tables(table: str) -> list[Answer]:
    """A table left out whole, of constants and ranges: its own rows, and other rows of its families."""
    runs = read((table,))
    families = {run.family for run in runs}

    def others(names: Iterable[str]) -> list[Run]:
        return [run for run in read(tuple(names)) if run.family not in families]

    return from_others(
        runs,
        others(name for name in ALL_TABLES if name != table),
        others(name for name in UNFITTED if name != table),
    )


def lines() -> list[str]:
    """A Markdown table, time and memory of each experiment."""
    names = (*ALL_TABLES, *UNFITTED)
    runs = {run.id: run for name in names for run in read_runs(DATA / name)}
    experiments: dict[tuple[str, str], list[Answer]] = {
        **{(f"the {batch.name} batch", "before it was known"): blind(batch) for batch in BATCHES},
        ("the second table", "the first"): from_others(read(SECOND), read(FIRST)),
        ("the first table", "the second"): from_others(read(FIRST), read(SECOND)),
        ("the second table", "all other tables"): from_other_tables(*SECOND),
        **{
            (f"the {batch.name} batch", "all other tables"): from_other_tables(batch.runs)
            for batch in BATCHES
        },
        ("the RTX 4070's runs", "all other cards'"): by_card("RTX 4070"),
        ("each project's code", "all other projects'"): by_project(),
    }
    rows = list(HEAD)
    for (what, known), answers in experiments.items():
        for kind in ("time", "memory"):
            rows.append(f"| {what} | {known} | {kind} | {_figures(answers, kind, runs)} |")
    return rows


def _figures(answers: list[Answer], kind: str, runs: dict[str, Run]) -> str:
    kept = [answer for answer in answers if answer.kind == kind and answer.scored]
    whole: dict[str, Any] = score(kept)
    compiled = {id: run.workload.compiled for id, run in runs.items() if run.workload}
    geforce = [answer for answer in kept if on_geforce(runs[answer.id])]
    parts = [geforce, *([a for a in geforce if compiled[a.id] is way] for way in (True, False))]
    mean = family_mean(by_family(kept), "median_abs_error")
    cells = [
        str(whole["n"]),
        percent(whole["median_abs_error"]),
        percent(mean),
        *(_median(part) for part in parts),
        f"{whole['coverage']:.0%}",
    ]
    return " | ".join(cells)


def _median(answers: list[Answer]) -> str:
    return f"{percent(score(answers)['median_abs_error'])} ({len(answers)})" if answers else "–"


def on_geforce(run: Run) -> bool:
    return run.device is not None and is_geforce(run.device.name)


if __name__ == "__main__":
    print("\n".join(lines()))
