"""A run of so many tokens: whole steps, and a schedule that ends with them.

>>> from onecard.config.run import RunConfig
>>> for_tokens(RunConfig(batch_size=16, gradient_accumulation_steps=32), 3_700_000_000).max_iters
7058
"""

import math
from collections.abc import Container

from onecard.config.run import RunConfig
from onecard.errors import UserError


def for_tokens(config: RunConfig, tokens: float, given: Container[str] = ()) -> RunConfig:
    """`config` with max_iters for at least so many tokens; schedule keys that are `given` stay as they are."""
    steps = math.ceil(tokens / config.tokens_per_step)
    if steps < 1:
        raise UserError(
            "the tokens must be above zero", hint="for example the option `tokens=3.7B`"
        )
    changes = {
        "max_iters": steps,
        "lr_decay_iters": steps,
        "warmup_iters": min(config.warmup_iters, steps // 10),
    }
    return config.replace(
        **{key: value for key, value in changes.items() if key == "max_iters" or key not in given}
    )
