"""Reading prepared tokens: across shard borders, from any thread.

>>> data = open_dataset("stdlib")                                                     # doctest: +SKIP
>>> data.splits["train"].read(0, 4), data.tokenizer.decode([15496, 995])              # doctest: +SKIP
(array([50256, 37811,  3109,  6738], dtype=uint16), 'Hello world')

Files are read, not mapped: a file that is cut short under a mapping ends the process with SIGBUS, a short read is an
error that can be reported.
"""

import bisect
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.read.layout import Layout, scan
from onecard.data.read.shard_files import TOKEN_BYTES, Shard, file_sha256
from onecard.data.read.token_sources import Sources, sources_of
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import OnecardError, RunFailure, UserError

Tokens = npt.NDArray[np.uint16]
_OPEN_FILES = 16
_CHECKED_TOKENS = 1 << 24  # at once: 32 MB
_LITTLE_ENDIAN = np.dtype("<u2")


class Split:
    """One split's tokens as a single stream of `tokens` ids."""

    def __init__(self, name: str, shards: list[Shard], vocab_size: int | None):
        self.name = name
        self.shards = shards
        self.vocab_size = vocab_size
        self._starts = [0]
        for shard in shards:
            self._starts.append(self._starts[-1] + shard.tokens)
        self.tokens = self._starts[-1]
        self._handles: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._handles)

    def read(self, start: int, count: int) -> Tokens:
        """`count` ids from position `start`; an id outside the vocabulary names its file and offset."""
        if start < 0 or count < 0 or start + count > self.tokens:
            raise IndexError(
                f"{self.name}: tokens {start:,} to {start + count:,} of {self.tokens:,}"
            )
        out = np.empty(count, _LITTLE_ENDIAN)
        index, filled = bisect.bisect_right(self._starts, start) - 1, 0
        while filled < count:
            shard, inside = self.shards[index], start + filled - self._starts[index]
            take = min(count - filled, shard.tokens - inside)
            if take:
                piece = out[filled : filled + take]
                self._fill(index, inside, piece)
                self._check(shard, inside, piece)
            filled += take
            index += 1
        return out

    @property
    def sha256(self) -> str | None:
        """One digest over the shards' digests, in order; None when any is unknown."""
        known = [shard.sha256 for shard in self.shards]
        if not all(known):
            return None
        return hashlib.sha256("".join(d for d in known if d).encode()).hexdigest()

    def verify(self) -> list[str]:
        """What is wrong with this split's files: digests, lengths and ids; an empty list when nothing is."""
        problems = []
        for index, shard in enumerate(self.shards):
            try:
                size = shard.path.stat().st_size
                if size != shard.offset_bytes + TOKEN_BYTES * shard.tokens:
                    problems.append(
                        f"{shard.path}: {size:,} bytes, "
                        f"expected {shard.offset_bytes + TOKEN_BYTES * shard.tokens:,}"
                    )
                    continue
                if shard.sha256 and (digest := file_sha256(shard.path)) != shard.sha256:
                    problems.append(
                        f"{shard.path}: sha256 {digest[:16]}…, the manifest says {shard.sha256[:16]}…"
                    )
                    continue
                for at in range(0, shard.tokens, _CHECKED_TOKENS):
                    ids = np.empty(min(_CHECKED_TOKENS, shard.tokens - at), _LITTLE_ENDIAN)
                    self._fill(index, at, ids)
                    self._check(shard, at, ids)
            except OnecardError as error:
                problems.append(error.message)
            except OSError as error:
                problems.append(f"{shard.path}: {error.strerror}")
        return problems

    def _fill(self, index: int, inside: int, out: Tokens) -> None:
        """Read `out` full of the shard's ids from position `inside` on."""
        shard, view = self.shards[index], out.view(np.uint8).data
        at, filled = shard.offset_bytes + TOKEN_BYTES * inside, 0
        try:
            with self._lock:
                handle = self._handle(index)
                while filled < len(view):
                    got = _read_at(handle, view[filled:], at + filled)
                    if not got:
                        break
                    filled += got
        except OSError as error:
            raise RunFailure(
                f"{shard.path} cannot be read: {error.strerror or error}",
                hint="`onecard data verify` checks every file",
            ) from None
        if filled < len(view):
            raise RunFailure(
                f"{shard.path} was cut short: nothing is at offset {at + filled:,}, "
                f"{shard.offset_bytes + TOKEN_BYTES * shard.tokens:,} bytes are expected",
                hint="get or prepare it again; `onecard data verify` checks every file",
            )

    def _handle(self, index: int) -> int:
        handle = self._handles.get(index)
        if handle is None:
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            handle = self._handles[index] = os.open(self.shards[index].path, flags)
            if len(self._handles) > _OPEN_FILES:
                os.close(self._handles.popitem(last=False)[1])
        self._handles.move_to_end(index)
        return handle

    def _check(self, shard: Shard, inside: int, ids: Tokens) -> None:
        if self.vocab_size is None or not len(ids) or int(ids.max()) < self.vocab_size:
            return
        at = int(np.argmax(ids >= self.vocab_size))
        offset = shard.offset_bytes + TOKEN_BYTES * (inside + at)
        raise UserError(
            f"{shard.path}, offset {offset:,}: token id {int(ids[at])}, the vocabulary has {self.vocab_size:,}",
            hint="the file is damaged or belongs to another tokeniser",
        )


def _close_all(handles: "OrderedDict[int, int]") -> None:
    for handle in handles.values():
        os.close(handle)


if hasattr(os, "preadv"):

    def _read_at(handle: int, view: memoryview, offset: int) -> int:
        return os.preadv(handle, [view], offset)

else:  # Windows: the lock around it keeps the position ours

    def _read_at(handle: int, view: memoryview, offset: int) -> int:
        os.lseek(handle, offset, os.SEEK_SET)
        content = os.read(handle, len(view))
        view[: len(content)] = content
        return len(content)


class Dataset:
    """A folder of tokens: its splits, its vocabulary and its tokeniser."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.name: str = layout.name
        self.path: Path = layout.path
        self.vocab_size: int | None = layout.vocab_size
        self.eot: int | None = layout.eot
        self.bytes_per_token: float | None = layout.bytes_per_token
        self.splits: dict[str, Split] = {
            name: Split(name, shards, layout.vocab_size) for name, shards in layout.splits.items()
        }

    def text_bytes_per_token(self, split: str) -> float | None:
        """Of one split's own text, for validation text need not be like the rest; of all, where it is not counted."""
        manifest = self.layout.manifest
        counts: dict[str, Any] = {} if manifest is None else manifest.splits.get(split, {})
        if not counts.get("tokens") or "bytes" not in counts:
            return self.bytes_per_token
        return float(counts["bytes"] / counts["tokens"])

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """How its text was encoded; None when the folder does not say."""
        return (
            None
            if self.layout.tokenizer is None
            else load_tokenizer(self.layout.tokenizer, self.path)
        )

    @cached_property
    def sources(self) -> Sources | None:
        """Whose each validation token is, where it was made of several sources."""
        return sources_of(self.path, self.layout.manifest)

    @property
    def manifest(self) -> dict[str, Any] | None:
        return None if self.layout.manifest is None else self.layout.manifest.to_json()

    @property
    def new_ids_from(self) -> int | None:
        """The first id that the model it was made for had not learned; None where it was made for none."""
        first = (self.manifest or {}).get("filters", {}).get("new_ids_from")
        return first if isinstance(first, int) else None

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {split.tokens:,}" for name, split in self.splits.items())
        return f"Dataset({str(self.path)!r}: {counts} tokens)"


def open_dataset(path_or_name: str | os.PathLike[str]) -> Dataset:
    """Open data/NAME or a folder: ours, nanoGPT's, llm.c's and modded-nanogpt's shards, or datatrove's .ds.

    The tokeniser is opened too: one that is missing or damaged shows now, not when a run writes its first sample.
    """
    data = Dataset(scan(path_or_name))
    _ = data.tokenizer
    return data
