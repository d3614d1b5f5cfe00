"""Numbers as log lines print them, bounded before they are computed with.

>>> whole("524,288"), positive("1e-5"), positive("nan")
(524288, 1e-05, None)
"""

import math
from typing import Any

# Atomic: what follows never makes the engine try every shorter form of a number of thousands of digits.
NUMBER = r"[-+]?(?>\d+(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf)"
_MOST_DIGITS = 15  # above every bound that is checked later


def whole(digits: str) -> int:
    """An integer with or without commas; of thousands of digits only the first are read, enough to be out of bounds."""
    return int(digits.replace(",", "")[:_MOST_DIGITS] or 0)


def positive(text: str) -> float | None:
    """A finite number above zero, else None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None


def json_number(value: Any) -> float | None:
    """A number of a JSON file, NaN and infinity among them, as Python writes them; else None."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < 1e300 else None
