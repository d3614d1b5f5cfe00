"""manifest.json: where the tokens came from, what was done to them, and what is in each shard.

>>> read_manifest(Path("data/fineweb-edu")).tokens                                    # doctest: +SKIP
3699999808

The file may come from anyone: every field is checked before it is used, and a wrong one is named.
"""

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.files import write_text
from onecard.untrusted import finite, is_unicode, read_json_object

SCHEMA = "onecard.data/1"
MANIFEST = "manifest.json"
TOKENIZER_FILE = "tokenizer.json"
FORMATS = ("llm.c", "nanogpt", "datatrove", "npy")
LARGEST_VOCAB = 65536  # ids are 16-bit in every shard format here
_MOST_TOKENS = 2**62


@dataclass(frozen=True)
class Manifest:
    name: str
    sources: list[dict[str, Any]]
    tokenizer: dict[str, Any]
    splits: dict[str, dict[str, Any]]
    bytes_per_token: float | None
    seed: int | None
    val_fraction: float | None
    filters: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    duplicates: int | None = None  # exact copies of an earlier document; None where nobody counted
    # whose each validation token is, where there are several sources: `file` and its `sha256`
    validation: dict[str, str] = field(default_factory=dict)
    order: str = "shuffled"  # or "as given", "running text"
    format: str = "llm.c"  # or "nanogpt", "datatrove": raw uint16 without a header
    # digest of the sources and options it was made for; empty where others made it
    request: str = ""
    fingerprint: str = ""
    version: str = ""
    created: str = ""
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        answer = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return {"schema": answer.pop("schema"), **answer}

    @property
    def tokens(self) -> int:
        return sum(int(split["tokens"]) for split in self.splits.values())


def bytes_per_token(splits: dict[str, dict[str, Any]]) -> float | None:
    tokens, text = (sum(split[key] for split in splits.values()) for key in ("tokens", "bytes"))
    return round(text / tokens, 6) if tokens else None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; one that is damaged or of another schema is named."""
    path = folder / MANIFEST
    content = read_json_object(path, "the manifest", hint="prepare the data again")
    if content.get("schema") != SCHEMA:
        raise UserError(
            f"{path} is not a manifest of this version ({SCHEMA})", hint="prepare the data again"
        )
    try:
        return checked_manifest(content)
    except ValueError as error:
        raise UserError(
            f"the manifest {path} is damaged: {error}", hint="prepare the data again"
        ) from None


def write_manifest(path: Path, manifest: Manifest) -> None:
    text = json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def checked_manifest(content: dict[str, Any]) -> Manifest:
    """A manifest from parsed JSON; ValueError names the first field that is missing or wrong."""
    values = {}
    for entry in fields(Manifest):
        if entry.name in content:
            _require(_CHECKS[entry.name](content[entry.name]), entry.name, content[entry.name])
            values[entry.name] = content[entry.name]
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise ValueError(f"{entry.name} is missing")
    return Manifest(**values)


def check_tokenizer_entry(entry: Any) -> bool:
    """The `tokenizer` entry of a manifest, of any kind, is right; ValueError names what is wrong with it."""
    _require(isinstance(entry, dict), "tokenizer", entry)
    name, eot = entry.get("name"), entry.get("eot")
    _require(name is None or _is_text(name), "tokenizer.name", name)
    size = entry.get("vocab_size")
    _require(_is_count(size) and 0 < size <= LARGEST_VOCAB, "tokenizer.vocab_size", size)
    _require(eot is None or (_is_count(eot) and eot < size), "tokenizer.eot", eot)
    for key in ("file", "sha256"):
        _require(entry.get(key) is None or _is_text(entry[key]), f"tokenizer.{key}", entry.get(key))
    if "chars" in entry:
        check_characters(entry["chars"])
    special = entry.get("special", [])
    good = isinstance(special, list) and all(_is_text(s) and 0 < len(s) <= 64 for s in special)
    _require(good and len(set(special)) == len(special), "tokenizer.special", special)
    return True


def check_characters(chars: Any) -> None:
    """A table of single characters; ValueError where it is none."""
    if not isinstance(chars, list) or not chars or len(chars) > LARGEST_VOCAB:
        raise ValueError("it holds no table of characters")
    for char in chars:
        if not isinstance(char, str) or len(char) != 1:
            raise ValueError(f"{char!r:.40} is not one character")
        if not is_unicode(char):
            raise ValueError(f"{char!r} is half of a surrogate pair, not a character")
    if len(set(chars)) != len(chars):
        raise ValueError("a character is there twice")


def _check_splits(splits: Any) -> bool:
    _require(isinstance(splits, dict), "splits", splits)
    for name, split in splits.items():
        where = f"splits.{name:.40}"
        _require(isinstance(split, dict), where, split)
        _require(_is_count(split.get("tokens")), f"{where}.tokens", split.get("tokens"))
        for key in ("documents", "bytes"):
            _require(_is_count(split.get(key, 0)), f"{where}.{key}", split.get(key))
        shards = split.get("shards")
        _require(isinstance(shards, list), f"{where}.shards", shards)
        for shard in shards:
            _require(isinstance(shard, dict), f"{where}.shards", shard)
            _require(_is_text(shard.get("file")), f"{where}.shards.file", shard.get("file"))
            _require(_is_count(shard.get("tokens")), f"{where}.shards.tokens", shard.get("tokens"))
            digest = shard.get("sha256")
            _require(digest is None or _is_text(digest), f"{where}.shards.sha256", digest)
        total = sum(shard["tokens"] for shard in shards)
        _require(total == split["tokens"], f"{where}.tokens", split["tokens"])
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value and is_unicode(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS


def _is_number_or_none(value: Any) -> bool:
    number = finite(value)
    return value is None or (number is not None and number >= 0)


def _is_source_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(source, dict)
        and _is_text(source.get("uri"))
        and all(source.get(key) is None or _is_text(source[key]) for key in _SOURCE_TEXTS)
        and all(_is_number_or_none(source.get(key)) for key in ("share", "share_asked", "epochs"))
        and _is_split_table(source.get("splits", {}))
        for source in value
    )


def _is_split_table(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_count_table(split) for split in value.values())


def _is_count_table(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_count(count) for count in value.values())


def _is_validation(value: Any) -> bool:
    if value == {}:
        return True
    return (
        isinstance(value, dict)
        and _is_text(value.get("file"))
        and Path(value["file"]).name == value["file"]
        and _is_text(value.get("sha256"))
    )


_SOURCE_TEXTS = ("revision", "licence", "files", "state", "name")
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: _is_text(value) and bool(value),
    "sources": _is_source_list,
    "tokenizer": check_tokenizer_entry,
    "splits": _check_splits,
    "bytes_per_token": _is_number_or_none,
    "seed": lambda value: value is None or (isinstance(value, int) and abs(value) < 2**64),
    "val_fraction": _is_number_or_none,
    "filters": lambda value: isinstance(value, dict),
    "skipped": _is_count_table,
    "duplicates": lambda value: value is None or _is_count(value),
    "validation": _is_validation,
    "order": _is_text,
    "format": lambda value: value in FORMATS,
    "request": _is_text,
    "fingerprint": _is_text,
    "version": _is_text,
    "created": _is_text,
    "schema": _is_text,
}


def _require(right: bool, name: str, value: Any) -> None:
    if not right:
        text = repr(value)
        raise ValueError(f"{name} is {text if len(text) <= 60 else text[:57] + '…'}")
