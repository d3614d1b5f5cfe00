"""The 80 % ranges of the loss, by conformal prediction over families."""

from typing import Any

import numpy as np

from fit.conformal import COVERAGE, Miss, interval, ranges
from fit.loss_expected import KINDS, final, kind_of, usable
from fit.losses import Point

TWO_SIZES = 1.5  # times as many parameters


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
    """How far off the difference between Muon and AdamW is in four of five families that published both, none of which the law saw,
    in nats. What misses have in common (the data, the code) is gone from it."""
    gaps = {}
    for family, rows in _families(points, fits).items():
        muon, adamw = (
            [miss for p, miss in rows if p.recipe.endswith(end)] for end in ("muon", "adamw")
        )
        if muon and adamw:
            gaps[family] = [abs(float(np.mean(muon) - np.mean(adamw)))]
    return _four_of_five(gaps)


def size_spread(points: list[Point], fits: dict[str, dict[str, Any]]) -> float:
    """Likewise for the difference between two sizes: the smallest and the largest that a family published of one recipe."""
    gaps: dict[str, list[float]] = {}
    for family, rows in _families(points, fits).items():
        for recipe in {p.recipe for p, _ in rows}:
            sizes = [p.size for p, _ in rows if p.recipe == recipe]
            if max(sizes) > TWO_SIZES * min(sizes):
                small, large = (
                    [miss for p, miss in rows if p.recipe == recipe and p.size == size]
                    for size in (min(sizes), max(sizes))
                )
                gap = abs(float(np.mean(small) - np.mean(large)))
                gaps.setdefault(family, []).append(gap)
    return _four_of_five(gaps)


def _four_of_five(gaps: dict[str, list[float]]) -> float:
    """As far as a new family's gap goes with 80 % probability, whichever its sign."""
    return round(interval(gaps, 2 * COVERAGE - 1)[1], 3)


def _families(
    points: list[Point], fits: dict[str, dict[str, Any]]
) -> dict[str, list[tuple[Point, float]]]:
    """Each family's rows, and how far the law that never saw them is off."""
    found: dict[str, list[tuple[Point, float]]] = {}
    for p in points:
        if usable(p) and p.family in fits:
            found.setdefault(p.family, []).append((p, (p.loss or 0) - final(p, fits[p.family])))
    return found
