"""The numbers and rules of "Lengths that count" (docs/LOG.md), for the runs and for the page: budgets, goals, the opponent's rate.

It imports nothing of bench/, so that scripts (`length_rules`) and docs/performance.md (`bench.length_rules`) share it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

TOKENS_GOAL, TIME_GOAL = 0.25, 0.35  # of the GPT-2 recipe's tokens and time, to its loss
EVAL_TOKENS = 81_920  # of the validation text: what every loss is of
THREADS = 1  # of a run that does not say


@dataclass(frozen=True)
class Budget:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int
    tokens: int
    seeds: tuple[int, ...]
    shares: tuple[float, ...]  # of the tokens, for the modern recipe


BUDGETS = {  # shortest first, as the page lists them
    # 983,040 parameters outside embeddings and head; 3,145,728; 4,915,200
    "small": Budget(5, 4, 128, 8, 2_000_000, (1, 2, 3), (0.125, 0.25, 0.5, 1.0)),
    "middle": Budget(4, 4, 256, 16, 8_000_000, (1,), (0.125, 0.25)),
    "large": Budget(4, 5, 320, 16, 16_000_000, (1,), (0.125, 0.25, 0.3)),  # 0.25 does not reach it
}


def end_loss(row: Mapping[str, Any]) -> float:
    """A run's last validation loss."""
    return float(row["curve"][-1]["loss"])


def opponents_best_rate(rows: Iterable[Mapping[str, Any]]) -> tuple[float | None, bool]:
    """The GPT-2 recipe's best rate for the corpus and budget that the rows are of, and whether it is tuned: it lies between
    two others. Rates are compared over all tokens and with the first seed, for later seeds run at the best rate alone.

    >>> def run(rate, seed, loss):
    ...     return {"recipe": "gpt2", "share": 1, "rate": rate, "seed": seed, "curve": [{"loss": loss}]}
    >>> runs = [run(1e-3, 1, 5.4), run(2e-3, 1, 5.2), run(4e-3, 1, 5.5)]
    >>> opponents_best_rate(runs), opponents_best_rate(runs[:2]), opponents_best_rate([])
    ((0.002, True), (0.002, False), (None, False))
    >>> opponents_best_rate([*runs, run(4e-3, 2, 5.1)])  # another seed's loss is not compared
    (0.002, True)
    """
    whole = [row for row in rows if row["recipe"] == "gpt2" and row["share"] == 1]
    if not whole:
        return None, False
    first_seed = min(row["seed"] for row in whole)
    losses = {row["rate"]: end_loss(row) for row in whole if row["seed"] == first_seed}
    best = min(losses, key=losses.__getitem__)
    return best, min(losses) < best < max(losses)
