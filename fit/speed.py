"""Fit what cards reach of their specification in training, from public runs and matmul readings. Writes speed_fit.json.

    python -m fit.speed            fit on everything, write src/onecard/facts/speed_fit.json and fit/speed_residuals.csv
    python -m fit.speed --check    only say whether the committed file is what this script makes
    python -m fit.speed --reports DIR    fit also on the report files of `onecard doctor` in a folder

Few numbers, each with a prior from physics: a share of the card's measured matmul rate, a share of its bandwidth, attention's
share by class of card, host time per kernel; and effects that are pooled towards one another: a class of cards, a card, a
project's code (stack) and, within it, a source family. What a new run is predicted as is its card in its project's code; how
far families of one project scatter goes into the range.
"""

import math
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.ceilings import ceilings  # noqa: E402
from fit.conformal import Miss, ranges  # noqa: E402
from fit.held_out import write  # noqa: E402
from fit.reports import runs_asked_for  # noqa: E402
from fit.runs import Run, unfitted_runs  # noqa: E402
from fit.speed_problem import (  # noqa: E402
    PRIORS,
    Fitted,
    fit_speed,
    predicted_seconds,
    stack_name,
    tested,
    usable,
)
from onecard.planner.step_counts import Fit  # noqa: E402
from onecard.planner.step_time import RANGES, range_group  # noqa: E402

TARGET = ROOT / "src" / "onecard" / "facts" / "speed_fit.json"
# What is asked of the ranges so that tables of unseen runs are held to 80 %: of five batches that were predicted blind 57 to 72 % of the
# rows were in the ranges, since choices made while looking at rows do not show in families left out. With more than this the first tables,
# families left out, would be held to more than the 92 % that an 80 % range may hold
ASKED = 0.81


def held_out_fits(fitted: Fitted) -> dict[str, Fit]:
    """For each family, the constants without it."""
    families = sorted({run.family for run in fitted.problem.rows})
    return {name: fitted.fit_without({name}) for name in families}


def nested_spread(
    fitted: Fitted, never: frozenset[str] = frozenset(), unfitted: Iterable[Run] = ()
) -> dict[str, list[float]]:
    """The 80 % range by kind of run, as factors of the prediction, from misses of families that the constants never saw, `unfitted`
    among them; `never` are families that neither constants nor range may see."""
    families = sorted({run.family for run in fitted.problem.rows} - never)
    misses = [
        Miss(_kind(run), name, miss)
        for name in families
        for run, miss in fitted.misses(never | {name}, name)
        if not run.foreign
    ]
    fit = fitted.fit_without(never)
    for run in filter(usable, unfitted):
        if run.family in never:
            continue
        miss = math.log((run.step_seconds or 0) / predicted_seconds(run, fit))
        misses.append(Miss(_kind(run), run.family, miss))
    answer = {
        kind: [math.exp(low), math.exp(high)]
        for kind, (low, high) in ranges(misses, RANGES, ASKED).items()
    }
    # a class of cards that no run was fitted on: its matmul rate is off by a further 15 % or so
    answer["class"] = [answer["other"][0] * 0.85, answer["other"][1] * 1.18]
    return answer


def fit_from(runs: list[Run], unfitted: Iterable[Run] = ()) -> Fit:
    """Constants and range from these runs alone, the range from the misses of `unfitted` too."""
    fitted = fit_speed(runs)
    return {**fitted.fit, "spread": nested_spread(fitted, unfitted=unfitted)}


def cross_validated_fits(runs: list[Run], families: set[str]) -> dict[str, Fit]:
    """For each family, constants and range that never saw it: each range from fits that also leave another family out."""
    fitted, unfitted = fit_speed(runs), unfitted_runs()
    return {
        name: {
            **fitted.fit_without({name}),
            "spread": nested_spread(fitted, frozenset({name}), unfitted),
        }
        for name in sorted(families)
    }


def _kind(run: Run) -> str:
    assert run.workload is not None
    assert run.device is not None
    return range_group(run.workload, run.device)


def main() -> int:
    runs = runs_asked_for(sys.argv[1:])
    shares = ceilings()
    fitted = fit_speed(runs, shares)
    fits = held_out_fits(fitted)
    made = {
        "source": "fit/speed.py from the run tables of fit/data and measured_matmul.csv;"
        " do not edit by hand",
        "priors": {
            name: {"middle": middle, "sigma": sigma} for name, (middle, sigma) in PRIORS.items()
        },
        "families": fitted.effects,
        "spread": nested_spread(fitted, unfitted=unfitted_runs()),
        **fitted.fit,
    }
    rows = []
    for run in filter(tested, runs):
        both = [
            predicted_seconds(run, each) for each in (fitted.fit, fits.get(run.family, fitted.fit))
        ]
        rows.append(
            [
                run.id,
                run.family,
                run.device.name if run.device else "",
                stack_name(run),
                *(f"{value:.4g}" for value in (run.step_seconds, *both)),
            ]
        )
    head = [
        "id",
        "family",
        "card",
        "code",
        "measured_seconds",
        "fitted_seconds",
        "held_out_seconds",
    ]
    return write(
        TARGET, made, ROOT / "fit" / "speed_residuals.csv", head, rows, "--check" in sys.argv
    )


if __name__ == "__main__":
    sys.exit(main())
