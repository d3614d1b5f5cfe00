"""Sentences that carry their figures apart, so that each language prints them its own way.

>>> str(Note("epochs", "the data is seen {epochs:.1f} times over {tokens:count} tokens", epochs=2.85, tokens=3.68e9))
'the data is seen 2.9 times over 3.68 B tokens'

A format name after the colon (count, int, bytes, duration, percent, money) says what kind of quantity it is; `report`
swaps in a formatter for the reader's language and looks the template up in its catalogue.
"""

import string
from collections.abc import Callable, Mapping
from typing import Any

from onecard.units import show_bytes, show_count, show_duration

SHOW: dict[str, Callable[[Any], str]] = {
    "count": show_count,
    "int": lambda value: f"{value:,.0f}",
    "bytes": show_bytes,
    "duration": show_duration,
    "percent": lambda share: f"{share:.1%}" if share < 0.1 else f"{share:.0%}",
}


class Words(string.Formatter):
    """str.format with quantity names as format specs."""

    def __init__(self, show: Mapping[str, Callable[[Any], str]] = SHOW):
        self.show = show

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in self.show:
            return self.show[format_spec](value)
        return str(super().format_field(value, format_spec))


class Note:
    """One sentence: a stable code for programs, an English template for catalogues, and its figures."""

    def __init__(self, code: str, text: str, **values: Any):
        self.code = code
        self.text = text
        self.values = values

    def __str__(self) -> str:
        return Words().vformat(self.text, (), self.values)

    def __repr__(self) -> str:
        return f"Note({self.code!r}, {str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Note) and (self.code, str(self)) == (other.code, str(other))

    def __hash__(self) -> int:
        return hash((self.code, str(self)))
