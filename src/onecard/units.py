"""Quantities as people write them, parsed and printed at the edge; base units (bytes, seconds, tokens) inside.

>>> parse_count("3.7B"), parse_duration("3h12m")
(3700000000, 11520.0)
>>> show_count(10_485_760_000), show_bytes(7.47e9), show_duration(80_000)
('10.49 B', '6.96 GiB', '22 h 13 min')
"""

import math
import re
from datetime import UTC, datetime

from onecard.errors import UserError

KIB, MIB, GIB = 1024, 1024**2, 1024**3
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
YEAR = 365 * DAY

_COUNT_SUFFIX = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "bt": 1e9, "g": 1e9, "t": 1e12}
_TIME_SUFFIX = {
    "s": 1,
    "sec": 1,
    "m": MINUTE,
    "min": MINUTE,
    "h": HOUR,
    "hr": HOUR,
    "hour": HOUR,
    "hours": HOUR,
    "d": DAY,
    "day": DAY,
    "days": DAY,
    "w": 7 * DAY,
    "y": YEAR,
    "year": YEAR,
    "years": YEAR,
}

_NUMBER = r"(\d+(?:[_,]\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+)"


def _scaled(text: str, suffixes: dict[str, float], what: str, example: str) -> float:
    match = re.fullmatch(_NUMBER + r"\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in suffixes:
        raise UserError(f"{text!r} is not {what}", hint=f"write it like {example}")
    return float(re.sub("[_,]", "", match[1])) * suffixes[match[2]]


def parse_count(text: str) -> int:
    """A number of tokens, parameters or steps: "3.7B", "350M", "20_000", "1e9".

    >>> parse_count("0.5M tok")
    500000
    """
    # "10BT" is how FineWeb's samples are named: ten billion tokens
    value = _scaled(
        re.sub(r"(?<!\s)\s*(tokens|token|tok|params|parameters)$", "", text.strip().lower()),
        _COUNT_SUFFIX,
        "a count",
        "3.7B, 350M or 20000",
    )
    if not math.isfinite(value) or value > 1e18:
        raise UserError(f"{text!r} is too large a count", hint="write it like 3.7B")
    return round(value)


def parse_duration(text: str) -> float:
    """Seconds from "3h12m", "90s", "1y", "20 h"; a bare number is refused, for nobody knows its unit."""
    cleaned = text.strip().lower().replace(" ", "")
    pieces = re.findall(r"(?<![\d_,.])" + _NUMBER + r"([a-z]+)", cleaned)
    if not pieces or "".join(number + unit for number, unit in pieces) != cleaned:
        raise UserError(f"{text!r} is not a duration", hint="write it like 20h, 3h12m, 10d or 1y")
    total = 0.0
    for number, unit in pieces:
        if unit not in _TIME_SUFFIX:
            raise UserError(
                f"{unit!r} is not a unit of time", hint="use s, m, h, d, w or y, as in 3h12m"
            )
        total += float(re.sub("[_,]", "", number)) * _TIME_SUFFIX[unit]
    if not math.isfinite(total) or total > 1e4 * YEAR:
        raise UserError(f"{text!r} is too long a time", hint="write it like 20h or 1y")
    return total


def show_count(value: float) -> str:
    """A count in at most four digits: 524,288 stays whole below a million, then 123.59 M, 10.49 B."""
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if abs(value) >= limit:
            return f"{value / limit:.2f} {letter}"
    return f"{value:,.0f}"


def show_bytes(value: float) -> str:
    """Binary units, as nvidia-smi and torch count: "6.96 GiB"."""
    for limit, name in ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= limit:
            return f"{value / limit:.2f} {name}" if limit >= GIB else f"{value / limit:.0f} {name}"
    return f"{value:.0f} B"


def utc_now() -> str:
    """Now, to the second, as files record it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def local_now() -> datetime:
    """Now, in the local time zone; in UTC where TZ names an offset that no clock has."""
    try:
        return datetime.now().astimezone()
    except (ValueError, OverflowError, OSError):
        return datetime.now(UTC)


def show_duration(seconds: float) -> str:
    """Two units at most: "1.1 ms", "0.12 s", "45.1 s", "3 min 05 s", "16 min", "13 h 54 min", "20 h", "3 d 4 h", "1 y"."""
    if 0 < seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 10 * MINUTE:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    if seconds < 100 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        hours, rest = divmod(round(seconds / MINUTE), 60)
        return f"{hours} h {rest:02d} min" if rest else f"{hours} h"
    days, rest = divmod(round(seconds / HOUR), 24)
    if days < 365:
        return f"{days} d {rest} h" if rest else f"{days} d"
    years = f"{seconds / YEAR:,.1f}".removesuffix(".0")
    return f"{years} y"


def show_power(value: float) -> str:
    """FLOPs and other great numbers: "2.55 × 10¹⁸"."""
    if not value:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"


SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


WITHOUT_CENTS = 100  # from here on, an estimate's cents say nothing


def show_money(money: tuple[float, str]) -> str:
    """An amount and its ISO currency: "$1.20", "€0.94", "CHF 3.10"; whole units from a hundred on."""
    amount, currency = money
    sign = {"USD": "$", "EUR": "€", "GBP": "£", "INR": "₹"}.get(currency, currency + "\u00a0")
    return f"{sign}{amount:,.0f}" if amount >= WITHOUT_CENTS else f"{sign}{amount:.2f}"


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def show_when(iso: str) -> str:
    """A clock time a person can expect: "Sat 14 Mar, 07:12". Not strftime, which asks the C locale."""
    t = datetime.fromisoformat(iso)
    return f"{_DAYS[t.weekday()]} {t.day} {_MONTHS[t.month - 1]}, {t.hour:02d}:{t.minute:02d}"


def show_date(iso: str) -> str:
    """A day far enough away to need its year: "14 Mar 2028"."""
    t = datetime.fromisoformat(iso)
    return f"{t.day} {_MONTHS[t.month - 1]} {t.year}"
