"""Bytes out of text files: whole, unpacked, or in pieces cut where no token reaches over. A torn file is an error.

>>> safe_cut(b"the end\\nof it")           # both sides give the same GPT-2 tokens as the whole
7
"""

import bz2
import gzip
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from onecard.errors import UserError

PIECE_BYTES = 1024 * 1024  # a long text file is cut here, at line ends
LONGEST_TEXT = 8 * PIECE_BYTES  # a text file up to this is one document
READ_BYTES = 1024 * 1024


def compressed(path: str | Path) -> bool:
    return Path(path).suffix.lower() in (".gz", ".zst", ".xz", ".bz2")


def stream(path: str | Path) -> Iterator[bytes]:
    """A file's bytes, decompressed; one that is cut short is an error, never a shorter text."""
    suffix = Path(path).suffix.lower()
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
    try:
        if suffix == ".zst":
            with open(path, "rb") as raw:
                yield from _zstd(raw, path)
            return
        with openers.get(suffix, open)(path, "rb") as file:
            while chunk := file.read(READ_BYTES):
                yield chunk
    except EOFError:
        raise UserError(f"{path} is cut short", hint="get it again, or leave it out") from None
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)})", hint="get it again, or leave it out"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None


def _zstd(raw: IO[bytes], path: str | Path) -> Iterator[bytes]:
    import zstandard

    worker, used = zstandard.ZstdDecompressor().decompressobj(), False
    try:
        while chunk := raw.read(READ_BYTES // 4):
            while chunk:
                if worker.eof:
                    worker = zstandard.ZstdDecompressor().decompressobj()
                if out := worker.decompress(chunk):
                    yield out
                used, chunk = True, worker.unused_data if worker.eof else b""
    except zstandard.ZstdError as error:
        raise UserError(
            f"{path} is damaged ({first_line(error)})", hint="get it again, or leave it out"
        ) from None
    if used and not worker.eof:
        raise EOFError


def texts_of(
    path: str, pieces: tuple[int, int], split_at: int | None, strict: bool, skipped: Counter[str]
) -> Iterator[tuple[int, str]]:
    """The documents of a text file with the byte each begins at: pieces first..last of it, or all when last is 0.

    Invalid UTF-8 is left out and counted, or, when `strict`, an error.
    """
    for at, raw in _cut(path, pieces, split_at) if pieces[1] else _whole(path):
        try:
            yield at, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            if strict:
                where = f"{path}, offset {at + error.start:,}"
                raise UserError(
                    f"{where}: invalid UTF-8", hint="convert it to UTF-8 first"
                ) from None
            skipped["invalid UTF-8"] += 1


def _whole(path: str) -> Iterator[tuple[int, bytes]]:
    raw = bytearray()
    at = 0
    for chunk in stream(path):
        raw += chunk
        while len(raw) > LONGEST_TEXT:  # only packed files get here: the others are cut by `_cut`
            cut = safe_cut(bytes(raw[PIECE_BYTES : 2 * PIECE_BYTES])) + PIECE_BYTES
            yield at, bytes(raw[:cut])
            at += cut
            del raw[:cut]
    if raw:
        yield at, bytes(raw)


def _cut(path: str, pieces: tuple[int, int], split_at: int | None) -> Iterator[tuple[int, bytes]]:
    """Pieces of a long file; where piece k begins depends on the file alone."""
    size = Path(path).stat().st_size
    with open(path, "rb") as file:
        for index in range(*pieces):
            cuts = [_piece_start(file, index, size), _piece_start(file, index + 1, size)]
            if split_at is not None and cuts[0] < split_at < cuts[1]:
                cuts.insert(1, split_at)
            for low, high in pairwise(cuts):
                if high > low:
                    file.seek(low)
                    yield low, file.read(high - low)


def _piece_start(file: IO[bytes], index: int, size: int) -> int:
    at = index * PIECE_BYTES
    if index == 0 or at >= size:
        return min(at, size)
    file.seek(at)
    return min(at + safe_cut(file.read(PIECE_BYTES)), size)


def safe_cut(window: bytes) -> int:
    """Where to cut so that both sides give the same GPT-2 tokens as the whole: before white space after a letter.

    Its pattern never joins a visible character to white space after it, so nothing reaches over such a place.
    """
    found = re.search(rb"[!-~](?=\n)", window) or re.search(rb"[!-~](?=[ \t\r\n])", window)
    if found:
        return found.end()
    start = 0  # no white space for a whole piece: any character's beginning will do
    while start < min(4, len(window)) and window[start] & 0xC0 == 0x80:
        start += 1
    return start


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
