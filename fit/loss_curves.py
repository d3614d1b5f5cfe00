"""How a curve falls to its end, fitted from the public curves."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from fit.loss_expected import on_curve, soft
from fit.losses import Point
from onecard.planner.expected_loss import running

NOISE = (
    0.4,
    0.05,
)  # power of a step's noise (rate over batch) in what an undecayed rate holds up: at most a half, as noise adds


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
    # where a point is on its curve does not depend on how curves fall; and many share their last
    places = {id(point): (point.ratio, on_curve(point, fit)) for pair in pairs for point in pair}

    def residuals(theta: np.ndarray) -> np.ndarray:
        here = {**fit, **_curve(theta)}
        found = {key: ratio * running(*place, here) for key, (ratio, place) in places.items()}
        misses = [
            ((p.loss or 0) - (last.loss or 0) - (found[id(p)] - found[id(last)]))
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
