"""What electricity costs, by region, with period, source and confidence.

>>> electricity("US").per_kwh
0.187
"""

import re
from dataclasses import dataclass

from onecard.errors import UserError, nearest
from onecard.facts.data_files import table
from onecard.messages import T


@dataclass(frozen=True)
class Price:
    """What a kilowatt-hour costs somewhere, with its source."""

    per_kwh: float
    currency: str
    source: T
    confidence: str


# the others are codes of countries
REGIONS = {
    "WORLD": T("world"),
    "EUROPE": T("Europe"),
    "ASIA": T("Asia"),
    "AFRICA": T("Africa"),
    "OCEANIA": T("Oceania"),
    "NORTH_AMERICA": T("North America"),
    "SOUTH_AMERICA": T("South America"),
}
KINDS = {
    "residential average": T("residential average"),
    "household": T("household"),
    "household average": T("household average"),
    "household incl. taxes": T("household incl. taxes"),
}


def electricity(region: str) -> Price:
    """The household price of a region: a country's two letters, a continent, or WORLD."""
    rows = {row["region"]: row for row in table("electricity")}
    key = re.sub(r"[ -]", "_", region.strip().upper())
    if key not in rows:
        hint = (
            nearest(key, rows)
            or "give a number, as in the option `price=0.25`, or a region such as US, ES, IN or WORLD"
        )
        raise UserError(f"no electricity price for {region!r}", hint=hint)
    row = rows[key]
    facts = {
        "region": REGIONS.get(key, key),
        "kind": KINDS[row["kind"]],
        "period": row["period"],
        "publisher": row["source"],
    }
    if row["confidence"] != "C":
        source = T("{region}, {kind}, {period:period} ({publisher})", **facts)
    elif row["source"]:
        source = T("{region}, {kind}, {period:period} ({publisher}; an estimate)", **facts)
    else:
        source = T("{region}, {kind}, {period:period} (an estimate; no source was found)", **facts)
    return Price(float(row["price"]), row["currency"], source, row["confidence"])


def parse_price(text: str) -> Price:
    """--price: "0.25", "0.25 EUR", "€0.25", or a region's name."""
    if not re.search(r"\d", text):
        return electricity(text)
    try:
        value, currency = parse_money(text.rstrip().removesuffix("kWh").rstrip().removesuffix("/"))
    except UserError:
        hint = "write it like 0.25, 0.25EUR or ES"
        raise UserError(f"{text!r} is not a price of one kWh", hint=hint) from None
    return Price(value, currency, T("your own price"), "A")


def parse_money(text: str) -> tuple[float, str]:
    """An amount and its currency, dollars where none is named.

    >>> parse_money("30"), parse_money("€2,50"), parse_money("10 inr")
    ((30.0, 'USD'), (2.5, 'EUR'), (10.0, 'INR'))
    """
    symbols = {"€": "EUR", "$": "USD", "£": "GBP", "₹": "INR"}
    match = re.fullmatch(r"([€$£₹]?)\s*(\d+(?:[.,]\d+)?)\s*([A-Za-z]{3})?", text.strip())
    amount = float(match[2].replace(",", ".")) if match else 1e6
    if match is None or not amount < 1e6:
        raise UserError(
            f"{text!r} is not an amount of money", hint="write it like 10USD or 2.50EUR"
        )
    return amount, (match[3] or symbols.get(match[1], "USD")).upper()
