"""Files of tokens: llm.c's shards with a header, raw uint16 without one. No numpy, so that `plan` may use it.

>>> len(header(5)), struct.unpack_from("<3i", header(5))
(1024, (20240520, 1, 5))
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from onecard.errors import UserError
from onecard.untrusted import readable

MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024  # llm.c, dev/data/data_common.py: 256 int32
LLAMA_MAGIC = 20240801  # llm.c's uint32 shards
TOKEN_BYTES = 2
_MOST_NPY_HEADER = 65536


@dataclass(frozen=True)
class Shard:
    """One file of tokens: uint16 from `offset_bytes` on."""

    path: Path
    offset_bytes: int
    tokens: int
    sha256: str | None = None


def file_sha256(path: Path) -> str:
    import hashlib  # OpenSSL takes milliseconds to load, and planning only counts tokens

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def header(tokens: int) -> bytes:
    """llm.c's shard header."""
    return struct.pack("<256i", MAGIC, VERSION, tokens, *([0] * 253))


def has_header(path: Path) -> bool:
    with readable(path), open(path, "rb") as file:
        start = file.read(4)
    return len(start) == 4 and struct.unpack("<i", start)[0] in (MAGIC, LLAMA_MAGIC)


def read_header(path: Path) -> int:
    """The token count in a shard's header, checked against the file's length."""
    with readable(path), open(path, "rb") as file:
        raw = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if len(raw) < HEADER_BYTES:
        raise UserError(
            f"{path}: {size} bytes, too short for a header of {HEADER_BYTES}",
            hint="it was cut short: get it again",
        )
    magic, version, tokens = struct.unpack_from("<3i", raw)
    if magic == LLAMA_MAGIC:
        raise UserError(
            f"{path}, offset 0: a shard of 32-bit ids (llm.c's llama-3 format)",
            hint="only 16-bit ids are read: prepare it with the GPT-2 tokeniser",
        )
    if magic != MAGIC:
        raise UserError(
            f"{path}, offset 0: not a shard header (magic {magic}, expected {MAGIC})",
            hint="raw nanoGPT files are named train.bin and val.bin",
        )
    if version != VERSION:
        raise UserError(f"{path}, offset 4: shard version {version}, only {VERSION} is known")
    if tokens < 0 or size != HEADER_BYTES + TOKEN_BYTES * tokens:
        raise UserError(
            f"{path}, offset 8: the header says {tokens:,} tokens, "
            f"the file has room for {(size - HEADER_BYTES) / 2:,.1f}",
            hint="it was cut short or damaged: get it again",
        )
    return int(tokens)


def raw_shard(path: Path, sha256: str | None = None) -> Shard:
    """A file of uint16 without a header."""
    with readable(path):
        size = path.stat().st_size
    if size % TOKEN_BYTES:
        raise UserError(
            f"{path}: {size:,} bytes is not a whole number of 16-bit ids; it breaks at offset {size - 1:,}",
            hint="it was cut short: make it again",
        )
    return Shard(path, 0, size // TOKEN_BYTES, sha256)


def npy_shard(path: Path, sha256: str | None = None) -> Shard:
    """A .npy file of 16-bit ids in one dimension, as many tokenising scripts write them; its header is read as a literal."""
    with readable(path), open(path, "rb") as file:
        start = file.read(12)
        wide = start[6:7] == b"\x02"
        length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
        at = 12 if wide else 10
        file.seek(at)
        text = file.read(min(length, _MOST_NPY_HEADER))
        size = os.fstat(file.fileno()).st_size
    if start[:6] != b"\x93NUMPY" or len(text) != length:
        raise UserError(f"{path}, offset 0: not a .npy header", hint="get it again")
    import ast

    try:
        facts = ast.literal_eval(text.decode("latin1").strip())
        kind, (tokens,) = str(facts["descr"]), facts["shape"]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise UserError(
            f"{path}: not a list of ids in one dimension", hint="get it again"
        ) from None
    if kind not in ("<u2", "=u2", "|u2") or not isinstance(tokens, int):
        raise UserError(
            f"{path}: numbers of the kind {kind}", hint="only 16-bit ids (uint16) are read"
        )
    if size != at + length + TOKEN_BYTES * tokens:
        raise UserError(
            f"{path}: the header says {tokens:,} tokens, the file has room for {(size - at - length) / 2:,.1f}",
            hint="it was cut short or damaged: get it again",
        )
    return Shard(path, at + length, tokens, sha256)
