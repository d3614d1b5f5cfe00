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
from bench.score import by_family, nats, score  # noqa: E402
from bench.unseen import BATCHES, Batch, blind  # noqa: E402

FIRST = ROOT / "bench" / "results" / "2026-11-17-loss-blind.json"  # made once, before the fit
LEFT_OUT = {  # a table, and those it is predicted from
    "_2": ("",),
    "_3": ("", "_2"),
    "_4": ("", "_2", "_3"),
    "_5": ("", "_2", "_3", "_4"),
    "": ("_2", "_3", "_4", "_5"),
}
Scores = dict[str, Any]


def batch(each: Batch) -> tuple[Scores, Scores]:
    """The losses of a batch of unseen rows as they were predicted before they were looked at: by family, and in all."""
    if each is BATCHES[0]:
        found = json.loads(FIRST.read_text(encoding="utf-8"))
        ends = {family: scores["loss"] for family, scores in found["families"].items()}
        return ends, {"**all**": found["loss"], "**without quality C**": found["trusted"]}
    answers = [answer for answer in blind(each) if answer.kind == "loss"]
    whole = {point.id for point in read_losses(DATA / each.losses) if is_complete(point)}
    ends = {family: nats(s) for family, s in by_family(answers, False).items()}
    complete = [answer for answer in answers if answer.id in whole]
    return ends, {
        "**all**": nats(score(answers, relative=False)),
        "**complete configs**": nats(score(complete, relative=False)),
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
        scores[f"public_losses{name}.csv from {title}"] = nats(score(kept, relative=False))
    return scores


def _table(ending: str) -> list[Point]:
    return read_losses(DATA / f"public_losses{ending}.csv")


if __name__ == "__main__":
    for ends, last in (*map(batch, BATCHES), ({}, left_out())):
        for name, scores in {**ends, **last}.items():
            print(loss_accuracy.line(name, scores))
        print()
