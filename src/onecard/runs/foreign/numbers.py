"""Numbers as log lines print them, bounded before they are computed with.

>>> whole("524,288"), positive("1e-5"), positive("nan")
(524288, 1e-05, None)
"""

import math
from typing import Any

from onecard.untrusted import finite

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
    """A number of a JSON file; NaN and infinity too, as Python writes them, for a lost run must not be hidden; else None."""
    return value if isinstance(value, float) and not math.isfinite(value) else finite(value)
