"""The same way from text to shards as two datatrove steps, for more than one machine: local, Slurm or Ray executors.

    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from onecard.data.preparation.datatrove_step import MakeShards, TokenizeToParts

    parts = LocalPipelineExecutor([ParquetReader("fineweb"), TokenizeToParts("data/fineweb")], tasks=16)
    LocalPipelineExecutor([MakeShards("data/fineweb")], tasks=1, depends=parts).run()

Each task of the first step writes part files; the one task of the second orders them and writes shards and manifest. A
document's place in the shuffle comes from its text and its id, so the number of tasks does not show in the result.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from onecard.data.preparation.options import SHARD_TOKENS
from onecard.data.preparation.order import (
    Order,
    Taken,
    drop_duplicates,
    lay_out,
    shard_jobs,
    take,
    write_shard,
)
from onecard.data.preparation.parts import Cutting, Part, PartBuilder, open_part, part_path
from onecard.data.preparation.work_folder import WorkFolder, claim
from onecard.data.preparation.worker import PART_BYTES
from onecard.data.read.layout import WORK
from onecard.data.read.manifest import MANIFEST, Manifest, bytes_per_token, write_manifest
from onecard.data.sources.unit import BATCH_BYTES, Batch
from onecard.data.tokenizers.bpe import gpt2
from onecard.errors import UserError
from onecard.files import replace, sync_folder
from onecard.units import utc_now
from onecard.version import __version__


class TokenizeToParts(PipelineStep):  # type: ignore[misc]
    """Documents to GPT-2 tokens, in part files under OUT/.work. Every task must see the same folder."""

    name = "onecard: tokens"
    type = "🔢 - TOKENIZER"
    _requires_dependencies = ["numpy"]  # noqa: RUF012 — datatrove's own spelling

    def __init__(self, out: str, seed: int = 1337, val_fraction: float = 0.005):
        super().__init__()
        self.out = out
        self.seed = seed
        self.val_fraction = val_fraction

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> None:
        work = Path(self.out) / WORK
        claim(work)
        (work / "parts").mkdir(exist_ok=True)
        builder = PartBuilder(gpt2(), Cutting(self.seed, self.val_fraction))
        batch, number = Batch(), 0
        for document in data or ():
            with self.track_time():
                # 40 bits of the id's hash: a place that is the document's own, whichever task reads it
                place = int.from_bytes(
                    hashlib.sha1(str(document.id).encode()).digest()[:5], "little"
                )
                batch.add(document.text, 0, place)
                if batch.chars >= BATCH_BYTES:
                    builder.add(batch)
                    batch = Batch()
                if builder.held_bytes >= PART_BYTES:
                    self.stat_update("tokens", value=builder.tokens)
                    builder.write(part_path(work, rank, number), last=False)
                    number += 1
        builder.add(batch)
        self.stat_update("tokens", value=builder.tokens)
        builder.write(part_path(work, rank, number), last=True, tasks=world_size)


class MakeShards(PipelineStep):  # type: ignore[misc]
    """Part files to shards in llm.c's format and a manifest; one task."""

    name = "onecard: shards"
    type = "💽 - WRITER"
    _requires_dependencies = ["numpy"]  # noqa: RUF012

    def __init__(
        self,
        out: str,
        name: str | None = None,
        shard_tokens: int = SHARD_TOKENS,
        seed: int = 1337,
        val_fraction: float = 0.005,
        dedup: bool = False,
        sources: list[dict[str, Any]] | None = None,
    ):
        super().__init__()
        self.out = out
        self.set_name = name
        self.shard_tokens = shard_tokens
        self.seed = seed
        self.val_fraction = val_fraction
        self.dedup = dedup
        self.sources = sources or []

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        if rank:
            return
        with WorkFolder(Path(self.out)) as held:
            if not (held.out / MANIFEST).exists():
                self._write(held.out, held.path)
            held.remove_on_exit = True

    def _write(self, folder: Path, work: Path) -> None:
        parts = [open_part(path) for path in sorted((work / "parts").glob("*.part"))]
        _check_whole(parts, folder)
        dropped = (
            drop_duplicates([Taken(part) for part in parts]) if self.dedup else [None] * len(parts)
        )
        taken, total = take(parts, None, dropped)
        if not total:
            raise UserError(f"{folder}: no document came out of the first step")
        name = self.set_name or folder.resolve().name
        order = lay_out(taken, work, want_val=self.val_fraction > 0)
        splits: dict[str, Any] = {}
        written = Order(work)
        for job in shard_jobs(order, name, self.shard_tokens):
            split, path = job["split"], work / job["file"]
            counts = {k: v for k, v in order["splits"][split].items() if k != "buckets"}
            shards = splits.setdefault(split, {**counts, "shards": []})["shards"]
            shards.append(write_shard(written, split, job["start"], job["stop"], path))
            replace(path, folder / path.name)
        skipped = sum((Counter(part.head["skipped"]) for part in parts), Counter())
        manifest = Manifest(
            name=name,
            sources=self.sources,
            tokenizer=gpt2().describe(),
            splits={key: splits[key] for key in ("train", "val") if key in splits},
            bytes_per_token=bytes_per_token(splits),
            seed=self.seed,
            val_fraction=self.val_fraction,
            filters={"dedup": self.dedup},
            skipped=dict(skipped),
            version=__version__,
            created=utc_now(),
        )
        sync_folder(folder)
        write_manifest(folder / MANIFEST, manifest)
        self.stat_update("tokens", value=manifest.tokens)


def _check_whole(parts: list[Part], folder: Path) -> None:
    """Every task of the first step must have finished: a set with a silent hole is worse than an error."""
    tasks = {int(part.head["tasks"]) for part in parts if part.head["last"]}
    last = sum(1 for part in parts if part.head["last"])
    if len(tasks) != 1 or last != tasks.pop():
        raise UserError(
            f"{folder}: {last} tasks of the first step have finished, not all",
            hint="run it again with the same number of tasks",
        )
