"""Levels of data sets, evaluations and tokenizers that the law itself does not cover, from their own public runs."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from fit.loss_expected import final
from fit.losses import Point, covered

FEWEST, WIDEST = (
    10,
    0.12,
)  # a combination with fewer runs, or whose 80 % spread is wider (nats), is left out
WORTHS = [math.exp(i / 20) for i in range(-50, 51)]


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
        measured = np.array([row.loss or 0 for row in rows])
        once, twice = (_finals(rows, plain, name, worth) for worth in (1.0, 2.0))
        # a loss is one part that stays and one that falls with a power of a token's worth: two worths say both
        falling = (once - twice) / (1 - 2 ** -fit["data"]["power"])
        best = math.inf
        for worth in WORTHS:
            found_losses = once - falling * (1 - worth ** -fit["data"]["power"])
            misses = sorted((measured - found_losses).tolist())
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


def _finals(rows: list[Point], fit: dict[str, Any], name: str, worth: float) -> np.ndarray:
    fit["pairs"][name]["worth"] = worth
    return np.array([final(row, fit) for row in rows])
