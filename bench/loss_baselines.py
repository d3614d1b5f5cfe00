"""What loss_accuracy.py is compared with: the best constant, and the nearest known run of another family."""

import math
from typing import Any

from fit.losses import Point

from bench.score import Answer, by_family, family_mean, nats, score


def constant(points: list[Point], known: list[Point]) -> list[Answer]:
    """The best single number that other families' losses give."""
    answers = []
    for point in points:
        others = sorted(k.loss or 0 for k in _others(point, known))
        if others:
            answers.append(_guess(point, others[len(others) // 2]))
    return answers


def nearest(points: list[Point], known: list[Point]) -> list[Answer]:
    """The loss of the known run of another family that is nearest in size, tokens and data set."""
    answers = []
    for point in points:
        others = _others(point, known)
        if others:
            best = min(
                others,
                key=lambda k: (
                    abs(math.log(k.size / point.size))
                    + abs(math.log(k.tokens / point.tokens))
                    + 2 * (k.dataset != point.dataset)
                ),
            )
            answers.append(_guess(point, best.loss or 0))
    return answers


def _others(point: Point, known: list[Point]) -> list[Point]:
    """The runs of other families that a baseline may look at: for GPT-2's tokens on the law's own data sets only their like."""
    return [
        k
        for k in known
        if k.family != point.family and not k.trouble and (point.foreign or not k.foreign)
    ]


def _guess(point: Point, loss: float) -> Answer:
    return Answer(
        point.id, point.family, "end", loss, loss, loss, point.loss, quality=point.quality
    )


def baselines(points: list[Point], known: list[Point], answers: list[Answer]) -> dict[str, Any]:
    """Both baselines on the very rows that these answers are scored on."""
    scored = [point for point, answer in zip(points, answers, strict=True) if answer.scored]
    scores = {}
    for name, each in (
        ("constant", constant(scored, known)),
        ("nearest_known_run", nearest(scored, known)),
    ):
        by = {f: nats(s) for f, s in by_family(each, relative=False).items()}
        scores[name] = {
            **nats(score(each, relative=False)),
            "mean_of_family_medians_nats": family_mean(by, "median_abs_error_nats"),
        }
    return scores
