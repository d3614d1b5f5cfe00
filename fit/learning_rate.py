"""What a learning rate and a batch off the best ones cost, from a public sweep over rate, batch, size and tokens.

>>> found = fit_settings()
>>> 1e-3 < found["rate"] < 4e-3, 1e5 < found["batch"] < 1e6
(True, True)

The sweep: 1,850 runs of modern blocks with AdamW, cosine to 1e-5, 17 pairs of size and tokens (215 M to 1.07 B, 4 to 100 B), each with
some 110 rates and batches (step-law/steplaw, data/dense_lr_bs_loss.csv, "smooth loss"; Li et al. 2025, arXiv 2503.04715). For all pairs
together, one parabola in the logarithms of both: the best rate falls with size and rises with tokens, the best batch rises with
tokens, a larger batch wants a higher rate, and the longer the run, the flatter it is. FineWeb's own sweep over rates ("misfitting")
is not fitted, and tests it: `python -m fit.learning_rate`.
"""

import csv
import math
from collections import defaultdict

import numpy as np
from scipy.optimize import least_squares

from fit.losses import DATA

SIZE, TOKENS, RATIO = (
    124e6,
    1e10,
    20.0,
)  # what `rate` and `batch` are of, and `bends` (tokens a parameter)
WORST = 0.4  # nats above the best: beyond it a run diverged rather than trained badly
START = [math.log(2e-3), -0.5, 0.2, math.log(3e5), 0.6, 0.03, 0.02, -0.015, -0.2]
NAMES = ("rate", "rate_size", "rate_tokens", "batch", "batch_tokens", "rate_bend", "batch_bend")


def fit_settings() -> dict[str, float]:
    """The best rate and batch at SIZE and TOKENS, their powers, and the parabola's bends."""
    groups = _groups()
    rows = [
        (i, *key, *run)
        for i, (key, runs) in enumerate(sorted(groups.items()))
        for run in runs
        if run[2] < min(loss for *_, loss in runs) + WORST
    ]
    group, size, tokens, rate, batch, loss = np.array(rows).T
    group = group.astype(int)
    least = [min(loss for *_, loss in runs) for _, runs in sorted(groups.items())]

    def residuals(theta: np.ndarray) -> np.ndarray:
        cost = _cost(theta, size, tokens, rate, batch)
        miss = (theta[len(START) :][group] + cost - loss) / 0.02
        return np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss**2) - 1))

    best = least_squares(residuals, [*START, *least]).x[: len(START)]
    found = dict(zip((*NAMES, "both", "length"), map(float, best), strict=True))
    return {**found, "rate": math.exp(found["rate"]), "batch": math.exp(found["batch"])}


def _cost(
    theta: np.ndarray, size: np.ndarray, tokens: np.ndarray, rate: np.ndarray, batch: np.ndarray
) -> np.ndarray:
    rate0, rate_size, rate_tokens, batch0, batch_tokens, bend, batch_bend, both, length = theta[:9]
    longer = np.log(tokens / TOKENS)
    u = np.log(rate) - rate0 - rate_size * np.log(size / SIZE) - rate_tokens * longer
    v = np.log(batch) - batch0 - batch_tokens * longer
    flatter = (tokens / size / RATIO) ** length
    return np.asarray(flatter * (bend * u**2 + batch_bend * v**2 + both * u * v))


def _groups() -> dict[tuple[float, float], list[tuple[float, float, float]]]:
    found: dict[tuple[float, float], list[tuple[float, float, float]]] = defaultdict(list)
    with (DATA / "rate_batch_sweep.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            key = (float(row["n_params_nonemb_m"]) * 1e6, float(row["tokens_b"]) * 1e9)
            found[key].append(
                (float(row["lr"]), float(row["batch_tokens"]), float(row["loss_nats"]))
            )
    return found


def on_fineweb() -> list[float]:
    """How far off the cost is on a sweep that it is not fitted on: nats, run by run, each size and length against its best rate."""
    groups: dict[tuple[float, float], list[tuple[float, float]]] = defaultdict(list)
    with (DATA / "public_losses.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            if row["source_family"] == "misfitting" and row["lr"] and row["n_params_active_m"]:
                key = (float(row["n_params_active_m"]) * 1e6, float(row["tokens_seen_b"]) * 1e9)
                groups[key].append((float(row["lr"]), float(row["loss_nats"])))
    made = fit_settings()
    theta = np.array(
        [
            math.log(made[n]) if n in ("rate", "batch") else made[n]
            for n in (*NAMES, "both", "length")
        ]
    )
    misses = []
    for (size, tokens), runs in groups.items():
        rates, losses = np.array(runs).T
        near = losses < losses.min() + WORST
        if near.sum() >= 3:
            ones = np.ones(near.sum())
            cost = _cost(theta, size * ones, tokens * ones, rates[near], 2.0**20 * ones)
            misses += list(cost - cost.mean() - (losses[near] - losses[near].mean()))
    return misses


if __name__ == "__main__":
    off = np.abs(on_fineweb())
    print(fit_settings())
    print(
        f"FineWeb's sweep: {len(off)} runs, median {np.median(off):.3f}, 90 % {np.quantile(off, 0.9):.3f} nats"
    )
