"""Documents out of jsonl, by byte range; a line that is no record is left out and counted."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from onecard.data.sources.packed import MOST_LINE_BYTES, READ_BYTES, packed, stream
from onecard.data.sources.unit import BATCH_BYTES, Batch, Reading, Unit
from onecard.errors import UserError
from onecard.untrusted import readable

_SAMPLED_BYTES = 256 * 1024  # of a file's beginning, to see how much of it is text
_HINT = "set the option `column` to the one that holds the text"


def jsonl_batches(unit: Unit, reading: Reading) -> Iterator[Batch]:
    place, path = unit.files[0]
    batch, first = Batch(), True
    for at, line in _lines(path, unit.start, unit.stop):
        if line is None:
            batch.skipped["line too long"] += 1
            continue
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            batch.skipped["invalid UTF-8"] += 1
            continue
        except (ValueError, RecursionError):
            batch.skipped["not JSON"] += 1
            continue
        if first:
            _check_record(path, at, record, reading)
            first = False
        text = _content(record, reading) if isinstance(record, dict) else None
        if not isinstance(text, str | list):
            batch.skipped["no text"] += 1
        elif not _wanted(record, text, reading):
            batch.skipped["filtered"] += 1
        elif isinstance(text, list) and not batch.texts:
            batch.add_ids(text, place, at)
        elif isinstance(text, list) or batch.ids:
            batch.skipped["no text"] += 1  # a file holds texts or tokens, not both
        else:
            batch.add(text, place, at)
        if batch.chars >= BATCH_BYTES:
            yield batch
            batch = Batch()
    yield batch


def numbered_lines(path: str) -> Iterator[tuple[int, int, bytes | None]]:
    """Every line with its number, from 1, and the byte where it begins; None for one too long to hold."""
    for number, (at, line) in enumerate(_lines(path, 0, 0), 1):
        yield number, at, line


def _content(record: dict[str, Any], reading: Reading) -> Any:
    """The text of a record, or its list of token ids."""
    if reading.filled is not None:
        return reading.filled.fill(record)
    content = record.get(reading.column)
    return None if isinstance(content, list) and not _is_ids(content) else content


def _is_ids(values: list[Any]) -> bool:
    """Whether a list looks like token ids, by its beginning; the whole of it is checked when it is used."""
    return bool(values) and all(type(value) is int for value in values[:8])


def text_share(path: str, reading: Reading) -> float:
    """Bytes of text per byte of the file, by its beginning; 1 where that cannot be seen."""
    text = size = 0
    try:
        for at, line in _lines(path, 0, 0):
            record = json.loads(line) if line and line.strip() else None
            content = _content(record, reading) if isinstance(record, dict) else None
            if isinstance(content, str):
                text += len(content.encode(errors="replace"))
            elif isinstance(content, list):
                text += 4 * len(content)
            size = at + len(line or b"")
            if size >= _SAMPLED_BYTES:
                break
    except (UserError, ValueError, RecursionError):
        return 1.0
    return text / size if text and size else 1.0


def _check_record(path: str, at: int, record: Any, reading: Reading) -> None:
    """The first record of a unit stands for the file: a missing or odd column is a mistake, not a skip."""
    if not isinstance(record, dict):
        raise UserError(
            f"{path}, offset {at:,}: a line holds {type(record).__name__}, not an object",
            hint='lines look like {"text": "…"}',
        )
    for column in reading.columns:
        if column not in record:
            there = ", ".join(list(record)[:20])
            raise UserError(
                f"{path}, offset {at:,}: no column {column!r}; there is {there:.500}", hint=_HINT
            )
    value = record[reading.text_columns[0]]
    good = isinstance(value, str | None) or (isinstance(value, list) and _is_ids(value))
    if reading.filled is None and not good:
        kind = type(record[reading.column]).__name__
        raise UserError(
            f"{path}, offset {at:,}: column {reading.column!r} is {kind}, not text", hint=_HINT
        )


def _wanted(record: dict[str, Any], text: str | list[Any], reading: Reading) -> bool:
    long_enough = len(text) >= reading.min_chars
    return long_enough and all(condition.holds(record) for condition in reading.conditions)


def _lines(path: str, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
    """Lines that begin in [start, stop), with the byte each begins at; a stop of 0 means to the end.

    A line longer than MOST_LINE_BYTES is passed over, and None stands for it.
    """
    at = 0
    if packed(path):
        for line, length in _split_lines(stream(path)):
            yield at, line
            at += length
        return
    with readable(path), open(path, "rb", buffering=READ_BYTES) as file:
        if start:
            file.seek(start - 1)
            while (rest := file.readline(MOST_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass  # the line that began before belongs to the unit before
        at = file.tell()
        while not (stop and at >= stop) and (piece := file.readline(MOST_LINE_BYTES)):
            length, long = len(piece), False
            while len(piece) == MOST_LINE_BYTES and not piece.endswith(b"\n"):
                long, piece = True, file.readline(MOST_LINE_BYTES)
                length += len(piece)
            yield at, None if long else piece
            at += length


def _split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bytes | None, int]]:
    """Lines with their lengths; None for one that is too long to hold."""
    pieces: list[bytes] = []
    length = 0

    def line() -> tuple[bytes | None, int]:
        nonlocal pieces, length
        whole = b"".join(pieces) if length <= MOST_LINE_BYTES else None
        answer = whole, length
        pieces, length = [], 0
        return answer

    for chunk in chunks:
        for piece in _by_newline(chunk):
            length += len(piece)
            if length <= MOST_LINE_BYTES:
                pieces.append(piece)
            else:
                pieces = []
            if piece.endswith(b"\n"):
                yield line()
    if length:
        yield line()


def _by_newline(chunk: bytes) -> list[bytes]:
    parts = chunk.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
