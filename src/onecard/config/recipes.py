"""What a recipe's name stands for: the blocks of its model, and the keys that `recipe = "modern"` alone sets.

A key written beside it in the same file, or on the command line, still wins. The rest of the code asks for these facts
(`config.shape.modern` for the blocks), not for the name.

>>> recipe_values("modern")["optimizer"]
'muon'
>>> recipe_values("gpt2")
{}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RecipeName = Literal["gpt2", "modern"]
MUON_RATE = 0.02  # Muon's own, whatever the size (Jordan et al. 2024); AdamW's share of the weights follows it


@dataclass(frozen=True)
class Recipe:
    blocks: Literal["gpt2", "modern"]  # model/gpt2.py's or model/modern.py's
    rate_by_size: bool  # a larger model needs a lower learning rate than the one in `values`
    values: Mapping[str, Any] = field(default_factory=dict)  # keys, where not RunConfig's defaults


RECIPES: dict[RecipeName, Recipe] = {
    "gpt2": Recipe(blocks="gpt2", rate_by_size=True),
    # Measured in docs/LOG.md; the same numbers serve at every width and depth tried (train/optim/muon.py scales the groups).
    "modern": Recipe(
        blocks="modern",
        rate_by_size=False,
        values={
            "optimizer": "muon",
            "schedule": "linear",
            "decay_fraction": 0.6,  # with schedule = "wsd": the longest flat part that costs nothing
            "learning_rate": MUON_RATE,  # of its matrices: each step turns them by about this share, whatever their width
            "min_lr": 0.0,
            "warmup_iters": 0,
            "weight_decay": 0.0,
            "beta1": 0.9,
            "beta2": 0.95,
            "tied": False,
        },
    ),
}

RECIPE_KEYS = frozenset(key for recipe in RECIPES.values() for key in recipe.values)


def recipe_values(recipe: object) -> dict[str, Any]:
    """The keys that this recipe sets when nobody else does; none where the name is unknown, which validation reports."""
    return next((dict(known.values) for name, known in RECIPES.items() if name == recipe), {})
