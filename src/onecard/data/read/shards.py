"""Reading prepared tokens: memory-mapped, across shard borders, from any thread.

>>> data = open_dataset("stdlib")                                                     # doctest: +SKIP
>>> data.splits["train"].read(0, 4), data.tokenizer.decode([15496, 995])              # doctest: +SKIP
(array([50256, 37811,  3109,  6738], dtype=uint16), 'Hello world')
"""

import bisect
import hashlib
import os
import threading
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.read.manifest import Layout, Shard, file_sha256, scan
from onecard.data.tokenizers.kinds import Tokenizer, load_tokenizer
from onecard.errors import UserError

Tokens = npt.NDArray[np.uint16]
_OPEN_MAPS = 16


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
        self._maps: OrderedDict[int, Tokens] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, start: int, count: int) -> Tokens:
        """`count` ids from position `start`; an id outside the vocabulary names its file and offset."""
        if start < 0 or count < 0 or start + count > self.tokens:
            raise IndexError(
                f"{self.name}: tokens {start:,} to {start + count:,} of {self.tokens:,}"
            )
        out = np.empty(count, np.uint16)
        index, filled = bisect.bisect_right(self._starts, start) - 1, 0
        while filled < count:
            shard, inside = self.shards[index], start + filled - self._starts[index]
            take = min(count - filled, shard.tokens - inside)
            if take:
                piece = self._map(index)[inside : inside + take]
                out[filled : filled + take] = piece
                self._check(shard, inside, out[filled : filled + take])
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
        """What is wrong with this split's files: digests, lengths and ids; an empty list when all is well."""
        problems = []
        for index, shard in enumerate(self.shards):
            try:
                size = shard.path.stat().st_size
                if size != shard.offset_bytes + 2 * shard.tokens:
                    problems.append(
                        f"{shard.path}: {size:,} bytes, expected {shard.offset_bytes + 2 * shard.tokens:,}"
                    )
                    continue
                if shard.sha256 and (found := file_sha256(shard.path)) != shard.sha256:
                    problems.append(
                        f"{shard.path}: sha256 {found[:16]}…, the manifest says {shard.sha256[:16]}…"
                    )
                    continue
                for at in range(0, shard.tokens, 1 << 24):
                    self._check(shard, at, self._map(index)[at : at + (1 << 24)])
            except UserError as error:
                problems.append(error.message)
            except OSError as error:
                problems.append(f"{shard.path}: {error.strerror}")
        return problems

    def _map(self, index: int) -> Tokens:
        with self._lock:
            found = self._maps.get(index)
            if found is None:
                shard = self.shards[index]
                try:
                    found = np.memmap(
                        shard.path, "<u2", "r", offset=shard.offset_bytes, shape=(shard.tokens,)
                    )
                except (OSError, ValueError) as error:
                    raise UserError(
                        f"{shard.path} cannot be read: {error}",
                        hint="`onecard data verify` checks every file",
                    ) from None
                self._maps[index] = found
                if len(self._maps) > _OPEN_MAPS:
                    self._maps.popitem(last=False)
            self._maps.move_to_end(index)
            return found

    def _check(self, shard: Shard, inside: int, ids: Tokens) -> None:
        if self.vocab_size is None or not len(ids) or int(ids.max()) < self.vocab_size:
            return
        at = int(np.argmax(ids >= self.vocab_size))
        offset = shard.offset_bytes + 2 * (inside + at)
        raise UserError(
            f"{shard.path}, offset {offset:,}: token id {int(ids[at])}, the vocabulary has {self.vocab_size:,}",
            hint="the file is damaged or belongs to another tokeniser",
        )


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

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """How its text was encoded; None when the folder does not say."""
        return (
            None
            if self.layout.tokenizer is None
            else load_tokenizer(self.layout.tokenizer, self.path)
        )

    @property
    def manifest(self) -> dict[str, Any] | None:
        return None if self.layout.manifest is None else self.layout.manifest.to_json()

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {split.tokens:,}" for name, split in self.splits.items())
        return f"Dataset({str(self.path)!r}: {counts} tokens)"


def open_dataset(path_or_name: str | os.PathLike[str]) -> Dataset:
    """Open data/NAME or a folder: ours, nanoGPT's, llm.c's and modded-nanogpt's shards, or datatrove's .ds."""
    return Dataset(scan(path_or_name))
