"""The words that the readers of text share: a unit of input, which documents are wanted, a batch of them.

A *unit* is the piece of input one worker takes at a time. How the input is cut into units never shows in the result:
each document carries its place (file and row, line or byte), and everything later is keyed by text and place.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from onecard.data.sources.selection import Condition, Template, parse_condition, parse_template

Kind = Literal["parquet", "jsonl", "text", "running", "tokens"]
BATCH_BYTES = 4 * 1024 * 1024  # of text handed to the tokeniser at once
PIECE_BYTES = 1024 * 1024  # a long text file is cut here, at line ends


@dataclass(frozen=True)
class Unit:
    """Part of one file, or several whole small text files: (place among all files, path) each."""

    index: int
    kind: Kind
    files: tuple[tuple[int, str], ...]
    start: int  # first row group, byte or piece
    stop: int  # one past the last; 0 for whole files
    size: int = 0  # bytes of text, as far as known before reading
    file_bytes: int = 0  # of a text in pieces: it is read no further, even if it grows meanwhile
    first_row: int = 0  # parquet: of the first row group
    rows: int = 0
    chunks: tuple[tuple[int, ...], ...] = ()  # parquet: the columns' places and sizes (Chunk)
    source: int = 0  # which of the request's sources it belongs to

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Unit":
        return Unit(
            **{
                **raw,
                "files": tuple((int(place), str(path)) for place, path in raw["files"]),
                "chunks": tuple(tuple(chunk) for chunk in raw["chunks"]),
            }
        )


@dataclass(frozen=True)
class Reading:
    """Which documents are wanted."""

    column: str = "text"
    min_chars: int = 0
    language: str | None = None
    min_language_score: float | None = None
    split_at: int | None = None  # running text: the byte where validation begins
    template: str | None = None  # text made of several columns
    where: tuple[str, ...] = ()  # conditions on columns
    separator: str | None = None  # what stands between the documents of a text file
    piece_bytes: int = PIECE_BYTES  # of a text file without one

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Reading":
        return Reading(**{**raw, "where": tuple(raw["where"])})

    @cached_property
    def filled(self) -> Template | None:
        return None if self.template is None else parse_template(self.template)

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions on columns, those of the options `language` and `min_language_score` too."""
        parsed = [parse_condition(text) for text in self.where]
        if self.language is not None:
            parsed.append(Condition("language", "=", self.language))
        if self.min_language_score is not None:
            parsed.append(Condition("language_score", ">=", self.min_language_score))
        return tuple(parsed)

    @property
    def text_columns(self) -> list[str]:
        return [self.column] if self.filled is None else self.filled.columns

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys([*self.text_columns, *(item.column for item in self.conditions)]))


@dataclass
class Batch:
    """Some documents: their text (or their ids), file and place in it; what was left out, by reason."""

    texts: list[str] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)  # of documents that are tokens already
    places: list[tuple[int, int]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    chars: int = 0

    def add_ids(self, ids: Any, file: int, place: int) -> None:
        self.ids.append(ids)
        self.places.append((file, place))
        self.chars += 4 * len(ids)  # about what their text would have

    def add(self, text: str, file: int, place: int) -> None:
        self.texts.append(text)
        self.places.append((file, place))
        self.chars += len(text)
