"""What a learning rate and a batch off the best ones cost, from a public sweep over rate, batch, size and tokens.

>>> found = fit_settings()
>>> 1e-3 < found["rate"] < 4e-3, 1e5 < found["batch"] < 1e6
(True, True)

The sweep: 1,850 runs of modern blocks with AdamW, cosine to 1e-5, 17 pairs of size and tokens (215 M to 1.07 B, 4 to 100 B), each with
some 110 rates and batches (step-law/steplaw, data/dense_lr_bs_loss.csv, "smooth loss"; Li et al. 2025, arXiv 2503.04715). For all pairs
together, one parabola in the logarithms of both: the best rate falls with size and rises with tokens, the best batch rises with
tokens, a larger batch wants a higher rate, and the longer the run, the flatter it is. FineWeb's own sweep over rates ("misfitting")
tests it where runs are as long, and is not fitted there; its shorter runs (0.5 to 4 B tokens) give what a low rate costs more in them,
which another sweep ("donglinkang") tests: `python -m fit.learning_rate`.
"""

import csv
import math
from collections import defaultdict

import numpy as np
from scipy.optimize import least_squares

from fit.losses import DATA, Point, read_losses
from onecard.planner.loss_settings import SWEPT_TOKENS, settings_cost

SIZE, TOKENS, RATIO = (
    124e6,
    1e10,
    20.0,
)  # what `rate` and `batch` are of, and `bends` (tokens a parameter)
SHORTEST = (
    5e8  # tokens; in the sweep's shorter runs, of 500 steps and fewer, the warm-up is what counts
)
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
    return fit_short({**found, "rate": math.exp(found["rate"]), "batch": math.exp(found["batch"])})


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


def fit_short(made: dict[str, float]) -> dict[str, float]:
    """What a rate below the best costs in runs shorter than the sweep, each size and length with its own level."""
    groups = [
        near for near in map(_near, rate_sweep()) if SHORTEST <= near[0].tokens < SWEPT_TOKENS[0]
    ]

    def residuals(theta: np.ndarray) -> np.ndarray:
        here = {**made, "short": float(theta[0])}
        return np.concatenate([_misses(here, runs) for runs in groups]) / 0.03

    return {**made, "short": float(least_squares(residuals, [0.4], loss="soft_l1").x[0])}


def rate_sweep(
    family: str = "misfitting", table: str = "public_losses.csv", optimizer: str = "adamw"
) -> list[list[Point]]:
    """The runs of a sweep over rates, together where size and tokens are the same."""
    groups: dict[tuple[float, float], list[Point]] = defaultdict(list)
    for point in read_losses(DATA / table):
        if point.family == family and point.row["lr"] and point.recipe.endswith(optimizer):
            groups[point.size, point.tokens].append(point)
    return [runs for runs in groups.values() if len(runs) > 1]


def _near(runs: list[Point]) -> list[Point]:
    least = min(run.loss or 0 for run in runs)
    return [run for run in runs if (run.loss or 0) < least + WORST]


def _costs(made: dict[str, float], runs: list[Point]) -> np.ndarray:
    """What the planner says that their rates and batches cost."""
    fit = {"settings": made}
    return np.array(
        [settings_cost(r.config, r.size, r.tokens, r.recipe, fit) for r in runs if r.config]
    )


def _misses(made: dict[str, float], runs: list[Point]) -> np.ndarray:
    cost, loss = _costs(made, runs), np.array([run.loss for run in runs])
    return np.asarray(cost - cost.mean() - (loss - loss.mean()))


def on_fineweb(made: dict[str, float]) -> list[float]:
    """How far off the cost is on the runs of FineWeb's sweep that it is not fitted on, in nats, each size and length centred."""
    groups = [near for near in map(_near, rate_sweep()) if len(near) >= 3]
    long = [runs for runs in groups if runs[0].tokens >= SWEPT_TOKENS[0]]
    return [float(miss) for runs in long for miss in _misses(made, runs)]


if __name__ == "__main__":
    found = fit_settings()
    print(found)
    off = np.abs(on_fineweb(found))
    print(
        f"FineWeb's sweep, 4 B tokens and more: {len(off)} runs, median {np.median(off):.3f}, 90 % {np.quantile(off, 0.9):.3f} nats"
    )
    print("a sweep of 0.3 B tokens that nothing was fitted on, above its best rate:")
    (runs,) = rate_sweep("donglinkang", "public_losses_5.csv")
    least = min(run.loss or 0 for run in runs)
    with_it, without = (_costs(made, runs) for made in (found, {**found, "short": 0.0}))
    for i, run in enumerate(runs):
        print(
            f"  {run.row['lr']}: {(run.loss or 0) - least:+.3f} nats, predicted {with_it[i] - with_it.min():+.3f}, "
            f"without the short runs' term {without[i] - without.min():+.3f}"
        )
