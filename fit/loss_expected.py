"""What a fit says of a row of the tables: its end, or the point of its curve; and whether the fits may use it."""

from typing import Any

import numpy as np

from fit.losses import Point
from onecard.planner.expected_loss import LossEstimate, estimate
from onecard.planner.loss_settings import is_odd, settings_cost

KINDS = ("inside", "odd")


def usable(point: Point) -> bool:
    return (
        point.trouble is None
        and not point.foreign
        and point.ratio == 1.0
        and point.quality in ("A", "B")
        and point.share == 1.0
    )


def expected(point: Point, fit: dict[str, Any]) -> LossEstimate:
    """The run in GPT-2's tokens."""
    assert point.config is not None
    unique = point.unique * point.ratio if point.unique else None
    tokens = point.tokens * point.ratio
    return estimate(point.config, tokens, point.dataset, unique, point.recipe, fit, point.size)


def final(point: Point, fit: dict[str, Any]) -> float:
    """Nats a token of its own at the end of its run."""
    return point.ratio * expected(point, fit).final.mid + point.offset


def on_curve(point: Point, fit: dict[str, Any]) -> tuple[LossEstimate, int]:
    """The run of a point, and the step of its place on the curve."""
    assert point.config is not None
    step = round((point.at or point.tokens) / point.tokens * point.config.max_iters)
    return expected(point, fit), max(1, step)


def kind_of(point: Point, fit: dict[str, Any]) -> str:
    """Which of the ranges holds for it."""
    assert point.config is not None
    cost = settings_cost(point.config, point.size, point.tokens, point.recipe, fit)
    return "odd" if point.guessed or is_odd(point.config, cost) else "inside"


def soft(miss: np.ndarray) -> np.ndarray:
    """A miss that counts by its square while it is small, and by its size beyond."""
    return np.asarray(np.sign(miss) * np.sqrt(2 * (np.sqrt(1 + miss**2) - 1)))
