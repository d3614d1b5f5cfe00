"""What a recommendation may spend: time, tokens, or as much as a loss takes.

>>> Budget(seconds=20 * HOUR).hours
20.0
"""

import math
from dataclasses import dataclass

from onecard.errors import UserError
from onecard.units import HOUR, YEAR


@dataclass(frozen=True)
class Budget:
    """What is given: exactly one of time, tokens, or the loss to reach."""

    seconds: float | None = None
    tokens: float | None = None
    loss: float | None = None

    def __post_init__(self) -> None:
        for name, value, example in (
            ("time", self.seconds, "20 hours"),
            ("number of tokens", self.tokens, "10B"),
            ("loss", self.loss, "3.2"),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"the {name} must be above zero", hint=f"for example {example}")
        if self.seconds is not None and self.seconds > 100 * YEAR:
            raise UserError("the time is more than a hundred years", hint="for example 30 days")

    @property
    def hours(self) -> float | None:
        return None if self.seconds is None else self.seconds / HOUR
