"""Parquet's own headers, read before anything is unpacked: where each column's pages are, and how large they become.

A page header says how much its page unpacks to, and Arrow allocates that: some hundred bytes can ask for gigabytes.
Arrow's view of a damaged footer can also end the process (an exception that nothing catches), so the footer is read
here too. Both are Thrift structs in the compact protocol (parquet-format, parquet.thrift).
"""

import os
from pathlib import Path
from typing import IO, Any, NamedTuple

_MOST_FOOTER_BYTES = 256 * 2**20
_MOST_HEADER_BYTES = 1 << 20
_MOST_DEPTH = 12
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class Chunk(NamedTuple):
    """One column of one row group."""

    first_page: int  # offset in the file
    values: int
    packed_bytes: int
    unpacked_bytes: int


class RowGroup(NamedTuple):
    rows: int
    chunks: dict[str, Chunk]


class Pages(NamedTuple):
    largest_bytes: int
    total_bytes: int


def read_footer(path: str | Path) -> list[RowGroup]:
    """The row groups of a file; ValueError where its footer is damaged."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        tail = file.read(8)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != b"PAR1" or length > min(size - 8, _MOST_FOOTER_BYTES):
            raise ValueError("no footer")
        file.seek(size - 8 - length)
        footer = _Thrift(file.read(length)).struct()
    return [_row_group(group) for group in _as(list, footer.get(4, []))]


def _row_group(group: Any) -> RowGroup:
    chunks = {}
    for column in _as(list, _as(dict, group).get(1, [])):
        meta = _as(dict, _as(dict, column).get(3))
        path = b".".join(_as(bytes, part) for part in _as(list, meta.get(3))).decode("utf-8")
        first, dictionary = _as(int, meta.get(9)), _as(int, meta.get(11, 0))
        first = dictionary if 0 < dictionary < first else first
        sizes = [_as(int, meta.get(field)) for field in (5, 7, 6)]
        if first < 0 or min(sizes) < 0:
            raise ValueError("a column of negative size")
        chunks[path] = Chunk(first, *sizes)
    rows = _as(int, group.get(3))
    if rows < 0:
        raise ValueError("a negative number of rows")
    return RowGroup(rows, chunks)


def _as(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError("not a parquet footer")
    return value


def page_sizes(file: IO[bytes], chunk: Chunk) -> Pages:
    """The largest page of a column and the sum of them, unpacked; ValueError where a header is no header."""
    at, values, largest, total = chunk.first_page, 0, 0, 0
    while values < chunk.values:
        file.seek(at)
        content, thrift = file.read(512), None
        while thrift is None:
            try:
                thrift = _Thrift(content)
                header = thrift.struct()
            except EOFError:  # a header with long statistics
                more = file.read(len(content))
                if not more or len(content) > _MOST_HEADER_BYTES:
                    raise ValueError("a page header that does not end") from None
                content, thrift = content + more, None
        unpacked, packed = (_as(int, header.get(field)) for field in (2, 3))
        data = header.get(5) or header.get(8) or {}  # DataPageHeader, DataPageHeaderV2
        count = _as(int, _as(dict, data).get(1, 0))
        if min(unpacked, packed, count) < 0:
            raise ValueError("a page of negative size")
        largest, total, values = max(largest, unpacked), total + unpacked, values + count
        at += thrift.place + packed
    return Pages(largest, total)


class _Thrift:
    """The compact protocol, as far as parquet uses it: structs become dicts by field number."""

    def __init__(self, content: bytes):
        self._content = content
        self.place = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        if depth > _MOST_DEPTH:
            raise ValueError("nested too deeply")
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._zigzag()
            kind &= 15
            fields[field] = kind == _TRUE if kind <= _FALSE else self._value(kind, depth)
        return fields

    def _byte(self) -> int:
        if self.place >= len(self._content):
            raise EOFError
        self.place += 1
        return self._content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("an endless number")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._zigzag()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            if count > len(self._content) - self.place:  # each takes a byte at least
                raise EOFError
            return [self._value(head & 15, depth + 1) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _BYTE):  # booleans in a list take a byte each
            return self._byte()
        if kind in (_BINARY, _DOUBLE):
            length = 8 if kind == _DOUBLE else self._varint()
            if length > len(self._content) - self.place:
                raise EOFError
            self.place += length
            return self._content[self.place - length : self.place]
        raise ValueError("not a Thrift struct")
