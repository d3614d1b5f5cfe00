"""Tokenisers: the base class, bytes and characters. GPT-2's and trained ones are in bpe.py, files of them in load.py.

>>> BytesTokenizer().encode("é")
[195, 169]
>>> CharsTokenizer("abc", separator=False).decode([2, 0, 1])
'cab'
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.read.manifest import LARGEST_VOCAB, TOKENIZER_FILE
from onecard.errors import UserError
from onecard.untrusted import is_unicode

EOT = "<|endoftext|>"

Ids = npt.NDArray[np.uint16]
Offsets = npt.NDArray[np.int64]


class Tokenizer:
    """Text to ids and back. `eot` is the id put before each document; None where documents are not set apart."""

    name: str
    vocab_size: int
    eot: int | None

    def encode(self, text: str) -> list[int]:
        try:
            ids, _ = self.encode_batch([text])
        except UnicodeEncodeError:
            raise UserError(
                "the text holds half of a surrogate pair, which is no character"
            ) from None
        return [int(i) for i in ids]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """All ids in one array, and where each text's ids begin (one more entry than texts)."""
        raise NotImplementedError

    @property
    def pieces(self) -> list[bytes]:
        """The bytes each id stands for; the separator stands for none."""
        raise NotImplementedError

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.bytes_of(int(i)) for i in ids).decode("utf-8", errors="replace")

    def bytes_of(self, index: int) -> bytes:
        """What an id reads as; the separator by its name."""
        if index == self.eot:
            return EOT.encode()
        if not 0 <= index < len(self.pieces):
            raise UserError(f"token id {index} is outside the vocabulary of {self.vocab_size:,}")
        return self.pieces[index]

    @cached_property
    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """UTF-8 bytes per id: `byte_lengths[ids].sum()` is the exact size of the text behind ids."""
        return np.array([len(piece) for piece in self.pieces], np.int64)

    def describe(self) -> dict[str, Any]:
        """Its entry in manifest.json."""
        content = self.file_content()
        entry = {"name": self.name, "vocab_size": self.vocab_size, "eot": self.eot, "file": None}
        if content is None:
            return entry
        digest = hashlib.sha256(content).hexdigest()
        return {**entry, "file": TOKENIZER_FILE, "sha256": digest}

    def __repr__(self) -> str:
        return f"{self.name} tokeniser, {self.vocab_size:,} ids"

    def file_content(self) -> bytes | None:
        """What to keep beside the shards as tokenizer.json; None when the name is enough."""
        return None


class BytesTokenizer(Tokenizer):
    """UTF-8 bytes; 256 sets documents apart."""

    name = "bytes"
    vocab_size = 257
    eot = 256

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        raw = [text.encode() for text in texts]
        return np.frombuffer(b"".join(raw), np.uint8).astype(np.uint16), offsets_of(
            map(len, raw), len(raw)
        )

    @cached_property
    def pieces(self) -> list[bytes]:
        return [bytes([value]) for value in range(256)] + [b""]


class CharsTokenizer(Tokenizer):
    """One id per character of the data, in code point order, as nanoGPT's shakespeare_char."""

    name = "chars"

    def __init__(self, chars: Sequence[str], separator: bool):
        if len(chars) + separator > LARGEST_VOCAB:
            raise UserError(
                f"{len(chars):,} different characters do not fit in 16-bit ids",
                hint="use the bytes or gpt2 tokeniser",
            )
        self.chars = list(chars)
        self.eot = len(chars) if separator else None
        self.vocab_size = len(chars) + separator
        if not is_unicode("".join(chars)):
            raise UserError(
                "this vocabulary has half of a surrogate pair among its characters",
                hint="no text holds one: prepare the data again",
            )
        points = np.array([ord(char) for char in chars], np.uint32)
        self._order = np.argsort(points, kind="stable")  # a foreign table has an order of its own
        self._points = points[self._order]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        known = self._points
        at = np.minimum(np.searchsorted(known, points), max(len(known) - 1, 0))
        if len(points) and (not len(known) or (known[at] != points).any()):
            unknown = (
                chr(int(points[np.argmax(known[at] != points)]))
                if len(known)
                else "".join(texts)[0]
            )
            raise UserError(
                f"the character {unknown!r} is not in this vocabulary of {len(self.chars)} characters"
            )
        return self._order[at].astype(np.uint16), offsets_of(map(len, texts), len(texts))

    @cached_property
    def pieces(self) -> list[bytes]:
        return [char.encode() for char in self.chars] + ([b""] if self.eot is not None else [])

    def file_content(self) -> bytes:
        return json.dumps(
            {"type": "chars", "chars": self.chars, "separator": self.eot is not None}
        ).encode()


def offsets_of(lengths: Iterable[int], count: int) -> Offsets:
    out = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=out[1:])
    return out
