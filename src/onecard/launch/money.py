"""A budget as hours: what it buys at the highest price that is accepted.

>>> from onecard.config import load
>>> from onecard.facts.prices import parse_money
>>> within_budget(load("gpt2"), rental_of("MI300X"), 1, parse_money("30USD"), 2.5).max_hours
12.0
"""

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.rentals import Rental, rental_of

__all__ = ["highest_price", "rental_of", "within_budget"]
_LEAST_HOURS = 0.05


def highest_price(rental: Rental | None, asked: float | None) -> float:
    """Of one card and hour: the one asked for, else the highest that was found for the card."""
    if asked is not None:
        if not 0 < asked < 1e6:
            raise UserError(
                f"{asked:g} is no price of a card and hour",
                hint="such as the option `max_price=2.50`",
            )
        return asked
    if rental is None:
        raise UserError(
            "what the card costs an hour is not known",
            hint="the option `max_price=2.50` says what it may cost",
        )
    return rental.high or rental.typical


def within_budget(
    config: RunConfig,
    rental: Rental | None,
    cards: int,
    budget: tuple[float, str],
    asked: float | None,
) -> RunConfig:
    """The config with max_hours, which ends the run in time with its decay fitted in; never longer than it had."""
    price, currency = highest_price(rental, asked), rental.currency if rental else "USD"
    amount, paid_in = budget
    if paid_in != currency:
        raise UserError(
            f"the budget is in {paid_in}, the card's price in {currency}",
            hint=f"give the budget in {currency}",
        )
    hours = amount / (price * cards)
    if hours < _LEAST_HOURS:
        raise UserError(
            f"the budget buys {hours * 60:.1f} minutes at {price:g} {currency} a card and hour",
            hint="a larger budget (the option `budget`), fewer cards (the option `cards`), or a cheaper card",
        )
    shorter = hours if config.max_hours is None else min(hours, config.max_hours)
    return config.replace(max_hours=round(shorter, 4))
