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

from fit.conformal import Miss, ranges  # noqa: E402
from fit.held_out import leave_out, write  # noqa: E402
from fit.learning_rate import fit_settings  # noqa: E402
from fit.losses import DATA, Point, all_curves, all_losses, covered  # noqa: E402
from onecard.planner.expected_loss import (  # noqa: E402
    effective_tokens,
    estimate,
    law,
    multiplier,
    running,
)
from onecard.planner.loss_settings import is_odd, settings_cost  # noqa: E402

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
SETTINGS = fit_settings()
# nats for a dropout of 1, so 0.05 for 0.1 in one epoch: gpjt's interventions, where leaving it out gained more than the 0.049 of another
DROPOUT = 0.5
NOISE = (
    0.4,
    0.1,
)  # power of a step's noise (rate over batch) in what an undecayed rate holds up: at most a half, as noise adds
FEWEST, WIDEST = (
    10,
    0.12,
)  # a combination with fewer runs, or whose 80 % spread is wider (nats), is left out
WORTHS = [math.exp(i / 20) for i in range(-50, 51)]


def usable(point: Point) -> bool:
    return (
        point.trouble is None
        and not point.foreign
        and point.quality in ("A", "B")
        and point.share == 1.0
    )


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


def fit_loss(points: Iterable[Point]) -> dict[str, Any]:
    """The constants of the law that fit these final losses best."""
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
    start, sigma = (np.array([priors[key][i] for key in keys]) for i in (0, 1))
    own = np.array([key.startswith("family ") for key in keys])
    predict, measured = Rows(rows, keys), np.array([row.loss for row in rows])
    sizes = Counter(row.family for row in rows)
    strict = ROW_SIGMA * np.array([max(1, sizes[row.family] / 4) ** 0.5 for row in rows])
    sweep_rows = Sweeps(extra, keys)

    def residuals(theta: np.ndarray) -> np.ndarray:
        prior = (theta - start) / sigma
        # an odd family (another test set, an untuned recipe) pulls, but not with its square
        return np.concatenate(
            [
                soft((measured - predict(theta)) / strict),
                soft((sweep_rows.loss - sweep_rows(theta)) / SWEEP_SIGMA),
                np.where(own, soft(prior), prior),
            ]
        )

    best = least_squares(residuals, start, max_nfev=100)
    return unpack(dict(zip(keys, map(float, best.x), strict=True)))


def soft(miss: np.ndarray) -> np.ndarray:
    """A miss that counts by its square while it is small, and by its size beyond."""
    return np.asarray(np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss**2) - 1)))


class Rows:
    """`estimate` of many rows at once: what does not depend on the fitted constants is worked out beforehand."""

    def __init__(self, rows: list[Point], keys: list[str]) -> None:
        blank = unpack({**{key: start for key, (start, _) in {**SHAPE, **RECIPES}.items()}})
        self.at = {key: keys.index(key) for key in SHAPE}
        self.size = np.array([row.size for row in rows]) / 1e8
        self.tokens = np.array([effective_tokens(r.tokens, r.unique, blank) for r in rows]) / 1e9
        self.longer = np.array(
            [0.0 if r.recipe.endswith("adamw") else math.log(r.tokens / 2e9) for r in rows]
        )
        configs = [row.config for row in rows if row.config]
        self.untied = np.array([not config.tied for config in configs])
        self.decay = np.array(
            [
                math.log(c.decay_fraction) if c.decay_lr and c.schedule == "wsd" else 0.0
                for c in configs
            ]
        )
        self.recipe = one_hot([r.recipe for r in rows], keys)
        self.level = one_hot([r.dataset for r in rows], keys) + one_hot(
            [f"family {r.family}" for r in rows], keys
        )
        self.fixed = np.array([_final(r, blank) - _law(r, blank) for r in rows])

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        v = {key: theta[place] for key, place in self.at.items()}
        worth = self.recipe @ theta - v["fade"] * self.longer
        worth += v["untied"] * self.untied + v["decay_power"] * self.decay
        fresh = np.exp(v["data_scale"] - v["data_power"] * (np.log(self.tokens) + worth))
        known = np.exp(v["size_scale"] - v["size_power"] * np.log(self.size))
        return np.asarray(v["floor"] + known + fresh + self.level @ theta + self.fixed)


class Sweeps:
    """The law for the sweeps that help with its powers, each with a level and a worth of its own."""

    def __init__(self, rows: list[tuple[str, float, float, float]], keys: list[str]) -> None:
        self.at = {key: keys.index(key) for key in SHAPE}
        self.size, self.tokens = (np.log([row[i] for row in rows]) for i in (1, 2))
        self.loss = np.array([row[3] for row in rows])
        self.level = one_hot([f"level {row[0]}" for row in rows], keys)
        self.worth = one_hot([f"worth {row[0]}" for row in rows], keys)

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        v = {key: theta[place] for key, place in self.at.items()}
        fresh = self.tokens - math.log(1e9) + self.worth @ theta
        known = np.exp(v["size_scale"] - v["size_power"] * (self.size - math.log(1e8)))
        level = v["floor"] + self.level @ theta
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
    """The law alone, without what the settings cost."""
    assert point.config is not None
    worth = multiplier(point.config, point.recipe, fit, point.dataset, point.tokens)
    fresh = effective_tokens(point.tokens, point.unique, fit)
    return law(point.size, worth * fresh, point.dataset, fit)


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


def fit_pairs(points: Iterable[Point], fit: dict[str, Any]) -> dict[str, Any]:
    """Level and worth of a token for each combination that the law's own levels do not cover, where its runs agree: the worth
    that leaves the least absolute misses, the median miss as the level, and the law's range widened by their spread."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.trouble is None and point.foreign and point.quality in ("A", "B"):
            groups.setdefault(point.dataset, []).append(point)
    pairs: dict[str, Any] = {}
    for name, group in sorted(groups.items()):
        plain: dict[str, Any] = {
            **fit,
            "pairs": {name: {"level": 0.0, "worth": 1.0, "spread": fit["spread"]}},
        }
        rows = [point for point in group if covered(point, plain) is None]
        if len(rows) < FEWEST:
            continue
        best = math.inf
        for worth in WORTHS:
            plain["pairs"][name]["worth"] = worth
            misses = sorted((row.loss or 0) - _final(row, plain) for row in rows)
            level = misses[len(misses) // 2]
            left = sum(abs(miss - level) for miss in misses)
            if left < best:
                best = left
                low, high = (
                    round(float(np.quantile(misses, share)) - level, 3) for share in (0.1, 0.9)
                )
                ranges = {
                    key: [round(-math.hypot(low, ends[0]), 3), round(math.hypot(high, ends[1]), 3)]
                    for key, ends in fit["spread"].items()
                }
                found: dict[str, Any] = {
                    "level": level,
                    "worth": worth,
                    "runs": len(rows),
                    "families": len({row.family for row in rows}),
                    "misses": [low, high],
                    "spread": ranges,
                }
        if found["misses"][1] - found["misses"][0] <= WIDEST:
            pairs[name] = found
    return {**fit, "pairs": pairs}


def _final(point: Point, fit: dict[str, Any]) -> float:
    assert point.config is not None
    whole = estimate(
        point.config, point.tokens, point.dataset, point.unique, point.recipe, fit, point.size
    )
    return whole.final.mid + point.offset


def fit_curves(points: Iterable[Point], fit: dict[str, Any]) -> dict[str, Any]:
    """How a curve falls to its end: each curve against its own last point, so the level does not matter."""
    curves: dict[tuple[str, float], list[Point]] = {}
    for point in points:
        if (
            point.trouble is None
            and not point.foreign
            and point.quality in ("A", "B")
            and point.at
            and point.row.get("split", "val") == "val"
        ):
            curves.setdefault((point.family, point.tokens + point.size), []).append(point)
    pairs = []
    for curve in curves.values():
        last = max(curve, key=lambda p: p.at or 0)
        pairs += [
            (p, last) for p in curve if p is not last and last.at and last.at > 0.98 * last.tokens
        ]

    votes = Counter(point.family for point, _ in pairs)

    def residuals(theta: np.ndarray) -> np.ndarray:
        here = {**fit, **_curve(theta)}
        misses = [
            ((p.loss or 0) - (last.loss or 0) - (_running(p, here) - _running(last, here)))
            / (0.05 * max(1, votes[p.family] / 20) ** 0.5)
            for p, last in pairs
        ]
        return np.append(soft(np.array(misses)), (theta[3] - NOISE[0]) / NOISE[1])

    best = least_squares(residuals, [*np.log([0.06, 1.2, 400.0]), NOISE[0]], max_nfev=20)
    return {**fit, **_curve(best.x)}


CURVE = ("gap", "early", "noise_power")  # what `fit_curves` finds


def _curve(theta: np.ndarray) -> dict[str, Any]:
    gap, scale, steps = (float(x) for x in np.exp(theta[:3]))
    return {"gap": gap, "early": {"scale": scale, "steps": steps}, "noise_power": float(theta[3])}


def _running(point: Point, fit: dict[str, Any]) -> float:
    assert point.config is not None
    whole = estimate(
        point.config, point.tokens, point.dataset, point.unique, point.recipe, fit, point.size
    )
    step = round((point.at or point.tokens) / point.tokens * point.config.max_iters)
    return running(whole, max(1, step), fit)


def held_out_fits(points: list[Point]) -> dict[str, dict[str, Any]]:
    """For each family, the law fitted on all the others."""
    return leave_out(
        [point for point in points if usable(point)], lambda point: point.family, fit_loss
    )


def spread(points: list[Point], fits: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """The 80 % ranges around the prediction, in nats, by conformal prediction over families that the law never saw."""
    misses = [
        Miss(_kind(p, fits[p.family]), p.family, (p.loss or 0) - _final(p, fits[p.family]))
        for p in points
        if usable(p) and p.family in fits
    ]
    found = {k: [round(low, 3), round(high, 3)] for k, (low, high) in ranges(misses, KINDS).items()}
    return {**found, "outside": [round(2 * x, 3) for x in found["inside"]]}


def recipe_spread(points: list[Point], fits: dict[str, dict[str, Any]]) -> float:
    """How far off the difference between Muon and AdamW may be, in nats: the widest mean miss of a family that published both, none
    of which the law saw. What misses have in common (the data, the code) is gone from it."""
    found: dict[str, dict[bool, list[float]]] = {}
    for p in points:
        if usable(p) and p.family in fits and p.recipe.split("-")[-1] in ("adamw", "muon"):
            both = found.setdefault(p.family, {True: [], False: []})
            both[p.recipe.endswith("muon")].append((p.loss or 0) - _final(p, fits[p.family]))
    gaps = [
        abs(float(np.mean(both[True]) - np.mean(both[False])))
        for both in found.values()
        if both[True] and both[False]
    ]
    return round(max(gaps), 3)


KINDS = ("inside", "odd")


def _kind(point: Point, fit: dict[str, Any]) -> str:
    assert point.config is not None
    cost = settings_cost(point.config, point.size, point.tokens, point.recipe, fit)
    return "odd" if point.guessed or is_odd(point.config, cost) else "inside"


def main() -> int:
    runs = all_losses()
    fits = held_out_fits(runs)
    fit = fit_curves(all_curves(runs), fit_loss(runs))
    made = {
        **fit_pairs(runs, {**fit, "spread": spread(runs, fits)}),
        "recipe_spread": recipe_spread(runs, fits),
        "source": "fit/loss.py from the public losses and curves in fit/data; do not edit by hand",
        "priors": {
            name: {"middle": middle, "sigma": sigma}
            for name, (middle, sigma) in {**SHAPE, **RECIPES}.items()
        },
    }
    rows = []
    for p in runs:
        if usable(p):
            both = [_final(p, f) for f in (fit, fits[p.family])]
            rows.append([p.id, p.family, p.recipe, *(f"{value:.4f}" for value in (p.loss, *both))])
    head = ["id", "family", "recipe", "measured_nats", "fitted_nats", "held_out_nats"]
    return write(
        TARGET, made, ROOT / "fit" / "loss_residuals.csv", head, rows, "--check" in sys.argv
    )


if __name__ == "__main__":
    sys.exit(main())
