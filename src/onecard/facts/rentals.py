"""What rented cards cost an hour, with period and source.

>>> next(r for r in rentals() if r.gpu == "RTX 4090").typical
0.45
"""

from dataclasses import dataclass
from functools import cache

from onecard.facts.data_files import table
from onecard.facts.gpus import find_gpu


@dataclass(frozen=True)
class Rental:
    """What an hour of a rented card costs, with its source."""

    gpu: str  # a name that find_gpu takes
    low: float | None
    typical: float
    high: float | None
    currency: str
    period: str
    source: str
    skypilot: tuple[str, ...]  # SkyPilot's names of the card, the usual one first


@cache
def rentals() -> tuple[Rental, ...]:
    """Every card with a price per hour, in the file's order."""
    return tuple(
        Rental(
            gpu=row["gpu"],
            low=float(row["low"]) if row["low"] else None,
            typical=float(row["typical"]),
            high=float(row["high"]) if row["high"] else None,
            currency=row["currency"],
            period=row["period"],
            source=row["source"],
            skypilot=tuple(row["skypilot"].split()),
        )
        for row in table("gpu_rentals")
    )


def rental_of(card: str) -> Rental | None:
    """The price of a card by its own name; None where nobody was found to rent it out.

    >>> rental_of("MI300X").typical
    1.99
    """
    return next((rental for rental in rentals() if find_gpu(rental.gpu).name == card), None)
