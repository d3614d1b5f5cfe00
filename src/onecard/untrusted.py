"""What comes from other people's files, made safe before it is shown or held in memory.

>>> printable("loss\\x1b[2J 3.1")
'loss\\\\x1b[2J 3.1'
>>> printable("a\\u202eb")
'a\\\\u202eb'
"""

import contextlib
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onecard.errors import UserError

MOST_JSON_BYTES = 64 * 2**20  # a manifest of 100,000 shards has some 20 MB
MOST_JSON_DEPTH = 100

# Control characters, and the format characters that reorder or hide text: Cc, Cf, lone surrogates, line separators.
# Joiners stay: Devanagari and other scripts are written with them.
_HIDDEN_KINDS = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"


def printable(text: str, keep: str = "") -> str:
    """The text with every character that could move the cursor, reorder or hide text written as an escape.

    `keep` names characters that may stay (a newline, where several lines are meant).
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _harmless(c) or c in keep else _escaped(c) for c in text)


def json_text(value: Any) -> str:
    """JSON for people and programs: other alphabets as they are, what could hide or reorder text as escapes.

    >>> print(json_text({"name": "कार्ड \u202e"}))
    {
     "name": "कार्ड \\u202e"
    }
    """
    text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
    if text.isascii():
        return text  # JSON escapes the control characters of ASCII itself
    return "".join(c if c == "\n" or _harmless(c) else json.dumps(c)[1:-1] for c in text)


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text: JSON and file names may carry half of a surrogate pair, which is no character.

    >>> is_unicode("é"), is_unicode(chr(0xD800))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextlib.contextmanager
def readable(path: object, hint: str | None = None) -> Iterator[None]:
    """Around reading what a user named: where the system refuses it, that is one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}", hint) from None


def finite(value: Any) -> float | None:
    """The number of a JSON file, where it is one to compute with: no bool, no NaN, nothing beyond a float.

    >>> finite(3), finite(True), finite(float("nan")), finite(10**400)
    (3.0, None, None, None)
    """
    return float(value) if type(value) in (int, float) and abs(value) < 1e300 else None


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """A file of bounded size, also where it grows meanwhile; ValueError where it is larger."""
    with open(path, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"larger than {most_bytes:,} bytes")
    return content


def read_json(path: Path, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """A JSON file of bounded size and depth; ValueError where it is none, OSError where it cannot be read."""
    return parse_json(read_bytes(path, most_bytes))


def parse_json(content: bytes | str) -> Any:
    """json.loads that raises nothing but ValueError, whatever the content is.

    Deeper nesting than any file of ours has is refused: what is read is later walked, shown and written again.
    """
    try:
        value = json.loads(content, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    openings = (
        content.count(b"[") + content.count(b"{")
        if isinstance(content, bytes)
        else content.count("[") + content.count("{")
    )
    if openings > MOST_JSON_DEPTH and _depth_exceeds(value, MOST_JSON_DEPTH):
        raise ValueError("nested too deeply")
    return value


def _depth_exceeds(value: Any, most: int) -> bool:
    """Level by level, without recursion."""
    level = [value]
    for _ in range(most):
        nested = [each for each in level if isinstance(each, dict | list)]
        inner = [each.values() if isinstance(each, dict) else each for each in nested]
        level = [value for values in inner for value in values]
    return any(isinstance(each, dict | list) for each in level)


def read_json_object(path: Path, what: str, hint: str) -> dict[str, Any]:
    """A JSON file that must hold an object; UserError, naming `what` it should be, where it does not."""
    try:
        value = read_json(path)
    except OSError as error:
        raise UserError(f"{what} {path} cannot be read: {error.strerror or error}", hint) from None
    except ValueError as error:
        raise UserError(f"{what} {path} is damaged: {error}", hint) from None
    if not isinstance(value, dict):
        raise UserError(f"{what} {path} is damaged: it holds no JSON object", hint)
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _harmless(character: str) -> bool:
    return unicodedata.category(character) not in _HIDDEN_KINDS or character in _JOINERS


def _escaped(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
