"""What the loss law is held to beside single losses: our own short runs, and which size is the best for the compute."""

import math

import numpy as np

from onecard.planner.expected_loss import ENOUGH_TOKENS

# Our own runs of a million parameters (docs/performance.md, "at lengths that count"): the modern recipe needs 0.163 (prose) and 0.169
# (code) of the 2.0 M tokens of GPT-2's at its best rate, three seeds each; another tokenizer, hence the sigma
OWN_TOKENS, OWN_WORTH, OWN_SIGMA = 0.166 * 2.0e6, 1 / 0.166, 0.3
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


def own_runs(theta: np.ndarray, keys: list[str]) -> np.ndarray:
    """How far off what the modern recipe is worth in our own short runs is, in sigmas."""
    longer = math.log(OWN_TOKENS / 2e9)
    worth = theta[keys.index("modern-muon")] - theta[keys.index("fade")] * longer
    return np.array([(worth - math.log(OWN_WORTH)) / OWN_SIGMA])


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
