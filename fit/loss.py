"""Fit the loss law, its recipes and the way a curve falls, from public losses. Writes loss_fit.json.

    python -m fit.loss            fit on everything, write src/onecard/facts/loss_fit.json and fit/loss_residuals.csv
    python -m fit.loss --check    only say whether the committed file is what this script makes

Final losses of runs with GPT-2's tokens set the level and the recipes. Three sweeps over size and tokens with a tokenizer of the
same size (open_lm on C4 and RefinedWeb, and FineWeb) help with the two exponents only: each has its own level and recipe.
Any other combination of data set, evaluation and tokenizer with enough runs then gets a level and a worth of its tokens under that law.
"""

import csv
import math
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.held_out import leave_out, write  # noqa: E402
from fit.learning_rate import fit_settings  # noqa: E402
from fit.loss_curves import CURVE, NOISE, fit_curves  # noqa: E402
from fit.loss_evidence import (  # noqa: E402
    FULL_ROWS,
    OwnRow,
    best_sizes,
    modern_runs,
    own_rows,
    own_runs,
)
from fit.loss_expected import final, soft, usable  # noqa: E402
from fit.loss_levels import fit_pairs  # noqa: E402
from fit.loss_ranges import recipe_spread, size_spread, spread  # noqa: E402
from fit.losses import DATA, Point, all_curves, all_losses  # noqa: E402
from onecard.planner.expected_loss import (  # noqa: E402
    effective_tokens,
    law,
    multiplier,
    shortage,
)

TARGET = ROOT / "src" / "onecard" / "facts" / "loss_fit.json"
REUSE_EPOCHS = 15.4  # Muennighoff et al. 2023, "Scaling Data-Constrained Language Models", table 2
RECIPES = {  # log of the data multiplier: start and sigma; GPT-2 with AdamW is 1
    "modern-adamw": (math.log(2.0), 0.5),
    "modern-muon": (math.log(3.3), 0.5),
    "gpt2-muon": (math.log(1.4), 0.3),  # the optimizer's gain in the modern block
    "speedrun": (math.log(4.5), 0.5),
    "speedrun-long": (math.log(8.0), 0.5),
    "soap": (math.log(3.3), 0.5),
    "shampoo": (math.log(3.0), 0.5),
    "other": (math.log(2.0), 0.5),
}
SHAPE = {  # floor, log A, α, log B, β: the Chinchilla shape
    "floor": (2.05, 0.15),
    "size_scale": (math.log(0.78), 0.2),
    "size_power": (0.32, 0.04),
    "data_scale": (math.log(0.87), 0.2),
    "data_power": (0.265, 0.04),
    "untied": (math.log(1.1), 0.1),
    "decay_power": (0.25, 0.1),
    "fade": (0.1, 0.1),
    "undertrained": (0.0, 0.03),
    "fineweb-edu": (-0.22, 0.03),
    "openwebtext": (-0.17, 0.05),
}
SWEEPS = {
    ("gadre-openlm", "c4"): 0.02,
    ("gadre-openlm", "refinedweb"): 0.02,
    ("misfitting", "fineweb(dedup)"): 0.03,
}
ROW_SIGMA, FAMILY_SIGMA = 0.02, 0.03
SWEEP_SIGMA = 0.3  # a hundred runs of three sweeps on other tokens count like a handful
NUDGE = 1e-7  # of a constant, for slopes
SETTINGS = fit_settings()
# nats for a dropout of 1, so 0.05 for 0.1 in one epoch: gpjt's interventions, where leaving it out gained more than the 0.049 of another
DROPOUT = 0.5


def sweeps() -> list[tuple[str, float, float, float]]:
    """(sweep, size, tokens, loss) at the best learning rate for each size and length, at 5 to 500 tokens a parameter."""
    best: dict[tuple[str, float, float], float] = {}
    with (DATA / "public_losses.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            name = (row["source_family"], row["dataset"])
            if name not in SWEEPS or not row["n_params_active_m"] or not row["loss_nats"]:
                continue
            size, tokens = float(row["n_params_active_m"]) * 1e6, float(row["tokens_seen_b"]) * 1e9
            if not 5 < tokens / size < 500 or not 2e7 < size < 2e9 or tokens < 1e9:
                continue
            key = ("/".join(name), size, tokens)
            best[key] = min(best.get(key, 99.0), float(row["loss_nats"]))
    return [(name, size, tokens, loss) for (name, size, tokens), loss in sorted(best.items())]


def fit_loss(points: Iterable[Point], ours: tuple[OwnRow, ...] | None = None) -> dict[str, Any]:
    """The constants of the law that fit these final losses, and our own comparisons of two recipes, best."""
    ours = own_rows() if ours is None else ours
    rows = [point for point in points if usable(point)]
    extra = sweeps()
    names, families = ["/".join(name) for name in SWEEPS], sorted({row.family for row in rows})
    priors = {
        **SHAPE,
        **RECIPES,
        **{f"level {n}": (0.0, 0.3) for n in names},
        **{f"worth {n}": (0.7, 0.5) for n in names},
        **{f"family {f}": (0.0, FAMILY_SIGMA) for f in families},
    }
    keys = list(priors)
    start, sigma = (column([priors[key][i] for key in keys]) for i in (0, 1))
    own = column([key.startswith("family ") for key in keys])
    predict, measured = Rows(rows, keys), column([row.loss for row in rows])
    sizes = Counter(row.family for row in rows)
    strict = ROW_SIGMA * column([max(1, sizes[row.family] / FULL_ROWS) ** 0.5 for row in rows])
    sweep_rows = Sweeps(extra, keys)

    def residuals(theta: np.ndarray) -> np.ndarray:
        """Of each column of constants."""
        prior = (theta - start) / sigma
        # an odd family (another test set, an untuned recipe) pulls, but not with its square
        return np.concatenate(
            [
                soft((measured - predict(theta)) / strict),
                soft((sweep_rows.loss - sweep_rows(theta)) / SWEEP_SIGMA),
                soft(own_runs(theta, keys, ours)),
                soft(best_sizes(theta, keys)),
                np.where(own, soft(prior), prior),
            ]
        )

    def slopes(theta: np.ndarray) -> np.ndarray:
        near = theta[:, None] + NUDGE * np.eye(
            len(theta)
        )  # each constant moved a little, all at once
        return (residuals(near) - residuals(theta[:, None])) / NUDGE

    best = least_squares(
        lambda theta: residuals(theta[:, None])[:, 0], start[:, 0], slopes, max_nfev=100
    )
    return unpack(dict(zip(keys, map(float, best.x), strict=True)))


def column(values: list[Any]) -> np.ndarray:
    return np.array(values)[:, None]


class Rows:
    """`estimate` of many rows at once, for each column of constants: what does not depend on them is worked out beforehand."""

    def __init__(self, rows: list[Point], keys: list[str]) -> None:
        blank = unpack({**{key: start for key, (start, _) in {**SHAPE, **RECIPES}.items()}})
        self.at = {key: keys.index(key) for key in SHAPE}
        self.size = column([row.size for row in rows]) / 1e8
        self.shortage = column([shortage(row.size, row.tokens) for row in rows])
        self.tokens = column([effective_tokens(r.tokens, r.unique, blank) for r in rows]) / 1e9
        self.longer = column(
            [0.0 if r.recipe.endswith("adamw") else math.log(r.tokens / 2e9) for r in rows]
        )
        configs = [row.config for row in rows if row.config]
        self.untied = column([not config.tied for config in configs])
        self.decay = column(
            [
                math.log(c.decay_fraction) if c.decay_lr and c.schedule == "wsd" else 0.0
                for c in configs
            ]
        )
        self.recipe = one_hot([r.recipe for r in rows], keys)
        self.level = one_hot([r.dataset for r in rows], keys) + one_hot(
            [f"family {r.family}" for r in rows], keys
        )
        self.fixed = column([final(r, blank) - _law(r, blank) for r in rows])

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        v = {key: theta[place] for key, place in self.at.items()}
        worth = self.recipe @ theta - v["fade"] * self.longer
        worth += v["untied"] * self.untied + v["decay_power"] * self.decay
        fresh = np.exp(v["data_scale"] - v["data_power"] * (np.log(self.tokens) + worth))
        known = np.exp(v["size_scale"] - v["size_power"] * np.log(self.size))
        level = v["floor"] + self.level @ theta + v["undertrained"] * self.shortage
        return np.asarray(level + known + fresh + self.fixed)


class Sweeps:
    """The law for the sweeps that help with its powers, each with a level and a worth of its own."""

    def __init__(self, rows: list[tuple[str, float, float, float]], keys: list[str]) -> None:
        self.at = {key: keys.index(key) for key in SHAPE}
        self.size, self.tokens = (np.log(column([row[i] for row in rows])) for i in (1, 2))
        self.loss = column([row[3] for row in rows])
        self.shortage = column([shortage(row[1], row[2]) for row in rows])
        self.level = one_hot([f"level {row[0]}" for row in rows], keys)
        self.worth = one_hot([f"worth {row[0]}" for row in rows], keys)

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        v = {key: theta[place] for key, place in self.at.items()}
        fresh = self.tokens - math.log(1e9) + self.worth @ theta
        known = np.exp(v["size_scale"] - v["size_power"] * (self.size - math.log(1e8)))
        level = v["floor"] + self.level @ theta + v["undertrained"] * self.shortage
        return np.asarray(level + known + np.exp(v["data_scale"] - v["data_power"] * fresh))


def one_hot(names: list[str], keys: list[str]) -> np.ndarray:
    """A row a name, a one under its key; GPT-2's recipe and FineWeb have none, they are what the others are measured by."""
    place = {key: i for i, key in enumerate(keys)}
    found = np.zeros((len(names), len(keys)))
    for i, name in enumerate(names):
        if name in place:
            found[i, place[name]] = 1.0
    return found


def _law(point: Point, fit: dict[str, Any]) -> float:
    """The law and too few tokens alone, without what the settings cost."""
    assert point.config is not None
    worth = multiplier(point.config, point.recipe, fit, point.dataset, point.tokens)
    fresh = effective_tokens(point.tokens, point.unique, fit)
    short = fit["undertrained"] * shortage(point.size, point.tokens)
    return law(point.size, worth * fresh, point.dataset, fit) + short


def unpack(value: dict[str, float]) -> dict[str, Any]:
    recipes = {"gpt2-adamw": 1.0, **{name: math.exp(value[name]) for name in RECIPES}}
    return {
        "floor": value["floor"],
        "size": {"scale": math.exp(value["size_scale"]), "power": value["size_power"]},
        "data": {"scale": math.exp(value["data_scale"]), "power": value["data_power"]},
        "recipes": recipes,
        "untied": math.exp(value["untied"]),
        "decay_power": value["decay_power"],
        "fade": value["fade"],
        "undertrained": value["undertrained"],
        "datasets": {
            "fineweb": 0.0,
            "fineweb-edu": value["fineweb-edu"],
            "openwebtext": value["openwebtext"],
        },
        "reuse_epochs": REUSE_EPOCHS,
        "gap": 0.04,
        "early": {"scale": 1.2, "steps": 500.0},
        "pairs": {},
        "spread": {"inside": [-0.05, 0.06], "odd": [-0.1, 0.2], "outside": [-0.12, 0.15]},
        "settings": SETTINGS,
        "dropout": DROPOUT,
        "noise_power": NOISE[0],
        "support": {"params": [3e7, 1.6e9], "tokens_per_param": [3.0, 400.0]},
    }


def held_out_fits(points: list[Point]) -> dict[str, dict[str, Any]]:
    """For each family, the law fitted on all the others."""
    return leave_out(
        [point for point in points if usable(point)], lambda point: point.family, fit_loss
    )


def with_curves(fits: dict[str, dict[str, Any]], fit: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Those fits with how a curve falls as in this one, which is what a rate that stays up costs."""
    return {name: {**each, **{key: fit[key] for key in CURVE}} for name, each in fits.items()}


def main() -> int:
    runs = all_losses()
    fit = fit_curves(all_curves(runs), fit_loss(runs))
    fits = with_curves(held_out_fits(runs), fit)
    made = {
        **fit_pairs(runs, {**fit, "spread": spread(runs, fits)}),
        "recipe_spread": recipe_spread(runs, fits),
        "size_spread": size_spread(runs, fits),
        "modern_runs": modern_runs(runs),
        "source": "fit/loss.py from the public losses and curves in fit/data; do not edit by hand",
        "priors": {
            name: {"middle": middle, "sigma": sigma}
            for name, (middle, sigma) in {**SHAPE, **RECIPES}.items()
        },
    }
    rows = []
    for p in runs:
        if usable(p):
            both = [final(p, f) for f in (fit, fits[p.family])]
            rows.append([p.id, p.family, p.recipe, *(f"{value:.4f}" for value in (p.loss, *both))])
    head = ["id", "family", "recipe", "measured_nats", "fitted_nats", "held_out_nats"]
    return write(
        TARGET, made, ROOT / "fit" / "loss_residuals.csv", head, rows, "--check" in sys.argv
    )


if __name__ == "__main__":
    sys.exit(main())
