"""Tokens that others made: a folder used as it is, and ready GPT-2 shards from the hub. Nothing is encoded again.

>>> adopt(Path("data/openwebtext"), None, print).splits["train"]["tokens"]            # doctest: +SKIP
9035582198
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onecard.data.read.layout import scan
from onecard.data.read.manifest import MANIFEST, Manifest, bytes_per_token, write_manifest
from onecard.data.read.shard_files import HEADER_BYTES, Shard, file_sha256, read_header
from onecard.data.read.shards import Split
from onecard.data.sources.source import Source
from onecard.data.tokenizers.bpe import gpt2
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import RunFailure, UserError
from onecard.files import write_bytes, writing
from onecard.units import utc_now
from onecard.version import __version__

_AT_ONCE = 1 << 24  # tokens: 32 MB


def adopt(
    folder: Path, out: str | os.PathLike[str] | None, report: Callable[[Any], None]
) -> Manifest:
    """Check every id of a folder of tokens and write a manifest into it; the tokens stay where and as they are."""
    if out is not None and Path(out).resolve() != folder.resolve():
        raise UserError(
            f"{folder} holds tokens already, and is used as it is",
            hint=f'leave the option `out` out; `dataset = "{folder}"` names it',
        )
    layout = scan(folder)
    if layout.manifest is not None:
        return layout.manifest
    if layout.tokenizer is None:
        raise UserError(
            f"{folder} does not say what its tokens are",
            hint="`onecard data show` counts them all the same",
        )
    tokenizer = load_tokenizer(layout.tokenizer, folder)
    total = sum(shard.tokens for shards in layout.splits.values() for shard in shards)
    splits: dict[str, Any] = {}
    done = 0
    for name, shards in layout.splits.items():
        split: dict[str, Any] = {"tokens": 0, "documents": 0, "bytes": 0, "shards": []}
        for shard in shards:
            measured = measure(shard, name, tokenizer, partial(_report, report, done, total))
            done += shard.tokens
            split["shards"].append(
                {"file": shard.path.name, "tokens": shard.tokens, "sha256": file_sha256(shard.path)}
            )
            for key in ("tokens", "documents", "bytes"):
                split[key] += measured[key]
        splits[name] = split
    manifest = Manifest(
        name=layout.name,
        sources=[{"uri": layout.format, "revision": None, "licence": None}],
        tokenizer=layout.tokenizer,
        splits=splits,
        bytes_per_token=bytes_per_token(splits),
        seed=None,
        val_fraction=None,
        order="as given",
        format=layout.format,
        version=__version__,
        created=utc_now(),
    )
    try:
        write_manifest(folder / MANIFEST, manifest)
    except OSError as error:
        raise UserError(
            f"{folder / MANIFEST} cannot be written: {error.strerror}",
            hint="the folder can be trained on without it",
        ) from None
    return manifest


def measure(
    shard: Shard, split: str, tokenizer: Tokenizer, report: Callable[[int], None]
) -> dict[str, int]:
    """A shard's tokens, documents (separators) and the exact bytes of its text; an id out of range names its offset."""
    stream = Split(split, [shard], tokenizer.vocab_size)
    lengths = tokenizer.byte_lengths
    totals = {"tokens": shard.tokens, "documents": 0, "bytes": 0}
    for at in range(0, shard.tokens, _AT_ONCE):
        ids = stream.read(at, min(_AT_ONCE, shard.tokens - at))
        counts = np.bincount(ids, minlength=len(lengths))
        totals["bytes"] += int(counts @ lengths)
        totals["documents"] += int(counts[tokenizer.eot]) if tokenizer.eot is not None else 0
        report(at + len(ids))
    return totals


def take_shards(
    sources: list[Source], tokens: int | None, into: Path, report: Callable[[Any], None]
) -> dict[str, Any]:
    """Ready shards from the hub, as many as the tokens need, each checked and copied once."""
    splits: dict[str, Any] = {}
    for source in sources:
        for item in source.inputs:
            name = "val" if "_val_" in item.path else "train"
            split = splits.setdefault(name, {"tokens": 0, "documents": 0, "bytes": 0, "shards": []})
            if name == "train" and tokens is not None and split["tokens"] >= tokens:
                continue
            entry = _take_shard(source, item, into, name)
            if any(
                entry["file"] == other["file"] for s in splits.values() for other in s["shards"]
            ):
                raise UserError(
                    f"two sources have a shard named {entry['file']}", hint="prepare them apart"
                )
            split["shards"].append({key: entry[key] for key in ("file", "tokens", "sha256")})
            for key in ("tokens", "documents", "bytes"):
                split[key] += entry[key]
            _report(report, 0, tokens or split["tokens"], split["tokens"])
    return splits


def _take_shard(source: Source, item: Any, into: Path, split: str) -> dict[str, Any]:
    target = into / Path(item.path).name
    kept = target.with_suffix(".json")
    if kept.exists() and target.exists():
        return dict(json.loads(kept.read_text()))
    here = source.fetch(item, into.parent / "fetched")
    try:
        shard = Shard(here, HEADER_BYTES, read_header(here))
        measured = measure(shard, split, gpt2(), lambda _: None)
    except (UserError, RunFailure) as error:
        raise RunFailure(
            f"{source.uri}/{item.path} is not a sound shard: {error.message}", hint=error.hint
        ) from None
    with open(here, "rb") as content, writing(target) as file:
        shutil.copyfileobj(content, file, 1 << 20)
    entry = {"file": target.name, "sha256": file_sha256(target), **measured}
    write_bytes(kept, json.dumps(entry).encode())
    return entry


def _report(report: Callable[[Any], None], before: int, total: int, more: int) -> None:
    from onecard.data.preparation.encode import Event

    done = before + more
    report(Event("checking", done, max(total, done), done))
