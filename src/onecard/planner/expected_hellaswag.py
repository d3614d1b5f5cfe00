"""The HellaSwag accuracy to expect at a loss, where public runs say anything about it: facts/hellaswag_fit.json.

>>> range_of = expected_hellaswag("fineweb-edu", Range(3.0, 3.05, 3.1))
>>> range_of.low < 0.306 < range_of.high
True
>>> expected_hellaswag("openwebtext", Range(3.0, 3.05, 3.1)) is None
True
"""

import json
from functools import cache
from typing import Any

from onecard.facts.data_files import fact_file
from onecard.planner.result import Range

CHANCE = 0.25


def expected_hellaswag(dataset: str, loss: Range) -> Range | None:
    """acc_norm in completion style; None on other data and beyond the losses of the public pairs."""
    fit = hellaswag_fit()
    lowest, highest = fit["loss_range"]
    if dataset != fit["dataset"] or not lowest <= loss.mid <= highest:
        return None

    def at(nats: float) -> float:
        return float(fit["at_centre"] + fit["slope"] * (nats - fit["centre"]))

    error = fit["error"]  # of families that the line had not seen
    return Range(max(at(loss.high) - error, CHANCE), at(loss.mid), at(loss.low) + error)


def loss_for_hellaswag(dataset: str, accuracy: float) -> Range | None:
    """The loss at which the line has this accuracy, and those at which a family it had not seen might; None beyond the pairs."""
    fit = hellaswag_fit()
    lowest, highest = fit["loss_range"]
    if dataset != fit["dataset"]:
        return None
    mid = fit["centre"] + (accuracy - fit["at_centre"]) / fit["slope"]
    error = abs(fit["error"] / fit["slope"])
    if not lowest <= mid - error < mid + error <= highest:
        return None
    return Range(mid - error, mid, mid + error)


@cache
def hellaswag_fit() -> dict[str, Any]:
    fit: dict[str, Any] = json.loads(fact_file("hellaswag_fit.json"))
    return fit
