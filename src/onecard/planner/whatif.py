"""Hours in all for other seconds per step: the table people make by hand.

>>> from onecard.config import load
>>> [f"{row.total_seconds / 3600:.1f}" for row in whatif(load("fineweb-41M-12gb"), 3.0, seconds=(2.5, 3.0))]
['13.9', '16.7']
"""

from collections.abc import Iterable
from dataclasses import dataclass

from onecard.config import RunConfig

_FACTORS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)


@dataclass(frozen=True)
class WhatIf:
    """The run's duration if a step took this long."""

    step_seconds: float
    tokens_per_second: float
    total_seconds: float  # the steps alone


def whatif(
    config: RunConfig, expected_seconds: float, seconds: Iterable[float] | None = None
) -> list[WhatIf]:
    """Rows around the expected seconds per step, rounded to what a person would write down."""
    steps = seconds or dict.fromkeys(
        float(f"{expected_seconds * factor:.2g}") for factor in _FACTORS
    )
    return [WhatIf(s, config.tokens_per_step / s, s * config.max_iters) for s in steps]
