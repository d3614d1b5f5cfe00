"""The sizes of a parquet column's pages, from their headers, before anything is unpacked.

A page header says how much its page unpacks to, and Arrow allocates that: some hundred bytes can ask for gigabytes.
Headers are Thrift structs in the compact protocol (parquet-format, parquet.thrift: PageHeader).
"""

from typing import IO, Any, NamedTuple

_MOST_HEADER_BYTES = 1 << 20
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class Pages(NamedTuple):
    largest_bytes: int
    total_bytes: int


def page_sizes(file: IO[bytes], chunk: Any) -> Pages:
    """The largest page and the sum of all pages of a column chunk, unpacked; ValueError where a header is no header."""
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
        at = chunk.dictionary_page_offset
    largest = total = values = 0
    while values < chunk.num_values:
        header = _Header(file, at)
        unpacked, packed = header.sizes[2], header.sizes[3]
        if unpacked < 0 or packed < 0 or header.values < 0:
            raise ValueError("a page of negative size")
        largest, total = max(largest, unpacked), total + unpacked
        values += header.values
        at = header.end + packed
    return Pages(largest, total)


class _Header:
    """One PageHeader: the sizes of its page (fields 2 and 3), the values in it, and where it ends."""

    def __init__(self, file: IO[bytes], at: int):
        if at < 0:
            raise ValueError("a page before the file's beginning")
        self._file, self._start = file, at
        self._content, self._place = b"", 0
        self.sizes: dict[int, int] = {}
        self.values = 0
        self._struct(depth=0)
        self.end = at + self._place
        if not {2, 3} <= self.sizes.keys():
            raise ValueError("a page without a size")

    def _byte(self) -> int:
        if self._place >= len(self._content):
            self._file.seek(self._start + len(self._content))
            more = self._file.read(4096)
            if not more or len(self._content) > _MOST_HEADER_BYTES:
                raise ValueError("a page header that does not end")
            self._content += more
        self._place += 1
        return self._content[self._place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page header with an endless number")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _struct(self, depth: int, parent: int = 0) -> None:
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._zigzag()
            kind &= 15
            if kind in (_I16, _I32, _I64):
                number = self._zigzag()
                if depth == 0 and field in (2, 3):
                    self.sizes[field] = number
                if (
                    depth == 1 and parent in (5, 8) and field == 1
                ):  # DataPageHeader, …V2: num_values
                    self.values = number
            else:
                self._skip(kind, depth, field)

    def _skip(self, kind: int, depth: int, field: int) -> None:
        if depth > 8:
            raise ValueError("a page header nested too deeply")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._byte()
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind in (_DOUBLE, _BINARY):
            length = 8 if kind == _DOUBLE else self._varint()
            if length > _MOST_HEADER_BYTES:
                raise ValueError("a page header that does not end")
            for _ in range(length):
                self._byte()
        elif kind == _STRUCT:
            self._struct(depth + 1, field)
        elif kind in (_LIST, _SET):
            size = self._byte()
            count = self._varint() if size >> 4 == 15 else size >> 4
            if count > _MOST_HEADER_BYTES:
                raise ValueError("a page header that does not end")
            for _ in range(count):
                self._byte() if size & 15 in (_TRUE, _FALSE) else self._skip(
                    size & 15, depth + 1, 0
                )
        else:
            raise ValueError("not a page header")
