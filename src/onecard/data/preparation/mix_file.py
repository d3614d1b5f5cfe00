"""A mix: what each source gives and how it is read, from the command line's words or a small TOML file.

    tokens = "3B"

    [[source]]
    from = "fineweb-edu"
    share = "60%"
    where = ["int_score >= 4"]

    [[source]]
    from = "my_notes/"
    share = "40%"
    licence = "my own"

>>> mix_of_words(["web=60%", "notes/=40%"])[1][0].share
0.6
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from onecard.data.shares import checked_shares, parse_percent, parse_shares
from onecard.errors import UserError, nearest
from onecard.units import parse_count
from onecard.untrusted import read_bytes

_MOST_BYTES = 1 << 20
_TOP_KEYS = ("tokens", "name", "source")


@dataclass(frozen=True)
class SourceOptions:
    """One source of a mix; None or empty: as the options for all sources say."""

    word: str
    share: float
    column: str | None = None
    template: str | None = None
    where: tuple[str, ...] = ()
    separator: str | None = None
    language: str | None = None
    min_language_score: float | None = None
    min_chars: int | None = None
    licence: str | None = None


def mix_of_words(
    words: Sequence[str],
) -> tuple[list[str], tuple[SourceOptions, ...], dict[str, Any]]:
    """The sources without their shares, the mix (empty where there is none), and what a mix file says of the whole."""
    if len(words) == 1 and words[0].endswith(".toml") and Path(words[0]).is_file():
        return read_mix_file(Path(words[0]))
    shares = parse_shares(words)
    if shares is None:
        return list(words), (), {}
    mix = tuple(SourceOptions(item.word, item.share) for item in shares)
    return [item.word for item in shares], mix, {}


def read_mix_file(path: Path) -> tuple[list[str], tuple[SourceOptions, ...], dict[str, Any]]:
    """A mix file, every key checked; one that is unknown or of the wrong type is named."""
    try:
        raw = tomllib.loads(read_bytes(path, _MOST_BYTES).decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a mix file: {error}", hint="docs/data.md shows one"
        ) from None
    _known(path, raw, _TOP_KEYS)
    entries = raw.get("source")
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise UserError(f"{path} names no [[source]]", hint="docs/data.md shows a mix file")
    pairs = []
    for entry in entries:
        _known(path, entry, ("from", *(f.name for f in fields(SourceOptions) if f.name != "word")))
        word = entry.get("from")
        if not isinstance(word, str) or not word:
            raise UserError(f"{path}: a [[source]] without from", hint='as in from = "fineweb-edu"')
        pairs.append((word, _share(path, word, entry.get("share"))))
    shares = checked_shares(pairs)
    mix = tuple(
        _source(path, entry, word, share)
        for entry, (word, _), share in zip(entries, pairs, shares, strict=True)
    )
    whole: dict[str, Any] = {}
    if "tokens" in raw:
        whole["tokens"] = parse_count(str(raw["tokens"]))
    if "name" in raw:
        whole["name"] = str(raw["name"])
    return [word for word, _ in pairs], mix, whole


def _share(path: Path, word: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_percent(value, word)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(
            f"{path}: {word} has a share of {value!r}", hint='write it like "60%" or 0.6'
        )
    return float(value)


def _source(path: Path, entry: dict[str, Any], word: str, share: float) -> SourceOptions:
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key in ("from", "share"):
            continue
        if key == "where":
            value = tuple(
                [value] if isinstance(value, str) else value if isinstance(value, list) else ()
            )
            right = bool(value) and all(isinstance(item, str) for item in value)
        elif key == "min_chars":
            right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        elif key == "min_language_score":
            right = isinstance(value, int | float) and not isinstance(value, bool)
        else:
            right = isinstance(value, str) and bool(value)
        if not right:
            raise UserError(
                f"{path}: {word} has {key} = {entry[key]!r}", hint="docs/data.md lists the keys"
            )
        values[key] = value
    return SourceOptions(word, share, **values)


def _known(path: Path, table: dict[str, Any], keys: Sequence[str]) -> None:
    for key in table:
        if key not in keys:
            raise UserError(
                f"{path}: unknown key {key!r}",
                hint=nearest(key, keys) or f"known: {', '.join(keys)}",
            )
