"""A preview of a folder of tokens: counts, splits, some documents decoded, and what is wrong at first sight.

>>> preview("stdlib")["splits"]["train"]["tokens"]                                       # doctest: +SKIP
4704264
"""

import os
from typing import Any

import numpy as np

from onecard.data.read.shards import Dataset, Split, open_dataset
from onecard.errors import UserError

_SAMPLES = 3  # documents of the first split, one of each other
_SHOWN_TOKENS = 80
_SEARCHED_TOKENS = 200_000  # how far to look for a document's beginning


def preview(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `onecard data show` prints."""
    data = open_dataset(path)
    manifest = data.manifest or {}
    splits, problems = {}, []
    for name, split in data.splits.items():
        known = manifest.get("splits", {}).get(name, {})
        splits[name] = {
            "tokens": split.tokens,
            "documents": known.get("documents"),
            "shards": len(split.shards),
            "disk_bytes": sum(shard.offset_bytes + 2 * shard.tokens for shard in split.shards),
        }
        if not split.tokens:
            problems.append(f"{name} is empty")
    if "train" not in data.splits:
        problems.append("there is no train split")
    if "val" not in data.splits:
        problems.append("there is no val split")
    samples = []
    try:
        samples = [
            sample for name, split in data.splits.items() for sample in _samples(data, name, split)
        ]
    except UserError as error:
        problems.append(error.message)
    return {
        "name": data.name,
        "path": str(data.path),
        "format": data.layout.format,
        "sources": manifest.get("sources", []),
        "splits": splits,
        "tokenizer": {"name": data.tokenizer.name, "vocab_size": data.vocab_size}
        if data.tokenizer
        else None,
        "bytes_per_token": data.bytes_per_token,
        "samples": samples,
        "problems": problems,
    }


def _samples(data: Dataset, name: str, split: Split) -> list[dict[str, Any]]:
    count = _SAMPLES if name == "train" else 1
    samples = []
    for index in range(count):
        at = _document_start(split, split.tokens * index // count, data.eot)
        ids = split.read(at, min(_SHOWN_TOKENS + 1, split.tokens - at))
        if data.eot is not None and len(ids) and ids[0] == data.eot:
            ids, at = ids[1:], at + 1
        ends = np.flatnonzero(ids == data.eot).tolist() if data.eot is not None else []
        ids = ids[: ends[0]] if ends else ids
        text = (
            data.tokenizer.decode(ids.tolist()) if data.tokenizer else " ".join(map(str, ids[:20]))
        )
        samples.append({"split": name, "at": at, "text": text + ("" if ends else " …")})
    return samples


def _document_start(split: Split, at: int, eot: int | None) -> int:
    """The first separator from `at` on; `at` itself when none is near."""
    if eot is None:
        return at
    near = np.flatnonzero(split.read(at, min(_SEARCHED_TOKENS, split.tokens - at)) == eot)
    return at + int(near[0]) if len(near) else at
