"""How a curve falls to its end, fitted from the public curves."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from fit.loss_expected import on_curve, soft
from fit.losses import Point
from onecard.planner.expected_loss import LossEstimate, full_rate_steps, running
from onecard.planner.loss_settings import (
    MOST_NOISE,
    learning_rate_share,
    relative_rate,
    step_noise,
)

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
    places, lasts = (Places([pair[i] for pair in pairs], fit) for i in (0, 1))
    fall = np.array([(point.loss or 0) - (last.loss or 0) for point, last in pairs])
    strict = np.array([0.05 * max(1, votes[point.family] / 20) ** 0.5 for point, _ in pairs])

    def residuals(theta: np.ndarray) -> np.ndarray:
        misses = (fall - (places(theta) - lasts(theta))) / strict
        return np.append(soft(misses), (theta[3] - NOISE[0]) / NOISE[1])

    best = least_squares(residuals, [*np.log([0.06, 1.2, 400.0]), NOISE[0]], max_nfev=20)
    return {**fit, **_curve(best.x)}


class Places:
    """`running` of many points at once: what does not depend on how curves fall is worked out beforehand."""

    def __init__(self, points: list[Point], fit: dict[str, Any]) -> None:
        flat = {**fit, "gap": 0.0, "early": {"scale": 0.0, "steps": 1.0}}
        places = [on_curve(point, fit) for point in points]
        self.ratio = np.array([point.ratio for point in points])
        self.fixed = np.array([running(e, step, flat) for e, step in places])
        self.share = np.array([learning_rate_share(e.config, step) for e, step in places])
        self.noise = np.array([step_noise(e.config, _relative(e, fit)) for e, _ in places])
        self.worth = np.array([full_rate_steps(e.config, step) for e, step in places])

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        curve = _curve(theta)
        noise = np.minimum(MOST_NOISE, self.noise ** curve["noise_power"])
        early = curve["early"]["scale"] * np.exp(-self.worth / curve["early"]["steps"])
        return np.asarray(self.ratio * (self.fixed + curve["gap"] * self.share * noise + early))


def _relative(e: LossEstimate, fit: dict[str, Any]) -> float:
    return relative_rate(e.config, e.size, e.tokens, e.recipe, fit)


CURVE = ("gap", "early", "noise_power")  # what `fit_curves` finds


def _curve(theta: np.ndarray) -> dict[str, Any]:
    gap, scale, steps = (float(x) for x in np.exp(theta[:3]))
    return {"gap": gap, "early": {"scale": scale, "steps": steps}, "noise_power": float(theta[3])}
