"""What a recipe's name brings along: `recipe = "modern"` alone sets the optimizer, its schedule and its step size.

A key written beside it in the same file, or on the command line, still wins.

>>> recipe_values("modern")["optimizer"]
'muon'
>>> recipe_values("gpt2")
{}
"""

from typing import Any

# Measured in docs/LOG.md; the same numbers serve at every width and depth tried (train/optim/muon.py scales the groups).
_MODERN: dict[str, Any] = {
    "optimizer": "muon",
    "schedule": "linear",
    "decay_fraction": 0.6,  # with schedule = "wsd": the longest flat part that costs nothing
    "learning_rate": 0.02,  # of Muon's matrices: each step turns them by about this share, whatever their width
    "min_lr": 0.0,
    "warmup_iters": 0,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.95,
    "tied": False,
}

RECIPE_KEYS = frozenset(_MODERN)


def recipe_values(recipe: object) -> dict[str, Any]:
    """The keys that this recipe sets when nobody else does; none for GPT-2's, whose keys are RunConfig's defaults."""
    return dict(_MODERN) if recipe == "modern" else {}
