"""Bytes out of files, unpacked where the name says that they are packed, in chunks of bounded size.

A few bytes of a hostile file can stand for terabytes: how far a file may unpack is limited here too.

>>> packed("pages.jsonl.zst"), packed("pages.jsonl")
(True, False)
>>> guard = Expansion("x.gz", packed_bytes=1000)
>>> guard.add(2**28)
>>> guard.add(1)
Traceback (most recent call last):
    ...
onecard.errors.UserError: x.gz unpacks to more than 1,000 times its size (leave it out: it is damaged or made to exhaust the machine)
"""

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from onecard.errors import UserError, first_line

READ_BYTES = 1024 * 1024
SUFFIXES = (".gz", ".zst", ".xz", ".bz2")
_ZSTD_BYTES = 4096  # given at once: each may stand for 32,000 times as much
MOST_LINE_BYTES = 32 * 2**20  # of jsonl; parsing one takes up to some 25 times its size in memory
MOST_PAGE_BYTES = 256 * 2**20  # of parquet, unpacked; writers aim at 1 MiB
MOST_TABLE_BYTES = 64 * 2**20  # of parquet rows decoded at once
MOST_XZ_MEMORY = 256 * 2**20  # `xz -9` needs 65 MiB
_ALWAYS_ALLOWED = 2**28
# text packs 3 to 20 times; zlib reaches 1,032 at most, zstd and parquet far more
_MOST_RATIO = 1000


class Expansion:
    """Counts what comes out of a packed file, and stops it before it fills the disk."""

    def __init__(self, path: str | Path, packed_bytes: int):
        self._path = path
        self._allowed = max(_ALWAYS_ALLOWED, _MOST_RATIO * packed_bytes)

    def add(self, more_bytes: int) -> None:
        self._allowed -= more_bytes
        if self._allowed < 0:
            raise UserError(
                f"{self._path} unpacks to more than {_MOST_RATIO:,} times its size",
                hint="leave it out: it is damaged or made to exhaust the machine",
            )


def packed(path: str | Path) -> bool:
    return Path(path).suffix.lower() in SUFFIXES


def stream(path: str | Path) -> Iterator[bytes]:
    """A file's bytes, unpacked; one that is cut short is an error, never a shorter text."""
    try:
        if not packed(path):
            with open(path, "rb") as file:
                while chunk := file.read(READ_BYTES):
                    yield chunk
            return
        guard = Expansion(path, os.stat(path).st_size)
        for chunk in _unpack(path):
            guard.add(len(chunk))
            yield chunk
    except EOFError:
        raise UserError(f"{path} is cut short", hint="get it again, or leave it out") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)})", hint="get it again, or leave it out"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None


def _unpack(path: str | Path) -> Iterator[bytes]:
    suffix = Path(path).suffix.lower()
    with open(path, "rb") as raw:
        if suffix == ".zst":
            yield from _zstd(raw, path)
        elif suffix == ".xz":
            yield from _xz(raw)
        else:
            opener: Any = gzip.GzipFile if suffix == ".gz" else bz2.BZ2File
            with opener(raw) if suffix == ".bz2" else opener(fileobj=raw) as file:
                while chunk := file.read(READ_BYTES):
                    yield chunk


def _zstd(raw: IO[bytes], path: str | Path) -> Iterator[bytes]:
    import zstandard

    unpacker, used = zstandard.ZstdDecompressor().decompressobj(), False
    try:
        while chunk := raw.read(_ZSTD_BYTES):
            while chunk:
                if unpacker.eof:
                    unpacker = zstandard.ZstdDecompressor().decompressobj()
                if out := unpacker.decompress(chunk):
                    yield out
                used, chunk = True, unpacker.unused_data if unpacker.eof else b""
    except zstandard.ZstdError as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)})", hint="get it again, or leave it out"
        ) from None
    if used and not unpacker.eof:
        raise EOFError


def _xz(raw: IO[bytes]) -> Iterator[bytes]:
    """lzma.open without its appetite: a header can ask for gigabytes of memory."""
    unpacker: lzma.LZMADecompressor | None = None
    chunk = b""
    while chunk or (chunk := raw.read(READ_BYTES)):
        if unpacker is None:
            chunk = chunk.lstrip(b"\0")  # padding between streams
            if not chunk:
                continue
            unpacker = lzma.LZMADecompressor(lzma.FORMAT_AUTO, memlimit=MOST_XZ_MEMORY)
        out = unpacker.decompress(chunk, READ_BYTES)
        while not unpacker.eof and not unpacker.needs_input:
            yield out
            out = unpacker.decompress(b"", READ_BYTES)
        yield out
        chunk = unpacker.unused_data if unpacker.eof else b""
        if unpacker.eof:
            unpacker = None
    if unpacker is not None:
        raise EOFError
