"""Losses of rows that were predicted before anybody here knew how near it comes, and of whole tables from the others: the scores
that docs/accuracy.md shows, by family and in all.

    python bench/blind_losses.py
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.losses import DATA, Point, read_losses  # noqa: E402

from bench import loss_accuracy  # noqa: E402
from bench.score import by_family, score  # noqa: E402
from bench.unseen import blind  # noqa: E402

FIRST = ROOT / "bench" / "results" / "2026-11-17-loss-blind.json"  # made once, before the fit
BATCHES = {  # predictions committed before the fit, and the table of their rows
    "blind_predictions_2.csv": "public_losses_4.csv",
    "blind_predictions_3.csv": "public_losses_5.csv",
    "blind_predictions_4.csv": "public_losses_6.csv",
    "blind_predictions_5.csv": "public_losses_7.csv",
    "blind_predictions_6.csv": "public_losses_8.csv",
    "blind_predictions_7.csv": "public_losses_9.csv",
}
LEFT_OUT = {  # a table, and those it is predicted from
    "_2": ("",),
    "_3": ("", "_2"),
    "_4": ("", "_2", "_3"),
    "_5": ("", "_2", "_3", "_4"),
    "": ("_2", "_3", "_4", "_5"),
}
Scores = dict[str, Any]


def first() -> tuple[Scores, Scores]:
    """public_losses_3.csv by the constants and the code of the day before it was written."""
    found = json.loads(FIRST.read_text(encoding="utf-8"))
    ends = {family: each["loss"] for family, each in found["families"].items()}
    return ends, {"**all**": found["loss"], "**without quality C**": found["trusted"]}


def second() -> tuple[Scores, Scores]:
    """public_losses_4.csv likewise."""
    return _batch("blind_predictions_2.csv")


def third() -> tuple[Scores, Scores]:
    """public_losses_5.csv likewise."""
    return _batch("blind_predictions_3.csv")


def fourth() -> tuple[Scores, Scores]:
    """public_losses_6.csv likewise; no law is fitted on it."""
    return _batch("blind_predictions_4.csv")


def fifth() -> tuple[Scores, Scores]:
    """public_losses_7.csv likewise."""
    return _batch("blind_predictions_5.csv")


def sixth() -> tuple[Scores, Scores]:
    """public_losses_8.csv likewise; no law is fitted on it."""
    return _batch("blind_predictions_6.csv")


def seventh() -> tuple[Scores, Scores]:
    """public_losses_9.csv likewise; no law is fitted on it."""
    return _batch("blind_predictions_7.csv")


def _batch(name: str) -> tuple[Scores, Scores]:
    answers = [answer for answer in blind(name) if answer.kind == "loss"]
    whole = {point.id for point in read_losses(DATA / BATCHES[name]) if is_complete(point)}
    ends = {family: loss_accuracy.nats(s) for family, s in by_family(answers, False).items()}
    complete = [answer for answer in answers if answer.id in whole]
    return ends, {
        "**all**": loss_accuracy.nats(score(answers, relative=False)),
        "**complete configs**": loss_accuracy.nats(score(complete, relative=False)),
    }


def is_complete(point: Point) -> bool:
    """Rate and batch given, by a source that says so itself: nothing that moves the loss had to be guessed."""
    return not point.guessed and point.quality == "A"


def left_out() -> Scores:
    """Each table of losses, predicted from the other ones alone."""
    scores = {}
    for name, others in LEFT_OUT.items():
        law = loss_accuracy.fitted_on([point for other in others for point in _table(other)])
        points = _table(name)
        fits = {point.family: law for point in points}
        kept = [
            a for a in loss_accuracy.predict(points, fits) if a.quality != "C" and not a.foreign
        ]
        title = " and ".join(f"public_losses{other}.csv" for other in others)
        scores[f"public_losses{name}.csv from {title}"] = loss_accuracy.nats(
            score(kept, relative=False)
        )
    return scores


def _table(ending: str) -> list[Point]:
    return read_losses(DATA / f"public_losses{ending}.csv")


if __name__ == "__main__":
    batches: tuple[tuple[Scores, Scores], ...] = (
        first(),
        second(),
        third(),
        fourth(),
        fifth(),
        sixth(),
        seventh(),
        ({}, left_out()),
    )
    for each in ({**ends, **last} for ends, last in batches):
        for name, scores in each.items():
            print(loss_accuracy._line(name, scores))
        print()
