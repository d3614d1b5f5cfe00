"""Numbers, dates and money as a locale writes them, by Babel: es 10.486,5 · es_MX 10,486.5 · hi 5,24,288.

Hindi keeps Latin digits and groups by lakh, as CLDR has it; M and B stay for millions and billions, as the field says
them, where CLDR would say करोड़ and अरब. Spanish counts in millions up to a million of them, its billón: 10.490 M de tokens.
"""

import gettext
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from babel import Locale, UnknownLocaleError
from babel.dates import format_date, format_datetime
from babel.numbers import format_currency, format_decimal, format_percent

from onecard.messages import LARGEST, Plural, T, Words, too_long
from onecard.units import GIB, KIB, MIB, SUPERSCRIPT, WITHOUT_CENTS, show_duration

_SPEC = re.compile(r"(\+)?(,)?(?:\.(\d+))?([fgde%])?")
_FIELD_SCALE = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_PERIODS = {
    "H1 ": T("first half of {year}"),
    "H2 ": T("second half of {year}"),
    "early ": T("early {year}"),
}
_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "es": ((1e12, "B"), (1e6, "M")),  # B: billón, a million millions
    "hi": _FIELD_SCALE,
}


def locale_words(code: str, region: str) -> tuple[str, Callable[[gettext.NullTranslations], Words]]:
    """The locale that Babel knows for a language and region, and a maker of its formatter."""
    try:
        locale = Locale.parse(f"{code}_{region}" if region else code)
    except (UnknownLocaleError, ValueError):
        locale = Locale.parse(code)
    return str(locale), lambda catalogue: LocaleWords(locale, catalogue)


def _rounded(value: float, digits: int) -> Decimal:
    """As Python rounds it, so that no language says another figure than English does."""
    return Decimal(f"{value:.{digits}f}")


class LocaleWords(Words):
    """The quantities of `onecard.messages`, and Python's own number specs, in one locale."""

    def __init__(self, locale: Locale, catalogue: gettext.NullTranslations):
        self.locale = locale
        self.catalogue = catalogue
        super().__init__(
            {
                "count": self.count,
                "int": self.whole,
                "bytes": self.size,
                "duration": self.duration,
                "percent": self.percent,
                "power": self.power,
                "money": self.money,
                "when": self.when,
                "date": self.date,
                "period": self.period,
            }
        )

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in self.show:
            return self.show[format_spec](value)
        spec = _SPEC.fullmatch(format_spec)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or spec is None
            or not math.isfinite(value)
        ):
            return str(super().format_field(value, format_spec))
        if too_long(value, format_spec):
            return self.power(value)
        plus = "+" if spec[1] and value >= 0 else ""
        plain = format(value, format_spec.replace(",", "").replace("+", ""))
        if spec[4] == "%":
            # Python's own % has six decimals
            return plus + self.percent(value, 6 if spec[3] is None else int(spec[3]))
        if "e" in plain:  # 6e-04 stays as the config writes it
            return plus + plain.replace(".", self.decimal("0.1")[1])
        digits = len(plain.partition(".")[2])
        return plus + self.number(float(plain), digits, grouped=bool(spec[2]))

    def number(self, value: float, digits: int, grouped: bool = True) -> str:
        pattern = ("#,##,##0" if self.locale.language == "hi" else "#,##0") + (
            "." + "0" * digits if digits else ""
        )
        return str(
            format_decimal(
                _rounded(value, digits), format=pattern, locale=self.locale, group_separator=grouped
            )
        )

    def decimal(self, text: str) -> str:
        return self.number(float(text), len(text.partition(".")[2]))

    def whole(self, value: float) -> str:
        if abs(value) >= LARGEST:
            return self.power(value)
        return self.number(round(value), 0)

    def count(self, value: float) -> str:
        for limit, letter in _SCALES.get(self.locale.language, _FIELD_SCALE):
            if abs(value) >= limit:
                digits = 0 if limit == 1e6 and abs(value) >= 1e9 else 2
                # ten millions at a time, as English rounds its billions to two decimals
                shown = round(value / 1e9, 2) * 1e3 if digits == 0 else value / limit
                return f"{self.number(shown, digits)}\u00a0{letter}"
        return self.whole(value)

    def size(self, value: float) -> str:
        for limit, name in ((1024**4, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
            if abs(value) >= limit:
                return f"{self.number(value / limit, 2 if limit >= GIB else 0)}\u00a0{name}"
        return f"{self.whole(value)}\u00a0B"

    def duration(self, seconds: float) -> str:
        """units.show_duration, figure by figure: the same cut points, this language's numbers and words."""
        pieces = []
        plain = show_duration(seconds).replace(",", "")
        for number, unit in re.findall(r"(?<![\d.])([\d.]+) (\w+)", plain):
            shown = number if re.fullmatch(r"0\d", number) else self.decimal(number)  # 3 h 05 min
            pieces.append(f"{shown} {self._unit(unit, float(number))}")
        return " ".join(pieces)

    def _unit(self, unit: str, number: float) -> str:
        plurals = {
            "h": Plural("hour", "hours", n=number),
            "d": Plural("day", "days", n=number),
            "y": Plural("year", "years", n=number),
        }
        if unit in plurals:
            return self.catalogue.ngettext(plurals[unit].one, plurals[unit].many, math.ceil(number))
        return self.catalogue.gettext({"ms": T("ms"), "s": T("s"), "min": T("min")}[unit].text)

    def percent(self, share: float, digits: int | None = None) -> str:
        digits = (1 if share < 0.1 else 0) if digits is None else digits
        # "#,##0 %" in Spain, "#,##0%" in Mexico
        pattern = str(self.locale.percent_formats[None].pattern)
        return str(
            format_percent(
                _rounded(share * 100, digits) / 100,
                pattern.replace("0", "0." + "0" * digits) if digits else pattern,
                locale=self.locale,
            )
        )

    def power(self, value: float) -> str:
        if not value:
            return "0"
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{self.decimal(mantissa)} × 10{str(int(exponent)).translate(SUPERSCRIPT)}"

    def money(self, money: tuple[float, str]) -> str:
        amount, currency = money
        digits = 0 if amount >= WITHOUT_CENTS else 2  # the same figures in every language
        pattern = str(self.locale.currency_formats["standard"].pattern)
        if not digits:
            pattern = pattern.replace("0.00", "0")
        shown = str(
            format_currency(
                _rounded(amount, digits),
                currency,
                format=pattern,
                locale=self.locale,
                currency_digits=False,
            )
        )
        return re.sub(r"([A-Z]{3})(?=\d)", "\\1\u00a0", shown)  # es_MX: USD 0.62

    def when(self, iso: str) -> str:
        return str(
            format_datetime(datetime.fromisoformat(iso), "EEE d MMM, HH:mm", locale=self.locale)
        )

    def date(self, iso: str) -> str:
        return str(format_date(datetime.fromisoformat(iso), "d MMM y", locale=self.locale))

    def period(self, text: str) -> str:
        """A time of publication, "Mar-Sep 2026" or "Q2 2025", with this language's months."""
        for start, words in _PERIODS.items():
            if text.startswith(start):
                return self.catalogue.gettext(words.text).format(year=text.removeprefix(start))
        months = self.locale.months["format"]["abbreviated"]
        quarters = self.locale.quarters["format"]["abbreviated"]
        text = re.sub(r"\bQ([1-4])\b", lambda match: str(quarters[int(match[1])]), text)
        return re.sub(
            "|".join(_MONTHS), lambda match: str(months[_MONTHS.index(match[0]) + 1]), text
        )

    def joined(self, text: str) -> str:
        """Spanish counts "10.490 M de tokens", but "524.288 tokens"."""
        if self.locale.language != "es":
            return text
        return re.sub(r"(\u00a0[MB]) (tokens|parámetros)", r"\1 de \2", text)
