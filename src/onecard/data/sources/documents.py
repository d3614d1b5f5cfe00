"""Documents out of files: parquet by row group, jsonl by byte range, text by file or piece, a few megabytes at a time.

>>> unit = Unit(0, "text", ((0, "notes.txt"),), 0, 0)                                 # doctest: +SKIP
>>> for batch in batches(unit, Reading()): print(batch.texts)                         # doctest: +SKIP
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from onecard.data.sources.jsonl_lines import jsonl_batches, text_share
from onecard.data.sources.packed import packed
from onecard.data.sources.parquet_rows import (
    parquet_batches,
    parquet_unit,
    parquet_units,
    row_groups,
    text_bytes,
)
from onecard.data.sources.source import Input
from onecard.data.sources.texts import longest_text, text_batches
from onecard.data.sources.token_arrays import BYTES_PER_TOKEN, token_batches, token_count
from onecard.data.sources.unit import Batch, Reading, Unit


def batches(unit: Unit, reading: Reading) -> Iterator[Batch]:
    """The unit's documents in order, about BATCH_BYTES at a time; the same batches every time."""
    if unit.kind == "parquet":
        yield from parquet_batches(unit, reading)
    elif unit.kind == "jsonl":
        yield from jsonl_batches(unit, reading)
    elif unit.kind == "tokens":
        yield from token_batches(unit)
    else:
        yield from text_batches(unit, reading)


def expected_text_bytes(item: Input, reading: Reading) -> int:
    """How much text a local file holds: parquet's own figures, a look at the beginning of jsonl."""
    if item.kind == "parquet":
        return sum(text_bytes(group, reading) for group in row_groups(item.path, reading))
    if item.kind == "jsonl" and not packed(item.path):
        return int(item.size * text_share(item.path, reading))
    if item.kind == "tokens":
        return int(token_count(item.path) * BYTES_PER_TOKEN)
    return item.text_bytes


def units_of(
    files: list[tuple[int, Input, Path]],
    unit_bytes: int,
    first: int,
    reading: Reading,
    source: int = 0,
) -> list[Unit]:
    """Cut files that are here into units of about `unit_bytes` of text, numbered from `first`."""
    units: list[Unit] = []
    small: list[tuple[int, str]] = []
    small_bytes = 0

    def close() -> None:
        nonlocal small, small_bytes
        if small:
            units.append(
                Unit(first + len(units), "text", tuple(small), 0, 0, small_bytes, source=source)
            )
        small, small_bytes = [], 0

    for place, item, path in files:
        whole_text = item.kind == "text" and (
            packed(path) or reading.separator is not None or item.size <= longest_text(reading)
        )
        if whole_text and not packed(path):
            small.append((place, str(path)))
            small_bytes += item.size
            if small_bytes >= unit_bytes:
                close()
            continue
        close()
        if item.kind == "parquet":
            for start, stop, groups in parquet_units(path, unit_bytes, reading):
                number = first + len(units)
                unit = parquet_unit(number, place, str(path), (start, stop), groups, reading)
                units.append(replace(unit, source=source))
            continue
        for start, stop, size in _ranges(item, path, unit_bytes, reading.piece_bytes):
            units.append(
                Unit(
                    first + len(units),
                    item.kind,
                    ((place, str(path)),),
                    start,
                    stop,
                    size,
                    item.size,
                    source=source,
                )
            )
    close()
    return units


def _ranges(
    item: Input, path: Path, unit_bytes: int, piece_bytes: int
) -> list[tuple[int, int, int]]:
    if packed(path):
        return [(0, 0, item.text_bytes)]
    if item.kind == "tokens":
        whole, some = token_count(str(path)), max(1, int(unit_bytes / BYTES_PER_TOKEN))
        return [
            (at, min(at + some, whole), int((min(at + some, whole) - at) * BYTES_PER_TOKEN))
            for at in range(0, whole, some)
        ]
    in_pieces = item.kind in ("text", "running")
    step = max(1, unit_bytes // piece_bytes) if in_pieces else unit_bytes
    count = -(-item.size // piece_bytes) if in_pieces else item.size
    scale = piece_bytes if in_pieces else item.text_bytes / max(item.size, 1)
    return [
        (at, min(at + step, count), int((min(at + step, count) - at) * scale))
        for at in range(0, count, step)
    ]
