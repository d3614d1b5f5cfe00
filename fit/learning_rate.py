"""What a learning rate off the best one costs, from a public sweep over rate, size and tokens.

>>> found = fit_rates()
>>> 1e-3 < found["best"] < 4e-3, 0.02 < found["curvature"] < 0.15
(True, True)

The sweep: 230 runs of modern blocks with AdamW on FineWeb (source family "misfitting" in data/public_losses.csv), a batch of a
million tokens. For each size and length a parabola in the rate's logarithm; the best rate falls with size, and the parabola
is flatter the longer the run. A smaller batch has a lower best rate, by the square root, as is usual for Adam.
"""

import csv
import math
from collections import defaultdict

import numpy as np

from fit.losses import DATA

SIZE, STEPS = 124e6, 1e4  # what `best` and `curvature` are of
SWEEP_BATCH, BATCH, BATCH_POWER = 2**20, 2**19, 0.5
WORST = 0.4  # nats above the best: beyond it a run diverged rather than trained badly


def fit_rates() -> dict[str, float]:
    """Best rate at SIZE and BATCH, its power of size, the parabola's curvature at STEPS steps and its power of steps."""
    groups: dict[tuple[float, float], dict[float, float]] = defaultdict(dict)
    with (DATA / "public_losses.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            if row["source_family"] == "misfitting" and row["lr"] and row["n_params_active_m"]:
                size, tokens = float(row["n_params_active_m"]) * 1e6, float(row["tokens_seen_b"])
                groups[size, tokens * 1e9][float(row["lr"])] = float(row["loss_nats"])
    best, curved = [], []
    for (size, tokens), found in sorted(groups.items()):
        rates, losses = np.log(list(found)), np.array(list(found.values()))
        near = losses < losses.min() + WORST
        if near.sum() < 3:
            continue
        bend, slope, _ = np.polyfit(rates[near], losses[near], 2)
        if bend > 0.01:
            best.append((math.log(size / SIZE), -slope / 2 / bend))
            curved.append((math.log(tokens / SWEEP_BATCH / STEPS), math.log(bend)))
    power, level = _line(best)
    steps_power, curvature = _line(curved)
    return {
        "best": math.exp(level) * (BATCH / SWEEP_BATCH) ** BATCH_POWER,
        "size_power": power,
        "batch_power": BATCH_POWER,
        "curvature": math.exp(curvature),
        "steps_power": steps_power,
        "groups": len(best),
    }


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope and height of the straight line through them."""
    slope, height = np.polyfit([x for x, _ in points], [y for _, y in points], 1)
    return float(slope), float(height)
