"""The 80 % ranges of the loss, by conformal prediction over families."""

from typing import Any

import numpy as np

from fit.conformal import Miss, ranges
from fit.loss_expected import KINDS, final, kind_of, usable
from fit.losses import Point


def spread(points: list[Point], fits: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """The 80 % ranges around the prediction, in nats, by conformal prediction over families that the law never saw."""
    misses = [
        Miss(kind_of(p, fits[p.family]), p.family, (p.loss or 0) - final(p, fits[p.family]))
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
            both[p.recipe.endswith("muon")].append((p.loss or 0) - final(p, fits[p.family]))
    gaps = [
        abs(float(np.mean(both[True]) - np.mean(both[False])))
        for both in found.values()
        if both[True] and both[False]
    ]
    return round(max(gaps), 3)
