"""Documents out of parquet, some rows at a time; what a row group may unpack to is known before it is read."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from onecard.data.sources.packed import (
    MOST_PAGE_BYTES,
    MOST_TABLE_BYTES,
    READ_BYTES,
    Expansion,
)
from onecard.data.sources.parquet_headers import Chunk, RowGroup, page_sizes, read_footer
from onecard.data.sources.unit import BATCH_BYTES, Batch, Reading, Unit
from onecard.errors import UserError, first_line
from onecard.units import show_bytes

_MOST_ROWS = 100_000  # decoded at once
_ROW_BYTES = 64  # what a row costs further on, were its text empty


def open_parquet(path: str | Path, reading: Reading) -> Any:
    """The file, with the wanted columns checked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(
            f"{path} is not a whole parquet file ({first_line(error)})",
            hint="it was cut short or damaged: get it again",
        ) from None
    try:
        _check_columns(path, file.schema_arrow, reading)
    except (pa.ArrowException, ValueError, KeyError) as error:
        file.close()
        raise UserError(
            f"{path} has a damaged schema ({first_line(error)})", hint="get it again"
        ) from None
    except BaseException:
        file.close()
        raise
    return file


def _check_columns(path: str | Path, schema: Any, reading: Reading) -> None:
    import pyarrow as pa

    def is_text(kind: Any) -> bool:
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_string_view(kind)
            or (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))
        )

    texts = [field.name for field in schema if is_text(field.type)]
    hint = (
        f"set the option `column` to one that holds text: {', '.join(texts)}"
        if texts
        else "it has no column of text"
    )
    for column in reading.columns:
        if schema.names.count(column) != 1:
            raise UserError(
                f"{path} has no column {column!r}; it has {', '.join(schema.names)}", hint=hint
            )
    kind = schema.field(reading.text_columns[0]).type
    if reading.filled is None and not is_text(kind) and not is_token_list(kind):
        raise UserError(f"{path}: column {reading.column!r} is {kind}, not text", hint=hint)


def is_token_list(kind: Any) -> bool:
    """A list of whole numbers: token ids that are read as they are."""
    import pyarrow as pa

    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(lists and pa.types.is_integer(kind.value_type))


def chunk_of(group: RowGroup, column: str) -> Chunk:
    """A column's pages; those of a list are under its element's name."""
    chunk = group.chunks.get(column)
    return chunk or next(c for name, c in group.chunks.items() if name.startswith(f"{column}."))


def text_bytes(group: RowGroup, reading: Reading) -> int:
    return sum(chunk_of(group, column).unpacked_bytes for column in reading.text_columns)


def row_groups(path: str | Path, reading: Reading) -> list[RowGroup]:
    """The row groups of a file with the wanted columns, all of them there."""
    open_parquet(path, reading).close()
    try:
        groups = read_footer(path)
        for group in groups:
            there = {name.partition(".")[0] for name in group.chunks} | group.chunks.keys()
            if not there >= set(reading.columns):
                raise ValueError("a row group without a column")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"{path} has a damaged footer ({first_line(error)})", hint="get it again"
        ) from None
    return groups


def parquet_units(
    path: str | Path, unit_bytes: int, reading: Reading
) -> Iterator[tuple[int, int, list[RowGroup]]]:
    """Runs of row groups with about `unit_bytes` of text: first, one past the last, and the groups before and in it."""
    start, size, groups = 0, 0, row_groups(path, reading)
    for index, group in enumerate(groups):
        size += text_bytes(group, reading)
        if size >= unit_bytes or index + 1 == len(groups):
            yield start, index + 1, groups
            start, size = index + 1, 0


def parquet_unit(
    index: int,
    place: int,
    path: str,
    span: tuple[int, int],
    groups: list[RowGroup],
    reading: Reading,
) -> Unit:
    inside = groups[span[0] : span[1]]
    return Unit(
        index,
        "parquet",
        ((place, path),),
        *span,
        size=sum(text_bytes(group, reading) for group in inside),
        first_row=sum(group.rows for group in groups[: span[0]]),
        rows=sum(group.rows for group in inside),
        chunks=tuple(chunk_of(group, column) for group in inside for column in reading.columns),
    )


def parquet_batches(unit: Unit, reading: Reading) -> Iterator[Batch]:
    import pyarrow as pa

    (place, path), row, batch = unit.files[0], unit.first_row, Batch()
    with open_parquet(path, reading) as file:
        try:
            at_once, guard = _rows_at_once(path, unit)
            for record in file.iter_batches(
                at_once, range(unit.start, unit.stop), reading.columns, use_threads=False
            ):
                chars = _add_rows(batch, record, place, row, reading)
                row += record.num_rows
                guard.add(chars + _ROW_BYTES * record.num_rows)
                if batch.chars >= BATCH_BYTES or len(batch.texts) >= _MOST_ROWS:
                    yield batch
                    batch = Batch()
        except (
            pa.ArrowException,
            OSError,
            ValueError,
            LookupError,
            OverflowError,
            EOFError,
        ) as error:
            raise UserError(
                f"{path} is damaged near row {row:,} ({first_line(error)})",
                hint="get it again, or leave it out",
            ) from None
    yield batch


def _rows_at_once(path: str | Path, unit: Unit) -> tuple[int, Expansion]:
    """So few rows that they cannot exceed MOST_TABLE_BYTES, were each as long as the largest page.

    In a dictionary, a value is stored once and may be used by every row; nothing is longer than its page.
    """
    chunks = [Chunk(*chunk) for chunk in unit.chunks]
    with open(path, "rb") as file:
        pages = [page_sizes(file, chunk) for chunk in chunks]
    largest = max((page.largest_bytes for page in pages), default=0)
    total = sum(page.total_bytes for page in pages)
    packed = sum(chunk.packed_bytes for chunk in chunks)
    if largest > MOST_PAGE_BYTES:
        raise UserError(
            f"{path} has a page that unpacks to {show_bytes(largest)}; "
            f"at most {show_bytes(MOST_PAGE_BYTES)} is read",
            hint="leave it out, or write it again with smaller pages",
        )
    usual = unit.rows * BATCH_BYTES // max(total, 1)
    return max(1, min(_MOST_ROWS, usual, MOST_TABLE_BYTES // max(largest, 1))), Expansion(
        path, packed
    )


def _add_rows(batch: Batch, record: Any, place: int, row: int, reading: Reading) -> int:
    """Add the wanted rows to the batch; returns the characters of all of them, wanted or not."""
    before = batch.skipped["invalid UTF-8"]
    texts = _texts(record, reading, batch.skipped)
    tokens = any(isinstance(text, list) for text in texts)
    keep = _filters(record, texts, reading)
    chars = sum(len(text) for text in texts if text is not None)
    if keep is None and None not in texts and not tokens:
        batch.texts += texts
        batch.places += [(place, at) for at in range(row, row + len(texts))]
        batch.chars += chars
        return chars
    nothing = sum(text is None for text in texts) - (batch.skipped["invalid UTF-8"] - before)
    if nothing:
        batch.skipped["no text"] += nothing
    for index, text in enumerate(texts):
        if text is None:
            continue
        if keep is not None and not keep[index]:
            batch.skipped["filtered"] += 1
        elif tokens:
            batch.add_ids(text, place, row + index)
        else:
            batch.add(text, place, row + index)
    return chars


def _texts(record: Any, reading: Reading, skipped: Counter[str]) -> list[Any]:
    """The text of each row, made by the template where there is one; or its list of ids; or None."""
    columns = {name: _values(record, name, skipped) for name in reading.text_columns}
    if reading.filled is None:
        return columns[reading.column]
    names = list(columns)
    return [
        reading.filled.fill(dict(zip(names, row, strict=True)))
        for row in zip(*columns.values(), strict=True)
    ]


def _values(record: Any, name: str, skipped: Counter[str]) -> list[Any]:
    column = record.column(record.schema.get_field_index(name))
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_or_none(value, skipped) for value in column]
    return values


def _filters(record: Any, texts: list[Any], reading: Reading) -> list[bool] | None:
    if not reading.conditions and not reading.min_chars:
        return None
    keep = [text is not None and len(text) >= reading.min_chars for text in texts]
    for condition in reading.conditions:
        index = record.schema.get_field_index(condition.column)
        values = record.column(index).to_pylist()
        keep = [
            k and condition.holds({condition.column: value})
            for k, value in zip(keep, values, strict=True)
        ]
    return keep


def _or_none(value: Any, skipped: Counter[str]) -> str | None:
    try:
        return cast(str | None, value.as_py())
    except UnicodeDecodeError:
        skipped["invalid UTF-8"] += 1
        return None
