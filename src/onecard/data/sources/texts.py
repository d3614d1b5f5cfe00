"""Texts out of files: whole, or in pieces cut where no token reaches over. Invalid UTF-8 is never passed on.

>>> safe_cut(b"the end\\nof it")           # both sides give the same GPT-2 tokens as the whole
7
"""

import os
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import IO

from onecard.data.sources.packed import stream
from onecard.data.sources.unit import BATCH_BYTES, PIECE_BYTES, Batch, Reading, Unit
from onecard.errors import UserError
from onecard.untrusted import readable

LONGEST_TEXT = 8 * PIECE_BYTES  # a text file up to this is one document


def longest_text(reading: Reading) -> int:
    return 8 * reading.piece_bytes


def text_batches(unit: Unit, reading: Reading) -> Iterator[Batch]:
    batch, running = Batch(), unit.kind == "running"
    for place, path in unit.files:
        for at, text in _texts(path, unit, reading, batch.skipped):
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


def _texts(
    path: str, unit: Unit, reading: Reading, skipped: Counter[str]
) -> Iterator[tuple[int, str]]:
    """The documents of a text file with the byte each begins at: the unit's pieces of it, or all when it has no stop.

    Invalid UTF-8 is left out and counted; in a running text, which has no parts to leave out, it is an error.
    """
    pieces = _cut(path, unit, reading) if unit.stop else _documents(path, reading.separator)
    for at, raw in pieces:
        try:
            yield at, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if unit.kind == "running":
                where = f"{path}, offset {at + error.start:,}"
                raise UserError(
                    f"{where}: invalid UTF-8", hint="convert it to UTF-8 first"
                ) from None
            skipped["invalid UTF-8"] += 1


def _documents(path: str, between: str | None) -> Iterator[tuple[int, bytes]]:
    """The documents between separators, or the file as one; one without an end in sight is cut as a long text is."""
    raw, at = bytearray(), 0
    for chunk in stream(path):
        raw += chunk
        if between is not None:
            separator = between.encode()
            *whole, rest = bytes(raw).split(separator)
            for document in whole:
                if document.strip():
                    yield at, document
                at += len(document) + len(separator)
            raw = bytearray(rest)
        while len(raw) > LONGEST_TEXT:
            cut = safe_cut(bytes(raw[PIECE_BYTES : 2 * PIECE_BYTES])) + PIECE_BYTES
            yield at, bytes(raw[:cut])
            at += cut
            del raw[:cut]
    if raw.strip() or (raw and between is None):
        yield at, bytes(raw)


def _cut(path: str, unit: Unit, reading: Reading) -> Iterator[tuple[int, bytes]]:
    """Pieces of a long file; where piece k begins depends on the file, as long as it was when the work was planned."""
    split_at = reading.split_at
    with readable(path), open(path, "rb") as file:
        size = min(unit.file_bytes, os.fstat(file.fileno()).st_size)
        for index in range(unit.start, unit.stop):
            cuts = [
                _piece_start(file, place, size, reading.piece_bytes) for place in (index, index + 1)
            ]
            if split_at is not None and cuts[0] < split_at < cuts[1]:
                cuts.insert(1, split_at)
            for low, high in pairwise(cuts):
                if high > low:
                    file.seek(low)
                    yield low, file.read(high - low)


def _piece_start(file: IO[bytes], index: int, size: int, piece_bytes: int) -> int:
    at = index * piece_bytes
    if index == 0 or at >= size:
        return min(at, size)
    file.seek(at)
    return min(at + safe_cut(file.read(piece_bytes)), size)


def safe_cut(window: bytes) -> int:
    """Where to cut so that both sides give the same GPT-2 tokens as the whole: before white space after a letter.

    Its pattern never joins a visible character to white space after it, so nothing reaches over such a place.
    """
    match = re.search(rb"[!-~](?=\n)", window) or re.search(rb"[!-~](?=[ \t\r\n])", window)
    if match:
        return match.end()
    start = 0  # no white space for a whole piece: any character's beginning will do
    while start < min(4, len(window)) and window[start] & 0xC0 == 0x80:
        start += 1
    return start
