"""How many tokens are compute-optimal for a size: the Chinchilla law as Besiroglu et al. refitted it.

>>> round(compute_optimal_tokens(124_439_808) / 1e9, 1)
3.1
>>> round(compute_optimal_tokens(1.4e9) / 1e9)
31
"""

# L = E + A/N^α + B/D^β, "Chinchilla Scaling: A replication attempt" (2024), the fit to Hoffmann et al.'s own points.
# It is used for its ratio of tokens to parameters only: its losses are for other text and another tokeniser.
A, ALPHA = 482.01, 0.3478
B, BETA = 2085.43, 0.3658


def compute_optimal_tokens(parameters: float) -> float:
    """The D at which a FLOP spent on tokens buys as much as one spent on parameters: α·A/N^α = β·B/D^β."""
    return float((BETA * B / (ALPHA * A) * parameters**ALPHA) ** (1 / BETA))
