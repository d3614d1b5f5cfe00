"""Near copies of documents by MinHash: two texts that share about three quarters of their five-word runs.

The parameters are datatrove's, which FineWeb was made with: runs of 5 words, 14 bands of 8 hashes, so that texts with
a Jaccard similarity of 0.72 are found with a chance of one half, of 0.8 with 92 %, of 0.5 with 5 %. A document
that has a band in common with one read before it is a near copy.
"""

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from onecard.data.preparation.hashing import U64, mix
from onecard.files import write_bytes

if TYPE_CHECKING:
    from onecard.data.preparation.parts import Part

BANDS, HASHES = 14, 8
_WORDS = 5
_AT_ONCE = 4096  # runs of words hashed at once: 112 hashes of each are 3.7 MB
_WORD = re.compile(r"\w+")
_SALTS = mix(np.arange(BANDS * HASHES, dtype=np.uint64))


def bands_of(text: str) -> U64:
    """One number for each band: equal where eight minima are equal."""
    words = np.fromiter(
        (zlib.crc32(word.encode()) for word in _WORD.findall(text.lower())), np.uint64
    )
    if len(words) < _WORDS:  # too short for a run: the words themselves are one
        runs = mix(np.array([zlib.crc32(text.strip().encode())], np.uint64))
    else:
        runs = np.zeros(len(words) - _WORDS + 1, np.uint64)
        for place in range(_WORDS):
            runs = mix(runs ^ words[place : len(words) - _WORDS + 1 + place])
    least = np.full(BANDS * HASHES, 2**64 - 1, np.uint64)
    for start in range(0, len(runs), _AT_ONCE):
        hashed = mix(runs[start : start + _AT_ONCE, None] ^ _SALTS[None])
        least = np.minimum(least, hashed.min(axis=0))
    out = np.zeros(BANDS, np.uint64)
    for column in least.reshape(BANDS, HASHES).T:
        out = mix(out ^ column)
    return out


def bands_path(part: Path) -> Path:
    return part.with_suffix(".bands")


def write_bands(part: Path, bands: list[U64], order: npt.NDArray[np.int64]) -> None:
    """Beside a part, in the order of its rows; before the part, which is what says that both are there."""
    rows = np.stack(bands)[order] if bands else np.zeros((0, BANDS), np.uint64)
    write_bytes(bands_path(part), np.ascontiguousarray(rows).data.cast("B"))


def near_copies(items: "Sequence[tuple[Part, int | None]]") -> list[npt.NDArray[np.uint32]]:
    """The rows of each part that are near copies of a document read before; a band at a time, in 24 bytes a document.

    Of a part with a limit only the documents read before it count. What comes later never decides about what came
    before: so the result does not depend on how far the reading went.
    """
    parts = [part for part, _ in items]
    firsts = np.concatenate([[0], np.cumsum([part.documents for part in parts])]).astype(np.int64)
    whole = int(firsts[-1])
    place = np.empty(whole, np.int64)  # of each row, in the order of reading
    counts = np.ones(whole, np.bool_)
    for number, (part, below) in enumerate(items):
        low, high = firsts[number], firsts[number + 1]
        place[low:high] = low + part.rows()["order"]
        if below is not None:
            counts[low + below : high] = False
    copies = np.zeros(whole, np.bool_)  # by place in reading
    for band in range(BANDS):
        keys = np.empty(whole, np.uint64)
        for number, part in enumerate(parts):
            raw = np.fromfile(bands_path(part.path), "<u8").reshape(-1, BANDS)
            keys[place[firsts[number] : firsts[number + 1]]] = raw[:, band]
        order = np.argsort(keys, kind="stable")  # within a key, as read
        order = order[counts[order]]
        copies[order[1:][keys[order][1:] == keys[order][:-1]]] = True
    return [
        np.flatnonzero(copies[place[firsts[number] : firsts[number + 1]]]).astype(np.uint32)
        for number in range(len(parts))
    ]
