"""Numbers as log lines print them, bounded before they are computed with.

>>> whole("524,288"), positive("1e-5"), positive("nan")
(524288, 1e-05, None)
"""

import math

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
