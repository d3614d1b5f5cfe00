"""Which rows are wanted and what their text is made of: conditions on columns and templates, parsed and checked.

>>> parse_condition("int_score >= 4").holds({"int_score": 5})
True
>>> parse_template("{title}\\n\\n{text}").fill({"title": "A", "text": "b"})
'A\\n\\nb'
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from onecard.errors import UserError

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"([\w.-]+) ?(>=|<=|!=|==|>|<|=)(.+)", re.DOTALL)
_FIELD = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Condition:
    """`column operator value`: numbers are compared as numbers, everything else as text."""

    column: str
    sign: str
    value: float | str

    def holds(self, row: Mapping[str, Any]) -> bool:
        value = row.get(self.column)
        if isinstance(self.value, str):
            if isinstance(value, bool):
                value = str(value).lower()
            return isinstance(value, str) and _OPERATORS[self.sign](value, self.value)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return False
        return isinstance(value, int | float) and _OPERATORS[self.sign](value, self.value)


def parse_condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text.strip())
    if match is None or not match[3].strip():
        raise UserError(
            f"{text!r} is not a condition on a column",
            hint="write it like language=en, score>=3 or int_score==5",
        )
    column, sign, value = match[1], match[2], match[3].strip()
    value = value.strip("\"'") if value[:1] in ("'", '"') else value
    try:
        return Condition(column, sign, float(value))
    except ValueError:
        return Condition(column, sign, value)


@dataclass(frozen=True)
class Template:
    """Literal text and column names in alternation, beginning and ending with literal text."""

    pieces: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(self.pieces[1::2]))

    def fill(self, row: Mapping[str, Any]) -> str | None:
        """The text of a row; a column without a value is empty, and a row without any value has no text."""
        values = [row.get(column) for column in self.pieces[1::2]]
        if all(value is None for value in values):
            return None
        texts = ["" if value is None else str(value) for value in values]
        pairs = zip(self.pieces[0::2], [*texts, ""], strict=True)
        return "".join(literal + text for literal, text in pairs)


def parse_template(text: str) -> Template:
    """Only plain column names stand in braces: nothing in a template is ever evaluated."""
    pieces = _FIELD.split(text)
    if len(pieces) < 3 or any(not re.fullmatch(r"[\w.-]+", name) for name in pieces[1::2]):
        raise UserError(
            f"{text!r} is not a template of columns",
            hint='name columns in braces, as in "{title}\\n\\n{text}"',
        )
    if any("{" in literal or "}" in literal for literal in pieces[0::2]):
        raise UserError(
            f"{text!r} has a brace without its partner", hint='as in "{title}\\n\\n{text}"'
        )
    return Template(tuple(pieces))
