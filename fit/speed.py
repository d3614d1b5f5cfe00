"""Fit what cards reach of their specification in training, from public runs and matmul readings. Writes speed_fit.json.

    python -m fit.speed            fit on everything, write src/onecard/facts/speed_fit.json and fit/speed_residuals.csv
    python -m fit.speed --check    only say whether the committed file is what this script makes
    python -m fit.speed --reports DIR    fit also on the report files of `onecard doctor` in a folder

Few numbers, each with a prior from physics: a share of the card's measured matmul rate, a share of its bandwidth, attention's
share by class of card, host time per kernel; a small effect per class of card; and one effect per source family and
stack, which soaks up how well somebody's code was written, so that it does not pass for a property of the card.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.held_out import leave_out, quantiles, write  # noqa: E402
from fit.reports import runs_asked_for  # noqa: E402
from fit.runs import DATA, Run, find_card  # noqa: E402
from onecard.errors import UserError  # noqa: E402
from onecard.facts.gpus import all_gpus  # noqa: E402
from onecard.planner.step_counts import Fit  # noqa: E402
from onecard.planner.step_time import step_parts  # noqa: E402

TARGET = ROOT / "src" / "onecard" / "facts" / "speed_fit.json"
COLUMNS = {
    "bfloat16": "bf16_tflops",
    "float16": "fp16_tflops",
    "tf32": "tf32_tflops",
    "float32": "fp32_tflops",
}
# (start, sigma of the logarithm): what physics and kernel benchmarks say before any run is seen
PRIORS = {
    "matmul": (
        0.96,
        0.04,
    ),  # a model's matmuls against the best large one, apart from what tiles and waves cost
    "tile_seconds": (1e-6, 0.5),  # fill and drain of a tile: a microsecond or so
    "wave": (
        0.35,
        0.3,
    ),  # of a wave of tiles: half on average, less what a good choice of tile saves
    "attention_rate": (
        4.5e12,
        0.4,
    ),  # FLOP/s of a unit at which half of the time goes to exponentials: FlashAttention-2, 3
    "old_attention": (2.0, 0.3),
    "bandwidth": (0.85, 0.12),  # STREAM-like kernels reach 0.80–0.93 of the specification
    "eager_bytes": (1.1, 0.2),
    "kernel_seconds": (3e-6, 0.3),
    "host_seconds": (7e-6, 0.3),
    "dropout": (1.2, 0.1),  # masks drawn in every block and inside attention
    "odd_vocab": (2.0, 0.2),
    "odd_vocab_compiled": (1.5, 0.2),
    "half_rate": (1.1, 0.04),
    "overlap": (0.5, 0.3),
}
CLASS_SIGMA, CACHE_SIGMA, FAMILY_SIGMA, ROW_SIGMA = 0.06, 0.15, 0.15, 0.06
FOREIGN_EFFECT = math.log(
    0.93
)  # hand-written CUDA is taken to be 7 % faster than PyTorch, and the data may differ
CENTRE = (
    0.5  # halfway: the families too are a sample, and the cards people plan for are its fast half
)
FLAGGED = "board/cloud-limited"  # a rented card that was throttled: no property of its class


def ceilings() -> dict[str, Any]:
    """Share of the specified rate in the best large matmul, per dtype: card by card where it was read, else by class."""
    readings: dict[str, dict[str, list[float]]] = {dtype: defaultdict(list) for dtype in COLUMNS}
    with (DATA / "measured_matmul.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            try:
                device = find_card(row["device"].replace("*OC", ""), None, [])
            except UserError:
                continue
            if device.rate_class in ("cpu", "measured"):
                continue
            for dtype, column in COLUMNS.items():
                try:
                    share = float(row[column]) * 1e12 / device.peak_flops(dtype)
                except ValueError:
                    continue
                readings[dtype][device.name].append(share)
    with (ROOT / "src" / "onecard" / "facts" / "gpus.csv").open(
        encoding="utf-8", newline=""
    ) as table:
        for row in csv.DictReader(
            table
        ):  # the card table's own readings: "252-269", "88.9 (fp16); 9.85 (bf16)"
            text = row.get("measured_bf16_tflops", "")
            if text and row["rate_class"] not in ("cpu", "measured") and "fp16)" not in text:
                device = find_card(row["name"], None, [])
                values = [float(part) for part in text.split(" ")[0].split("-")]
                readings["bfloat16"][device.name].append(
                    float(np.mean(values)) * 1e12 / device.peak_flops("bfloat16")
                )
                readings["float16"][device.name].append(readings["bfloat16"][device.name][-1])
    kinds = {device.name: device.rate_class for device in all_gpus()}
    answer: dict[str, Any] = {}
    for dtype, cards in readings.items():
        middle = {name: float(np.median(values)) for name, values in cards.items()}
        by_class: dict[str, list[float]] = defaultdict(list)
        for name, share in middle.items():
            by_class[kinds[name]].append(share)
        overall = float(np.median(list(middle.values())))
        # geometric mean of a class, with one vote for the middle of all cards
        classes = {
            kind: math.exp(
                (sum(map(math.log, shares)) + 0.5 * math.log(overall)) / (len(shares) + 0.5)
            )
            for kind, shares in by_class.items()
        }
        shrunk = {}
        for (
            name,
            share,
        ) in (
            middle.items()
        ):  # a card's own reading counts as often as it was taken; its class as once
            votes = len(cards[name])
            shrunk[name] = math.exp(
                (votes * math.log(share) + 0.5 * math.log(classes[kinds[name]])) / (votes + 0.5)
            )
        answer[dtype] = {
            "default": round(overall, 3),
            "classes": {kind: round(share, 3) for kind, share in sorted(classes.items())},
            "cards": {name: round(share, 3) for name, share in sorted(shrunk.items())},
        }
    return answer


def usable(run: Run) -> bool:
    """Rows to fit on: readable, with a time, not second-hand (quality C) and not known to be throttled."""
    flags = run.row.get("flags", "")
    return (
        run.trouble is None
        and run.step_seconds is not None
        and run.quality in ("A", "B")
        and FLAGGED not in flags
        and "includes the lazy torch.compile" not in flags
        and "fp8" not in run.row.get("dtype", "")
    )


def predicted_seconds(run: Run, fit: Fit) -> float:
    assert run.workload is not None
    assert run.device is not None
    return sum(step_parts(run.workload, run.device, fit).values())


def measured_seconds(run: Run) -> float:
    assert run.step_seconds is not None
    return run.step_seconds


def _soft(residual: np.ndarray) -> np.ndarray:
    """Residuals whose squares grow only like their size beyond one sigma (soft-l1)."""
    return np.asarray(np.sign(residual) * np.sqrt(2 * (np.sqrt(1 + residual**2) - 1)))


def fit_speed(
    runs: Iterable[Run], ceiling: dict[str, Any] | None = None
) -> tuple[Fit, dict[str, float]]:
    """The constants that fit these runs best, and each family's own factor (measured over predicted)."""
    rows = [run for run in runs if usable(run)]
    groups = [f"{run.family}{' (foreign)' if run.foreign else ''}" for run in rows]
    families, kinds = (
        sorted(set(groups)),
        sorted({run.device.rate_class for run in rows if run.device}),
    )
    makes = sorted({run.device.architecture for run in rows if run.device})
    starts, sigmas = (
        [math.log(start) for start, _ in PRIORS.values()],
        [sigma for _, sigma in PRIORS.values()],
    )
    n = len(starts)
    c, m = n + len(kinds), n + len(kinds) + len(makes)
    stacks = [FOREIGN_EFFECT if "(foreign)" in family else 0.0 for family in families]
    start = np.array(starts + [0.0] * (len(kinds) + len(makes)) + stacks)
    sigma = np.array(
        sigmas
        + [CLASS_SIGMA] * len(kinds)
        + [CACHE_SIGMA] * len(makes)
        + [FAMILY_SIGMA] * len(families)
    )
    share = ceiling or ceilings()
    measured = np.log([measured_seconds(run) for run in rows])
    member = np.array([families.index(group) for group in groups])
    size = np.bincount(member)[member]
    weight = 1 / (
        ROW_SIGMA * np.sqrt(np.maximum(1.0, size / 4))
    )  # a sweep of one script is no 40 opinions

    def unpack(theta: np.ndarray) -> Fit:
        values = np.exp(theta[:n])
        return {
            **{name: float(v) for name, v in zip(PRIORS, values, strict=True)},
            "classes": {kind: float(np.exp(v)) for kind, v in zip(kinds, theta[n:c], strict=True)},
            "caches": {make: float(np.exp(v)) for make, v in zip(makes, theta[c:m], strict=True)},
            "ceilings": share,
        }

    def residuals(theta: np.ndarray) -> np.ndarray:
        fit = unpack(theta)
        effects = theta[m:]
        predicted = np.log([predicted_seconds(run, fit) for run in rows])
        data = (measured - predicted - effects[member]) * weight
        prior = (theta - start) / sigma
        # an odd row, and a family of odd rows, pulls, but not with its square
        return np.concatenate([_soft(data), prior[:m], _soft(prior[m:])])

    best = least_squares(residuals, start, method="trf", max_nfev=40)
    fit = unpack(best.x)
    effects = {family: float(np.exp(v)) for family, v in zip(families, best.x[m:], strict=True)}
    # the middle of PyTorch's families is what the next PyTorch run is predicted as
    centre = math.exp(
        float(np.median([math.log(v) for name, v in effects.items() if "(foreign)" not in name]))
        * CENTRE
    )
    fit["matmul"], fit["bandwidth"] = fit["matmul"] / centre, fit["bandwidth"] / centre
    return fit, {family: effect / centre for family, effect in effects.items()}


def held_out_fits(runs: list[Run], ceiling: dict[str, Any] | None = None) -> dict[str, Fit]:
    """For each family, the constants fitted on all the others."""
    share = ceiling or ceilings()
    return leave_out(runs, lambda run: run.family, lambda rest: fit_speed(rest, share)[0])


def plain(run: Run) -> bool:
    """One card, compiled, flash attention: what onecard itself trains with."""
    w = run.workload
    return w is not None and w.gpus == 1 and w.compiled and w.flash and not w.dropout


def spread(runs: list[Run], fits: dict[str, Fit]) -> dict[str, list[float]]:
    """The 80 % range as factors of the prediction, from families that the constants never saw."""
    answer = {}
    for kind in ("plain", "other"):
        kept = [r for r in runs if tested(r) and not r.foreign and (kind == "other" or plain(r))]
        misses = [
            math.log(measured_seconds(run) / predicted_seconds(run, fits[run.family]))
            for run in kept
        ]
        low, high = quantiles(misses, [run.family for run in kept], (0.09, 0.91))
        answer[kind] = [round(math.exp(min(low, -0.08)), 3), round(math.exp(max(high, 0.08)), 3)]
    # a class of cards that no run was fitted on: its matmul rate is off by a further 15 % or so
    answer["class"] = [round(answer["other"][0] * 0.85, 3), round(answer["other"][1] * 1.18, 3)]
    return answer


def tested(run: Run) -> bool:
    return run.trouble is None and run.step_seconds is not None and run.quality != "C"


def main() -> int:
    runs = runs_asked_for(sys.argv[1:])
    share = ceilings()
    fit, families = fit_speed(runs, share)
    fits = held_out_fits(runs, share)
    made = {
        "source": "fit/speed.py from public_runs.csv, extra_runs.csv and measured_matmul.csv; do not edit by hand",
        "priors": {
            name: {"middle": middle, "sigma": sigma} for name, (middle, sigma) in PRIORS.items()
        },
        "families": families,
        "spread": spread(runs, fits),
        **fit,
    }
    rows = []
    for run in filter(tested, runs):
        both = [predicted_seconds(run, f) for f in (fit, fits[run.family])]
        rows.append(
            [
                run.id,
                run.family,
                run.device.name if run.device else "",
                *(f"{value:.4g}" for value in (run.step_seconds, *both)),
            ]
        )
    head = ["id", "family", "card", "measured_seconds", "fitted_seconds", "held_out_seconds"]
    return write(
        TARGET, made, ROOT / "fit" / "speed_residuals.csv", head, rows, "--check" in sys.argv
    )


if __name__ == "__main__":
    sys.exit(main())
