"""Predictions for people nobody here knew: readings predicted before they were looked at, one table from the other, and each
project's code from all other projects'. What docs/accuracy.md says of unseen runs comes from here.

    python bench/unseen.py

fit/data/blind_predictions.csv is what the constants of commit bdeacbe predicted for fit/data/blind_runs.csv, which had been written down and
committed before, blind_predictions_2.csv what those of commit 5ba391d predicted for blind_runs_2.csv and public_losses_4.csv, and
blind_predictions_3.csv what those of commits 316dbae and 2db2fc1 predicted for blind_runs_3.csv and public_losses_5.csv; since then these rows are fitted on like all others.
blind_predictions_4.csv is what those of commit abc2423 predicted for blind_runs_4.csv and public_losses_6.csv, which nothing is fitted on.
blind_predictions_5.csv is what those of commit cafb886 predicted for blind_runs_5.csv and public_losses_7.csv; the runs are fitted on since.
blind_predictions_6.csv is what those of commit c253abc predicted for blind_runs_6.csv and public_losses_8.csv, which nothing is fitted on.
blind_predictions_7.csv is what those of commit 8dbbb03 predicted for blind_runs_7.csv and public_losses_9.csv, which nothing is fitted on.
"""

import csv
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit import memory, speed  # noqa: E402
from fit.runs import DATA, Run, all_runs, read_runs  # noqa: E402

from bench.accuracy import predict  # noqa: E402
from bench.score import Answer, by_family, family_mean, is_geforce, percent, score  # noqa: E402

FIRST = ("public_runs.csv", "extra_runs.csv")
SECOND = ("public_runs_2.csv",)
BLIND = ("blind_runs.csv",)
AGAIN = ("blind_runs_2.csv",)
THIRD = ("blind_runs_3.csv",)
FOURTH = ("blind_runs_4.csv",)
FIFTH = ("blind_runs_5.csv",)
SIXTH = ("blind_runs_6.csv",)
SEVENTH = ("blind_runs_7.csv",)
KNOWN = FIRST + SECOND + BLIND + AGAIN + THIRD
HEAD = [
    "| predicted | from | | rows | median | families' mean | GeForce | in the 80 % range |",
    "|---|---|---|---|---|---|---|---|",
]


def blind(name: str = "blind_predictions.csv") -> list[Answer]:
    """As predicted before the rows were known; those of quality C, as they were called then, left out."""
    with (DATA / name).open(encoding="utf-8", newline="") as table:
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


def from_others(runs: list[Run], known: list[Run]) -> list[Answer]:
    """These runs by constants and ranges of the known ones alone."""
    families = {run.family for run in runs}
    return predict(
        runs,
        dict.fromkeys(families, speed.fit_from(known)),
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


def lines() -> list[str]:
    """A Markdown table, time and memory of each experiment."""
    tables = [read_runs(DATA / name) for name in KNOWN + FOURTH + FIFTH + SIXTH + SEVENTH]
    cards = {run.id: run.device.name for runs in tables for run in runs if run.device}
    experiments: dict[tuple[str, str], list[Answer]] = {
        ("further readings", "constants of the day before"): blind(),
        ("a second batch", "constants of the day before"): blind("blind_predictions_2.csv"),
        ("a third batch", "constants of the day before"): blind("blind_predictions_3.csv"),
        ("a fourth batch", "constants of the day before"): blind("blind_predictions_4.csv"),
        ("a fifth batch", "constants of the day before"): blind("blind_predictions_5.csv"),
        ("a sixth batch", "constants of the day before"): blind("blind_predictions_6.csv"),
        ("a seventh batch", "constants of the day before"): blind("blind_predictions_7.csv"),
        ("the second table", "the first"): from_others(read(SECOND), read(FIRST)),
        ("the first table", "the second"): from_others(read(FIRST), read(SECOND)),
        ("the further readings", "both tables"): from_others(read(BLIND), read(FIRST + SECOND)),
        ("the second batch", "all other tables"): from_others(
            read(AGAIN), read(FIRST + SECOND + BLIND + THIRD + FIFTH)
        ),
        ("the third batch", "all other tables"): from_others(
            read(THIRD), read(FIRST + SECOND + BLIND + AGAIN + FIFTH)
        ),
        ("the fourth batch", "all other tables"): from_others(read(FOURTH), read(KNOWN + FIFTH)),
        ("the fifth batch", "all others but the fourth"): from_others(read(FIFTH), read(KNOWN)),
        ("the sixth batch", "all others but the fourth"): from_others(
            read(SIXTH), read(KNOWN + FIFTH)
        ),
        ("the seventh batch", "all others but two"): from_others(
            read(SEVENTH), read(KNOWN + FIFTH)
        ),
        ("the RTX 4070's runs", "all other cards'"): by_card("RTX 4070"),
        ("each project's code", "all other projects'"): by_project(),
    }
    found = list(HEAD)
    for (what, known), answers in experiments.items():
        for kind in ("time", "memory"):
            found.append(f"| {what} | {known} | {kind} | {_figures(answers, kind, cards)} |")
    return found


def _figures(answers: list[Answer], kind: str, cards: dict[str, str]) -> str:
    kept = [answer for answer in answers if answer.kind == kind and answer.scored]
    whole: dict[str, Any] = score(kept)
    geforce = score(answer for answer in kept if is_geforce(cards[answer.id]))
    mean = family_mean(by_family(kept), "median_abs_error")
    return (
        f"{whole['n']} | {percent(whole['median_abs_error'])} | {percent(mean)} | "
        f"{percent(geforce['median_abs_error'])} ({geforce['n']}) | {whole['coverage']:.0%}"
    )


if __name__ == "__main__":
    print("\n".join(lines()))
