"""How many tokens are compute-optimal for a size: the Chinchilla law as Besiroglu et al. refitted it.

>>> round(compute_optimal_tokens(124_439_808) / 1e9, 1)
3.1
>>> round(compute_optimal_tokens(1.4e9) / 1e9)
31
"""

import math

# L = E + A/N^α + B/D^β, "Chinchilla Scaling: A replication attempt" (2024), the fit to Hoffmann et al.'s own points.
# It is used for its ratio of tokens to parameters only: its losses are for other text and another tokeniser.
A, ALPHA = 482.01, 0.3478
B, BETA = 2085.43, 0.3658
REUSED_PARAMETERS = 5.31


def compute_optimal_tokens(parameters: float) -> float:
    """The D at which a FLOP spent on tokens buys as much as one spent on parameters: α·A/N^α = β·B/D^β."""
    return float((BETA * B / (ALPHA * A) * parameters**ALPHA) ** (1 / BETA))


def useful_parameters(parameters: float, unique_tokens: float) -> float:
    """Those that tokens read again and again have a use for: all up to the size that the tokens are optimal for, and fewer
    and fewer of the rest. Muennighoff et al. 2023, "Scaling Data-Constrained Language Models", with their R = 5.31.

    >>> [round(useful_parameters(size * 1e6, 11e6), -4) / 1e6 for size in (0.1, 1, 10, 100)]
    [0.1, 0.88, 2.05, 2.06]
    """
    fed = float((ALPHA * A / (BETA * B) * unique_tokens**BETA) ** (1 / ALPHA))
    if parameters <= fed:
        return parameters
    return fed + fed * REUSED_PARAMETERS * (
        1 - math.exp(-(parameters / fed - 1) / REUSED_PARAMETERS)
    )
