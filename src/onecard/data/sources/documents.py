"""Documents out of files: parquet by row group, jsonl by byte range, text by file or piece, a few megabytes at a time.

A *unit* is the piece of input one worker takes at a time. How the input is cut into units never shows in the result:
each document carries its place (file and row, line or byte), and everything later is keyed by text and place.

>>> unit = Unit(0, "text", ((0, "notes.txt"),), 0, 0)                                 # doctest: +SKIP
>>> for batch in batches(unit, Reading()): print(batch.texts)                         # doctest: +SKIP
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from onecard.data.sources.texts import READ_BYTES, compressed, first_line, stream, texts_of
from onecard.errors import UserError

Kind = Literal["parquet", "jsonl", "text", "running"]
BATCH_BYTES = 4 * 1024 * 1024  # of text handed to the tokeniser at once


@dataclass(frozen=True)
class Unit:
    """Part of one file, or several whole small text files: (place among all files, path) each."""

    index: int
    kind: Kind
    files: tuple[tuple[int, str], ...]
    start: int  # first row group, byte or piece
    stop: int  # one past the last; 0 for whole files
    size: int = 0  # bytes of text, as far as known before reading

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Unit":
        return Unit(
            **{**raw, "files": tuple((int(place), str(path)) for place, path in raw["files"])}
        )


@dataclass(frozen=True)
class Reading:
    """Which documents are wanted."""

    column: str = "text"
    min_chars: int = 0
    language: str | None = None
    min_language_score: float | None = None
    split_at: int | None = None  # running text: the byte where validation begins


@dataclass
class Batch:
    """Some documents: their text, file and place in it; what was left out, by reason."""

    texts: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    chars: int = 0

    def add(self, text: str, file: int, place: int) -> None:
        self.texts.append(text)
        self.places.append((file, place))
        self.chars += len(text)


def batches(unit: Unit, reading: Reading) -> Iterator[Batch]:
    """The unit's documents in order, about BATCH_BYTES at a time; the same batches every time."""
    if unit.kind == "parquet":
        yield from _parquet(unit, reading)
    elif unit.kind == "jsonl":
        yield from _jsonl(unit, reading)
    else:
        yield from _text(unit, reading)


# ---- parquet ----


def open_parquet(path: str | Path, reading: Reading) -> Any:
    """The file, with the wanted columns checked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path} is not a whole parquet file ({first_line(error)})",
            hint="it was cut short or damaged: get it again",
        ) from None
    try:
        schema = file.schema_arrow
        for column in wanted_columns(reading):
            if schema.get_field_index(column) < 0:
                raise UserError(
                    f"{path} has no column {column!r}; it has {', '.join(schema.names)}",
                    hint=f"name the text column: --column {schema.names[0]}",
                )
        kind = schema.field(reading.column).type
        if not (
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
            or (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))
        ):
            raise UserError(
                f"{path}: column {reading.column!r} is {kind}, not text",
                hint="name the text column with --column",
            )
    except BaseException:
        file.close()
        raise
    return file


def wanted_columns(reading: Reading) -> list[str]:
    columns = [reading.column]
    if reading.language is not None:
        columns.append("language")
    if reading.min_language_score is not None:
        columns.append("language_score")
    return columns


def _parquet(unit: Unit, reading: Reading) -> Iterator[Batch]:
    import pyarrow as pa

    (place, path), columns = unit.files[0], wanted_columns(reading)
    with open_parquet(path, reading) as file:
        meta = file.metadata
        row = sum(meta.row_group(g).num_rows for g in range(unit.start))
        rows = sum(meta.row_group(g).num_rows for g in range(unit.start, unit.stop))
        # Fewer rows at once where they are long: one row group may hold gigabytes.
        at_once = max(16, min(100_000, rows * BATCH_BYTES // max(unit.size, 1)))
        try:
            for record in file.iter_batches(
                at_once, range(unit.start, unit.stop), columns, use_threads=False
            ):
                yield _from_arrow(record, place, row, reading)
                row += record.num_rows
        except (pa.ArrowException, OSError) as error:
            raise UserError(
                f"{path} is damaged near row {row:,} ({first_line(error)})",
                hint="get it again, or leave it out",
            ) from None


def _from_arrow(record: Any, place: int, row: int, reading: Reading) -> Batch:
    batch = Batch()
    column = record.column(record.schema.get_field_index(reading.column))
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError:
        texts = [_or_none(value, batch.skipped) for value in column]
    places = range(row, row + len(texts))
    keep = _filters(record, texts, reading)
    if keep is None and None not in texts:
        batch.texts, batch.places = texts, [(place, at) for at in places]
        batch.chars = sum(map(len, texts))
        return batch
    nothing = sum(text is None for text in texts) - batch.skipped["invalid UTF-8"]
    if nothing:
        batch.skipped["no text"] += nothing
    for index, (text, at) in enumerate(zip(texts, places, strict=True)):
        if text is None:
            continue
        if keep is None or keep[index]:
            batch.add(text, place, at)
        else:
            batch.skipped["filtered"] += 1
    return batch


def _filters(record: Any, texts: list[str | None], reading: Reading) -> list[bool] | None:
    if reading.language is None and reading.min_language_score is None and not reading.min_chars:
        return None
    keep = [text is not None and len(text) >= reading.min_chars for text in texts]
    if reading.language is not None:
        found = record.column(record.schema.get_field_index("language")).to_pylist()
        keep = [k and value == reading.language for k, value in zip(keep, found, strict=True)]
    if reading.min_language_score is not None:
        scores = record.column(record.schema.get_field_index("language_score")).to_pylist()
        least = reading.min_language_score
        keep = [
            k and score is not None and score >= least
            for k, score in zip(keep, scores, strict=True)
        ]
    return keep


def _or_none(value: Any, skipped: Counter[str]) -> str | None:
    try:
        return cast(str | None, value.as_py())
    except UnicodeDecodeError:
        skipped["invalid UTF-8"] += 1
        return None


# ---- jsonl ----


def _jsonl(unit: Unit, reading: Reading) -> Iterator[Batch]:
    place, path = unit.files[0]
    batch, first = Batch(), True
    for at, line in _lines(path, unit.start, unit.stop):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            batch.skipped[
                "invalid UTF-8" if isinstance(error, UnicodeDecodeError) else "not JSON"
            ] += 1
            continue
        if first:
            _check_record(path, at, record, reading)
            first = False
        text = record.get(reading.column) if isinstance(record, dict) else None
        if not isinstance(text, str):
            batch.skipped["no text"] += 1
        elif not _wanted(record, text, reading):
            batch.skipped["filtered"] += 1
        else:
            batch.add(text, place, at)
        if batch.chars >= BATCH_BYTES:
            yield batch
            batch = Batch()
    yield batch


def _check_record(path: str, at: int, record: Any, reading: Reading) -> None:
    """The first record of a unit speaks for the file: a missing or odd column is a mistake, not a skip."""
    if not isinstance(record, dict):
        raise UserError(
            f"{path}, offset {at:,}: a line holds {type(record).__name__}, not an object",
            hint='lines look like {"text": "…"}',
        )
    for column in wanted_columns(reading):
        if column not in record:
            raise UserError(
                f"{path}, offset {at:,}: no column {column!r}; there is {', '.join(map(str, record))}",
                hint="name the text column with --column",
            )
    if not isinstance(record[reading.column], str | None):
        raise UserError(
            f"{path}, offset {at:,}: column {reading.column!r} is {type(record[reading.column]).__name__}, not text",
            hint="name the text column with --column",
        )


def _wanted(record: dict[str, Any], text: str, reading: Reading) -> bool:
    if len(text) < reading.min_chars:
        return False
    if reading.language is not None and record.get("language") != reading.language:
        return False
    if reading.min_language_score is None:
        return True
    score = record.get("language_score")
    return isinstance(score, int | float) and score >= reading.min_language_score


def _lines(path: str, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in [start, stop), with the byte each begins at; a stop of 0 means to the end."""
    if compressed(path):
        at = 0
        for line in _split_lines(stream(path)):
            yield at, line
            at += len(line)
        return
    try:
        with open(path, "rb", buffering=READ_BYTES) as file:
            if start:
                file.seek(start - 1)
                file.readline()  # the line that began before belongs to the unit before
            at = file.tell()
            for line in file:
                if stop and at >= stop:
                    return
                yield at, line
                at += len(line)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


# ---- text ----


def _text(unit: Unit, reading: Reading) -> Iterator[Batch]:
    batch = Batch()
    for place, path in unit.files:
        running = unit.kind == "running"
        for at, text in texts_of(
            path, (unit.start, unit.stop), reading.split_at, running, batch.skipped
        ):
            if len(text) < reading.min_chars and not running:
                batch.skipped["filtered"] += 1
            elif text.strip() or running:
                batch.add(text, place, at)
            else:
                batch.skipped["no text"] += 1
            if batch.chars >= BATCH_BYTES:
                yield batch
                batch = Batch()
    yield batch
