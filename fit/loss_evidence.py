"""What the loss law is held to beside single losses: our own short runs, and which size is the best for the compute.

>>> all(2 < row.worth < 10 for row in own_rows())  # tokens of GPT-2's recipe that one of the modern recipe's is worth
True
"""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fit.loss_expected import usable
from fit.losses import Point
from onecard.config import RunConfig
from onecard.config.recipes import recipe_values
from onecard.planner.expected_loss import ENOUGH_TOKENS, law, multiplier, shortage
from onecard.planner.workload import Workload

OWN_RUNS = Path(__file__).parent / "data" / "own_comparisons.csv"  # written by bench/performance.py
OWN_VOCABULARY = 4096  # of the BPE that each corpus got
# How far the logarithms of the worths of three corpora at one length lie apart (standard deviations of 0.11 and 0.16)
OWN_SIGMA = 0.15
# rows of one project count like so many at most, as those of a family of public losses do
FULL_ROWS = 4
# nanochat's dev/LOG.md, 27 January 2026: the lowest points of parabolas through models of several sizes at 1e18, 2e18, 5e18 and 1e19
# FLOPs (modern blocks, Muon, FineWeb-Edu): parameters of the matrices and the head, tokens. 10.3 to 11.2 tokens a parameter
BEST_SIZES = (
    (110_678_115, 1_241_505_403),
    (167_797_457, 1_785_336_422),
    (250_650_865, 2_642_234_152),
    (381_758_347, 3_806_871_243),
)
# nats for a model e times as large and the tokens that are left for it: with the law's curvature of 0.26, a tenth of the best size
SLOPE_SIGMA = 0.03


@dataclass(frozen=True)
class OwnRow:
    """What bench/lengths.py measured on one corpus at one length: the tokens that the modern recipe needs to the loss of GPT-2's
    at the best of its learning rates, and how many of GPT-2's one of them is worth."""

    corpus: str
    budget: str
    gpt2_tokens: float
    modern_tokens: float
    model: RunConfig  # the modern one
    size: float  # parameters a token is multiplied with

    @property
    def worth(self) -> float:
        return self.gpt2_tokens / self.modern_tokens


@cache
def own_rows() -> tuple[OwnRow, ...]:
    rows = []
    with OWN_RUNS.open(encoding="utf-8") as table:
        for row in csv.DictReader(table):
            shape: dict[str, Any] = {key: int(row[key]) for key in ("n_layer", "n_head", "n_embd")}
            own = {**recipe_values("modern"), "recipe": "modern", "vocab_size": OWN_VOCABULARY}
            model = RunConfig(**own, **shape)
            size = float(Workload.of_shape(model.shape).matmul_params)
            tokens = float(row["gpt2_tokens"]), float(row["modern_tokens"])
            rows.append(OwnRow(row["corpus"], row["budget"], *tokens, model, size))
    return tuple(rows)


def own_runs(theta: np.ndarray, keys: list[str], rows: tuple[OwnRow, ...]) -> np.ndarray:
    """How far off what a token of the modern recipe is worth in our own short runs is, in sigmas. Both recipes ran at their best
    learning rates, so neither has a cost of the rate. Both have fewer tokens a parameter than any public run, so what the
    shortage of tokens costs is taken as the same for both: the public runs cannot say how it grows there."""
    at = {key: theta[place] for place, key in enumerate(keys)}
    tokens, measured, untied = (
        np.array(values, float).reshape(-1, 1)
        for values in (
            [row.modern_tokens for row in rows],
            [row.worth for row in rows],
            [not row.model.tied for row in rows],
        )
    )
    worth = at["modern-muon"] - at["fade"] * np.log(tokens / 2e9) + at["untied"] * untied
    miss = worth - np.log(measured)
    return np.asarray(miss / (OWN_SIGMA * max(1, len(rows) / FULL_ROWS) ** 0.5))


def expected_share(row: OwnRow, fit: dict[str, Any], with_shortage: bool = False) -> float:
    """The share of GPT-2's tokens that the law expects the modern recipe to need in one of our own comparisons; `with_shortage`:
    with what too few tokens a parameter cost, as if the public runs showed how that grows below theirs."""

    def loss(tokens: float, worth: float) -> float:
        short = fit["undertrained"] * shortage(row.size, tokens) if with_shortage else 0.0
        return law(row.size, worth * tokens, "fineweb", fit) + short

    target = loss(row.gpt2_tokens, 1.0)
    few, many = 1e-3, 1.0
    for _ in range(40):
        share = (few * many) ** 0.5
        tokens = share * row.gpt2_tokens
        higher = loss(tokens, multiplier(row.model, "modern-muon", fit, "fineweb", tokens)) > target
        few, many = (share, many) if higher else (few, share)
    return (few * many) ** 0.5


def modern_runs(points: list[Point]) -> dict[str, Any]:
    """What says how much the modern recipe gains: the sizes, tokens and projects of the public runs, and the tokens that GPT-2's
    recipe had in our own comparisons."""
    rows = [point for point in points if usable(point) and point.recipe == "modern-muon"]
    return {
        "sizes": sorted(point.size for point in rows),
        "tokens": sorted(point.tokens for point in rows),
        "sources": len({point.family for point in rows}),
        "own_tokens": sorted(row.gpt2_tokens for row in own_rows()),
    }


def best_sizes(theta: np.ndarray, keys: list[str]) -> np.ndarray:
    """The law's slope over the size at equal compute, in sigmas: nothing where the size is the best one."""
    at = {key: theta[place] for place, key in enumerate(keys)}
    slopes = []
    for size, tokens in BEST_SIZES:
        worth = at["modern-muon"] - at["fade"] * math.log(tokens / 2e9)
        from_size = np.exp(at["size_scale"] - at["size_power"] * math.log(size / 1e8))
        fresh = math.log(tokens / 1e9) + worth
        from_data = np.exp(at["data_scale"] - at["data_power"] * fresh)
        slope = at["data_power"] * (1 - at["fade"]) * from_data - at["size_power"] * from_size
        # twice: the size grows, and the tokens shrink with it
        short = math.log(max(1.0, ENOUGH_TOKENS * size / tokens))
        slopes.append(slope + at["undertrained"] * 2 * short * 2)
    return np.array(slopes) / SLOPE_SIGMA
