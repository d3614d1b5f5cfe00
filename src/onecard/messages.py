"""Sentences that carry their figures apart, so that each language prints them its own way.

>>> str(T("the data is seen {epochs:.1f} times over {tokens:count} tokens", epochs=2.85, tokens=3.68e9))
'the data is seen 2.9 times over 3.68 B tokens'

A format name after the colon (count, int, bytes, duration, percent, power, money, when, date, period) says what kind of
quantity it is; `report` swaps in a formatter for the reader's language and looks the template up in its catalogue.
Money is a pair (amount, ISO currency), `when` and `date` an ISO time, `period` one like "Mar-Sep 2026"; any other spec
is Python's own, with powers of ten where it would print more than 15 digits. A figure may itself be a T.

`tools/messages.py` finds the templates in the source, so they are written out where they are used, never computed.
"""

import math
import string
from collections.abc import Callable, Mapping
from typing import Any

from onecard.sentences import SENTENCES
from onecard.units import (
    show_bytes,
    show_count,
    show_date,
    show_duration,
    show_money,
    show_power,
    show_when,
)

SHOW: dict[str, Callable[[Any], str]] = {
    "count": show_count,
    "int": lambda value: f"{value:,.0f}" if abs(value) < LARGEST else show_power(value),
    "bytes": show_bytes,
    "duration": show_duration,
    "percent": lambda share: f"{share:.1%}" if share < 0.1 else f"{share:.0%}",
    "power": show_power,
    "money": show_money,
    "when": show_when,
    "date": show_date,
    "period": str,
}
LARGEST = 1e15  # above it, a fixed number of decimals is only digits


class Words(string.Formatter):
    """str.format with quantity names as format specs."""

    def __init__(self, show: Mapping[str, Callable[[Any], str]] = SHOW):
        self.show = show

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in self.show:
            return self.show[format_spec](value)
        if too_long(value, format_spec):
            return self.show["power"](value)
        return str(super().format_field(value, format_spec))

    def joined(self, text: str) -> str:
        """A whole sentence, after its figures are in place: where the language joins the two in its own way."""
        return text


def too_long(value: Any, spec: str) -> bool:
    """Whether a number would print as a line of digits, such as the perplexity of a run that diverged."""
    return (
        isinstance(value, int | float)
        and spec.endswith(("f", "d"))
        and LARGEST <= abs(value) < math.inf
    )


class T:
    """Words for people: an English template that catalogues translate, and its figures.

    >>> str(T("{tokens:count} tokens in {steps:int} steps", tokens=10_485_760_000, steps=20_000))
    '10.49 B tokens in 20,000 steps'
    """

    def __init__(self, text: str, /, **values: Any):
        self.text = text
        self.values = values

    def __str__(self) -> str:
        return Words().vformat(self.text, (), self.values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class Plural(T):
    """Words that depend on the figure named `n`: Plural("{n:int} card", "{n:int} cards", n=2)."""

    def __init__(self, one: str, many: str, /, **values: Any):
        super().__init__(one if values["n"] == 1 else many, **values)
        self.one, self.many = one, many


class Note(T):
    """One sentence: a stable code for programs, whose English template is in onecard.sentences, and its figures."""

    def __init__(self, code: str, /, **values: Any):
        super().__init__(SENTENCES[code], **values)
        self.code = code

    def __repr__(self) -> str:
        return f"Note({self.code!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and (self.code, str(self)) == (other.code, str(other))

    def __hash__(self) -> int:
        return hash((self.code, str(self)))


class Formula(T):
    """A line of one of the tables of formulas, which tools/messages.py finds as a whole; it holds no figures."""

    def __init__(self, text: str):
        super().__init__(text)

    def __str__(self) -> str:
        return self.text
