"""Fit what a card shows beyond what torch allocates, and how far to trust it; writes src/onecard/facts/memory_fit.json.

    python fit/memory.py            # fits, prints the residuals with each family left out, writes the constants
    python fit/memory.py --reports DIR    # also on the report files of `onecard doctor` in a folder

What is allocated is counted, not fitted (planner/memory). Fitted are the CUDA context (a constant and a part that grows with
the card's units), the share of late tensors that hide in the logits' place, and the range. A guess pulls on each
constant, so that a family left out is predicted from the others and the guess, never from itself.
"""

import csv
import json
import math
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.conformal import Miss, ranges  # noqa: E402
from fit.held_out import leave_out  # noqa: E402
from fit.reports import runs_asked_for  # noqa: E402
from fit.runs import Run, all_runs, time_only  # noqa: E402
from onecard.planner.memory import StepMemory, step_memory  # noqa: E402
from onecard.planner.memory.overhead import context_of, range_kind, simulated  # noqa: E402
from onecard.planner.result import Range  # noqa: E402
from onecard.units import MIB  # noqa: E402

OUT = ROOT / "src" / "onecard" / "facts" / "memory_fit.json"
# Before any reading: a CUDA context is 300–500 MiB in torch's forum and documentation, whatever the card.
GUESS = {"context_bytes": 450 * MIB, "context_bytes_per_unit": 0.0, "late_share": 1.0}
# How strongly each guess pulls, as the size of a change that weighs as much as a family that is one per cent off.
PULL = {"context_bytes": 200 * MIB, "context_bytes_per_unit": 4 * MIB, "late_share": 0.2}
STEP = {"context_bytes": 10 * MIB, "context_bytes_per_unit": 0.2 * MIB, "late_share": 0.02}
FIXED = {
    "nccl_bytes": 500 * MIB
}  # NCCL's buffers and a second context's share; one row (22,001 MiB on an H800) agrees

KINDS = ("traced", "other", "odd")  # planner/memory/overhead.py, range_kind
TRACED = ("nanogpt", "hf", "textbook")  # whose modules fit/memory_traces.py and the tests trace


@dataclass(frozen=True)
class Reading:
    run: Run
    bytes: float


def readings(runs: list[Run] | None = None) -> list[Reading]:
    """The PyTorch rows with a memory reading that is not an estimate."""
    found = []
    for run in all_runs() if runs is None else runs:
        if run.workload is None or run.memory_gb is None or run.foreign or run.quality == "C":
            continue
        if run.family in time_only():
            continue
        found.append(Reading(run, run.memory_gb * run.memory_unit))
    return found


def reading_of(memory: StepMemory, run: Run) -> Range:
    """What the row's author read: the allocator's own count, what it holds, or what the card shows."""
    readings = {
        "allocated": memory.allocated,
        "reserved": memory.reserved,
        "process": memory.process,
    }
    return readings[run.memory_reading]


def error(reading: Reading, fit: dict[str, Any]) -> float:
    run = reading.run
    assert run.workload is not None
    assert run.device is not None
    return reading_of(step_memory(run.workload, run.device, fit), run).mid / reading.bytes - 1


def _whole(values: dict[str, float]) -> dict[str, Any]:
    return {
        **values,
        **FIXED,
        "spread": [0.0, 0.0],
        "other_spread": {kind: [0.0, 0.0] for kind in KINDS},
    }


class Errors:
    """`error` of many readings at once: what does not depend on the fitted constants is worked out beforehand."""

    def __init__(self, readings: list[Reading]) -> None:
        runs = [(r.run.workload, r.run.device) for r in readings if r.run.workload and r.run.device]
        found = [simulated(work) for work, _ in runs]
        self.measured = np.array([reading.bytes for reading in readings])
        self.peak = np.array([each.peak.bytes for each in found])
        self.first_buffer = np.array([each.first_buffer for each in found])
        self.after_forward = np.array([each.after_forward for each in found])
        self.streams = np.array([each.streams for each in found])
        self.card = np.array([device.kind == "cuda" for _, device in runs])
        self.units = np.array([device.units for _, device in runs])
        nothing = {"context_bytes": 0, "context_bytes_per_unit": 0, **FIXED}
        self.beside = np.array([context_of(work, device, nothing) for work, device in runs])
        shown = [reading.run.memory_reading for reading in readings]
        self.held = np.array([each in ("reserved", "process") for each in shown])
        self.whole = np.array([each == "process" for each in shown])

    def __call__(self, values: dict[str, float]) -> np.ndarray:
        left_over = np.trunc(self.first_buffer - values["late_share"] * self.after_forward)
        slack = self.card * (self.streams + np.maximum(0, left_over))
        context = np.trunc(values["context_bytes"] + values["context_bytes_per_unit"] * self.units)
        shown = self.peak + self.held * slack + self.whole * (self.beside + self.card * context)
        return np.asarray(shown / self.measured - 1)


def fit_memory(readings: list[Reading]) -> dict[str, float]:
    """Coordinate descent from the guess; three constants, so nothing cleverer is needed."""
    errors = Errors(readings)
    _, family = np.unique([reading.run.family for reading in readings], return_inverse=True)
    share = 1 / np.bincount(family)[family]

    def cost(values: dict[str, float]) -> float:
        """Families count alike; errors beyond 3 % are something else than the context, and pull no harder."""
        data = float(share @ np.minimum(0.03, abs(errors(values))) ** 2)
        return data + sum((0.01 * (values[key] - GUESS[key]) / PULL[key]) ** 2 for key in GUESS)

    values = dict(GUESS)
    best = cost(values)
    scale = 8.0
    while scale >= 1:
        moved = False
        for key in GUESS:
            for sign in (1, -1):
                trial = {**values, key: max(0.0, values[key] + sign * scale * STEP[key])}
                found = cost(trial)
                if found < best - 1e-12:
                    values, best, moved = trial, found, True
        if not moved:
            scale /= 2
    return values


def held_out_fits(readings: list[Reading]) -> dict[str, dict[str, float]]:
    """Constants for each family, fitted on all the others."""
    return leave_out(readings, lambda reading: reading.run.family, fit_memory)


def spread(readings: list[Reading], held_out: dict[str, dict[str, float]]) -> list[float]:
    """How far below and above the prediction one measurement in ten lies where the modules were traced as ours are; a large
    family counts as ten rows. The tests hold our own to such a trace; it is too few projects for a theorem."""
    traced = [reading for reading in readings if _module_was_traced(reading.run)]
    families = Counter(reading.run.family for reading in traced)
    ratios = sorted(
        (_off(reading, held_out), min(1.0, 10 / families[reading.run.family])) for reading in traced
    )
    total = sum(weight for _, weight in ratios)

    def quantile(share: float) -> float:
        reached = 0.0
        for off, weight in ratios:
            reached += weight
            if reached >= share * total:
                return off
        return ratios[-1][0]

    return [round(max(0.01, -quantile(0.1)), 4), round(max(0.01, quantile(0.9)), 4)]


def other_spread(
    readings: list[Reading], held_out: dict[str, dict[str, float]]
) -> dict[str, list[float]]:
    """The 80 % ranges where another project's code ran, by conformal prediction over families."""
    misses = [
        Miss(_kind(reading), reading.run.family, math.log1p(_off(reading, held_out)))
        for reading in readings
    ]
    return {
        kind: [round(1 - math.exp(low), 4), round(math.exp(high) - 1, 4)]
        for kind, (low, high) in ranges(misses, KINDS).items()
    }


def _module_was_traced(run: Run) -> bool:
    """modded-nanogpt before Muon is timed as nanoGPT, but what its modules keep was not traced."""
    own_code = "modded" not in run.row.get("framework", "").lower()
    return run.workload is not None and run.workload.stack in TRACED and own_code


def _kind(reading: Reading) -> str:
    assert reading.run.workload is not None
    return range_kind(reading.run.workload)


def _off(reading: Reading, held_out: dict[str, dict[str, float]]) -> float:
    """Measured over predicted, less one, by constants that never saw the family."""
    return 1 / (1 + error(reading, _whole(held_out[reading.run.family]))) - 1


def fit_from(runs: list[Run]) -> dict[str, Any]:
    """Constants and the ranges of other people's code from these runs alone."""
    known = readings(runs)
    wide = other_spread(known, held_out_fits(known))
    return {**_whole(fit_memory(known)), "spread": wide["other"], "other_spread": wide}


def cross_validated(families: set[str]) -> dict[str, dict[str, Any]]:
    """For each family, constants and range from the readings of all others."""
    known = readings()
    held_out = held_out_fits(known)
    fits = {}
    for family in families:
        others = [reading for reading in known if reading.run.family != family]
        fits[family] = {
            **_whole(held_out.get(family) or fit_memory(others)),
            "spread": spread(others, held_out),
            "other_spread": other_spread(others, held_out),
        }
    return fits


def main() -> int:
    known = readings(runs_asked_for(sys.argv[1:]))
    held_out = held_out_fits(known)
    families: dict[str, list[float]] = {}
    for reading in known:
        off = error(reading, _whole(held_out[reading.run.family]))
        families.setdefault(reading.run.family, []).append(off)
    print(f"{'left out':24}{'rows':>5}{'median':>9}{'p90':>9}{'bias':>9}")
    for family, errors in families.items():
        size = sorted(map(abs, errors))
        print(
            f"{family:24}{len(errors):>5}{statistics.median(size):>9.2%}{size[int(0.9 * (len(size) - 1) + 0.5)]:>9.2%}"
            f"{statistics.mean(errors):>+9.2%}"
        )
    every = sorted(abs(off) for errors in families.values() for off in errors)
    print(
        f"{'all':24}{len(every):>5}{statistics.median(every):>9.2%}{every[int(0.9 * (len(every) - 1) + 0.5)]:>9.2%}"
    )
    values = fit_memory(known)
    # fit/memory_traces.py measures the simulation itself: the range is not narrower than that
    simulation = json.loads(OUT.read_text(encoding="utf-8")).get("simulation", {})
    least = max((kind["nine_in_ten"] for kind in simulation.values()), default=0.0)
    low, high = (max(least, end) for end in spread(known, held_out))
    wide = other_spread(known, held_out)
    for kind, (below, above) in wide.items():
        held = [
            -below <= _off(reading, held_out) <= above
            for reading in known
            if _kind(reading) == kind
        ]
        print(f"{kind}: {-below:+.1%} to {above:+.1%} holds {statistics.mean(held):.0%}, left out")
    answer = {
        "source": "fit/memory.py over the run tables of fit/data, PyTorch rows of quality A and B",
        **{key: round(value, 4) for key, value in values.items()},
        **FIXED,
        "spread": [low, high],
        "other_spread": wide,
        "simulation": simulation,
    }
    with (ROOT / "fit" / "memory_residuals.csv").open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(["id", "family", "kind", "measured_gb", "held_out_gb"])
        for each in known:
            held_gb = each.bytes * (1 + error(each, _whole(held_out[each.run.family]))) / 1e9
            table.writerow(
                [
                    each.run.id,
                    each.run.family,
                    _kind(each),
                    f"{each.bytes / 1e9:.4g}",
                    f"{held_gb:.4g}",
                ]
            )
    OUT.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(answer, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
