"""Part files: the tokens of up to some 100 MB of text, its documents already in the order of the final shuffle.

A worker writes one, whole or not at all; the shard pass reads slices of many. Layout: 8 bytes of header length, a JSON
header, one row per document (ROW), then the tokens as uint16. Rows are sorted by `key`, so that any range of keys is
one run of rows and one run of tokens.
"""

import hashlib
import json
import os
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.preparation.hashing import U64, in_validation, shuffle_keys
from onecard.data.preparation.near_copies import bands_of, write_bands
from onecard.data.sources.unit import Batch
from onecard.data.tokenizers.kinds import Ids, Offsets, Tokenizer, offsets_of
from onecard.errors import RunFailure
from onecard.files import write_bytes

# key: where the document goes; hash: of its text; start, length: its tokens here; order: its place in the part as read
ROW = np.dtype(
    [
        ("key", "<u8"),
        ("hash0", "<u8"),
        ("hash1", "<u8"),
        ("start", "<u8"),
        ("length", "<u4"),
        ("order", "<u4"),
        ("bytes", "<u4"),
        ("val", "<u4"),
    ]
)
Rows = npt.NDArray[np.void]

_ROW_COST = 64  # bytes of memory a document takes, were its text empty


@dataclass(frozen=True)
class Cutting:
    """How documents become rows."""

    seed: int
    val_fraction: float
    running_bytes: int | None = None  # of a running text: kept in order, its tail for validation
    split_at: int | None = None
    near: bool = False  # MinHash bands are kept beside the part


class PartBuilder:
    """Encodes batches and gathers them until the part is written."""

    def __init__(self, tokenizer: Tokenizer, cutting: Cutting):
        self.tokenizer = tokenizer
        self.cutting = cutting
        self.separator = np.array([] if tokenizer.eot is None else [tokenizer.eot], np.uint16)
        self.clear()

    def clear(self) -> None:
        self.rows: list[Rows] = []
        self.ids: list[npt.NDArray[np.uint16]] = []
        self.offsets: list[npt.NDArray[np.int64]] = []
        self.skipped: Counter[str] = Counter()
        self.bands: list[U64] = []
        self.batches = self.documents = self.tokens = self.text_bytes = 0

    @property
    def held_bytes(self) -> int:
        """About what is held in memory: when to write a part."""
        return self.text_bytes + _ROW_COST * self.documents

    def add(self, batch: Batch) -> None:
        self.batches += 1
        self.skipped += batch.skipped
        ready = bool(batch.ids)
        if ready:
            ids, offsets, raw = self._ready(batch)
        else:
            raw = _utf8(batch, self.skipped)
            if raw:
                ids, offsets = self.tokenizer.encode_batch(batch.texts)
        if not raw:
            return
        rows = np.zeros(len(raw), ROW)
        digests = b"".join(
            [hashlib.sha1(text, usedforsecurity=False).digest()[:16] for text in raw]
        )
        hashes = np.frombuffer(digests, "<u8").reshape(-1, 2)
        rows["hash0"], rows["hash1"] = hashes[:, 0], hashes[:, 1]
        if ready:
            sizes = np.concatenate([[0], np.cumsum(self.tokenizer.byte_lengths[ids])])
            rows["bytes"] = np.diff(sizes[offsets])
        else:
            rows["bytes"] = np.fromiter(map(len, raw), np.uint32, len(raw))
        rows["order"] = np.arange(self.documents, self.documents + len(raw))
        self._place(rows, batch.places)
        rows["length"] = np.diff(offsets) + self._separators(batch.places)
        if self.cutting.near:
            texts = [" ".join(map(str, row)) for row in batch.ids] if ready else batch.texts
            self.bands += [bands_of(text) for text in texts]
        self.rows.append(rows)
        self.ids.append(ids)
        self.offsets.append(offsets)
        self.documents += len(raw)
        self.tokens += int(rows["length"].sum())
        self.text_bytes += int(rows["bytes"].sum())

    def _ready(self, batch: Batch) -> tuple[Ids, Offsets, list[bytes]]:
        """Documents that are tokens already, without separators at their ends; what is no id is left out and counted."""
        good, places = [], []
        for tokens, place in zip(batch.ids, batch.places, strict=True):
            ids = _token_ids(tokens, self.tokenizer.vocab_size)
            if ids is None:
                self.skipped["not token ids"] += 1
                continue
            inside = np.flatnonzero(ids != self.tokenizer.eot)
            if not len(inside):
                self.skipped["no text"] += 1
                continue
            good.append(ids[inside[0] : inside[-1] + 1])
            places.append(place)
        batch.ids, batch.places = good, places
        joined = np.concatenate(good) if good else np.zeros(0, np.uint16)
        return joined, offsets_of(map(len, good), len(good)), [ids.tobytes() for ids in good]

    def _place(self, rows: Rows, places: Sequence[tuple[int, int]]) -> None:
        cut = self.cutting
        if cut.running_bytes is not None:
            rows["key"] = [at * (2**64 - 1) // cut.running_bytes for _, at in places]
            rows["val"] = [cut.split_at is not None and at >= cut.split_at for _, at in places]
            return
        pairs = np.array(places, np.uint64)
        rows["key"] = shuffle_keys(
            rows["hash0"], (pairs[:, 0] << np.uint64(40)) | pairs[:, 1], cut.seed
        )
        rows["val"] = in_validation(rows["hash0"], cut.val_fraction)

    def _separators(self, places: Sequence[tuple[int, int]]) -> Any:
        """One before each document; in a running text only where a split begins."""
        if self.cutting.running_bytes is None or not len(self.separator):
            return len(self.separator)
        return np.array([at in (0, self.cutting.split_at) for _, at in places], np.int64)

    def write(self, path: Path, **header: Any) -> None:
        """The part in key order, whole or not at all; the builder is empty after it."""
        rows = np.concatenate(self.rows) if self.rows else np.zeros(0, ROW)
        pieces: list[npt.NDArray[np.uint16]] = []
        for ids, offsets in zip(self.ids, self.offsets, strict=True):
            pieces += [ids[low:high] for low, high in pairwise(offsets.tolist())]
        order = np.argsort(rows["key"], kind="stable")
        if self.cutting.near:
            write_bands(path, self.bands, order)
        lengths, chosen = rows["length"].tolist(), []
        for index in order.tolist():
            if lengths[index] > len(pieces[index]):
                chosen.append(self.separator)
            chosen.append(pieces[index])
        rows = rows[order]
        rows["start"][1:] = np.cumsum(rows["length"][:-1], dtype=np.uint64)
        tokens = (
            np.concatenate(chosen).astype("<u2", copy=False) if chosen else np.zeros(0, np.uint16)
        )
        head = {
            "documents": len(rows),
            "tokens": len(tokens),
            "val_tokens": int(rows["length"][rows["val"] != 0].sum(dtype=np.int64)),
            "text_bytes": self.text_bytes,
            "batches": self.batches,
            "skipped": dict(self.skipped),
            **header,
        }
        raw = json.dumps(head).encode()
        write_bytes(
            path, struct.pack("<Q", len(raw)), raw, rows.data.cast("B"), tokens.data.cast("B")
        )
        self.clear()


def _token_ids(values: Any, vocab_size: int) -> Ids | None:
    try:
        ids = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        return None
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        return None
    return ids.astype(np.uint16)


def _utf8(batch: Batch, skipped: Counter[str]) -> list[bytes]:
    """Each text as bytes; a text with half a surrogate pair (JSON can hold one) is left out and counted."""
    try:
        return [text.encode() for text in batch.texts]
    except UnicodeEncodeError:
        good = []
        for text, place in zip(batch.texts, batch.places, strict=True):
            try:
                good.append((text.encode(), text, place))
            except UnicodeEncodeError:
                skipped["invalid UTF-8"] += 1
        batch.texts, batch.places = [text for _, text, _ in good], [place for _, _, place in good]
        return [raw for raw, _, _ in good]


@dataclass(frozen=True)
class Part:
    """A part file, opened slice by slice."""

    path: Path
    head: dict[str, Any]
    rows_at: int
    tokens_at: int
    tokens_path: Path | None = None  # of a list of rows whose tokens are in another part file

    @property
    def documents(self) -> int:
        return int(self.head["documents"])

    @property
    def source(self) -> int:
        return int(self.head.get("source", 0))

    def rows(self, low: int = 0, high: int | None = None) -> Rows:
        high = self.documents if high is None else high
        with open(self.path, "rb") as file:
            file.seek(self.rows_at + low * ROW.itemsize)
            return np.frombuffer(file.read((high - low) * ROW.itemsize), ROW)

    def documents_of(self, rows: Rows) -> list[npt.NDArray[np.uint16]]:
        """The tokens of some rows, neighbours read together."""
        if not len(rows):
            return []
        starts, ends = rows["start"], rows["start"] + rows["length"]
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        out = []
        with open(self.tokens_path or self.path, "rb") as file:
            for low, high in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
                begin, end = int(starts[low]), int(ends[high - 1])
                file.seek(self.tokens_at + 2 * begin)
                run = np.frombuffer(file.read(2 * (end - begin)), "<u2")
                cuts = (starts[low:high] - starts[low]).tolist()
                out += [run[a:b] for a, b in zip(cuts, [*cuts[1:], end - begin], strict=True)]
        return out


def _header(path: Path) -> tuple[dict[str, Any], int, int]:
    """A file's head, where its rows begin, and its size."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), 8 + length, os.fstat(file.fileno()).st_size


def open_part(path: Path) -> Part:
    head, rows_at, size = _header(path)
    tokens_at = rows_at + head["documents"] * ROW.itemsize
    if size != tokens_at + 2 * head["tokens"]:
        raise RunFailure(
            f"{path} was cut short by something else", hint="start again with the option `fresh`"
        )
    return Part(path, head, rows_at, tokens_at)


def write_rows(path: Path, rows: Rows, part: Part) -> None:
    """A list of rows, sorted by key, whose tokens stay in `part`: documents that are used once more."""
    head = {"documents": len(rows), "source": part.source, "tokens_of": part.path.name}
    raw = json.dumps(head).encode()
    rows = np.ascontiguousarray(rows[np.argsort(rows["key"], kind="stable")])
    write_bytes(path, struct.pack("<Q", len(raw)), raw, rows.data.cast("B"))


def open_rows(path: Path, parts: Path) -> Part:
    head, rows_at, _ = _header(path)
    tokens = open_part(parts / head["tokens_of"])
    return Part(path, head, rows_at, tokens.tokens_at, tokens.path)


def part_path(work: Path, unit: int, part: int) -> Path:
    return work / "parts" / f"{unit:06d}-{part:04d}.part"
