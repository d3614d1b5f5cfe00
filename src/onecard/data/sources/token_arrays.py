"""Documents out of .npy shards of GPT-2 ids, as many tokenising scripts write them: what stands between separators.

A range of tokens is one unit of work; a document belongs to the unit in which it begins.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onecard.config.model_rules import GPT2_VOCAB
from onecard.data.read.shard_files import npy_shard
from onecard.data.read.shards import Split
from onecard.data.sources.unit import BATCH_BYTES, Batch, Unit

EOT = GPT2_VOCAB - 1
BYTES_PER_TOKEN = 4.5  # of English web text
_AT_ONCE = 1 << 20  # tokens searched at once


def token_count(path: str) -> int:
    return npy_shard(Path(path)).tokens


def token_batches(unit: Unit) -> Iterator[Batch]:
    """Documents whose separator is in the unit; the file's first one may do without."""
    place, path = unit.files[0]
    tokens = Split("tokens", [npy_shard(Path(path))], None)
    stop = min(unit.stop, tokens.tokens)
    ids = tokens.read(unit.start, max(0, stop - unit.start))
    starts = np.flatnonzero(ids == EOT).tolist()
    if unit.start == 0 and (not starts or starts[0] > 0):
        starts.insert(0, 0)
    if starts:  # the last document may reach into the next unit
        ids = np.concatenate([ids, *_until_separator(tokens, stop)])
    batch = Batch()
    for low, high in pairwise([*starts, len(ids)]):
        if (ids[low:high] != EOT).any():
            batch.add_ids(ids[low:high], place, unit.start + low)
        if batch.chars >= BATCH_BYTES:
            yield batch
            batch = Batch()
    yield batch


def _until_separator(tokens: Split, start: int) -> Iterator[npt.NDArray[np.uint16]]:
    while start < tokens.tokens:
        piece = tokens.read(start, min(_AT_ONCE, tokens.tokens - start))
        ends = np.flatnonzero(piece == EOT)
        if len(ends):
            yield piece[: ends[0]]
            return
        yield piece
        start += len(piece)
