"""The work between a plan and its result: units to parts, parts to an order, the order to shards."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onecard.data.preparation.crew import Crew
from onecard.data.preparation.encode import Encoding, Event
from onecard.data.preparation.order import lay_out, take
from onecard.data.preparation.request import Plan
from onecard.data.preparation.size import Size
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.learn import nothing_to_take
from onecard.errors import UserError

Report = Callable[[Event], None]


def make_shards(
    plan: Plan, work: Path, tokenizer: Tokenizer, workers: int, size: Size, report: Report
) -> tuple[dict[str, Any], dict[str, int]]:
    """Shards in WORK/shards; their entries for the manifest, and what was left out."""
    encoding = Encoding(plan, work, size.text_bytes, report)
    try:
        with Crew(workers, _setup(plan, work, tokenizer)) as crew:
            wanted = goal = plan.options.tokens
            while True:
                parts = encoding.run(crew, goal)
                taken, total = take(parts, wanted, plan.options.dedup)
                if goal is None or wanted is None or encoding.exhausted or total >= wanted:
                    break
                goal += int(1.05 * (wanted - total)) + 1  # duplicates took their share
            if not total:
                raise nothing_to_take(
                    plan, sum((Counter(part.head["skipped"]) for part in parts), Counter())
                )
            order = lay_out(taken, work, want_val=plan.val_fraction > 0)
            entries = _write_shards(plan, work, crew, order, report)
    finally:
        encoding.feed.stop()
    skipped = sum((Counter(item.part.head["skipped"]) for item in taken), Counter())
    duplicates = sum(len(item.dropped) for item in taken if item.dropped is not None)
    return _splits(plan, order, entries), {
        **dict(sorted(skipped.items())),
        **({"duplicate": duplicates} if duplicates else {}),
    }


def _setup(plan: Plan, work: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    names = [(item.kind, item.path.lower()) for _, _, item in plan.inputs]
    libraries = {
        "pyarrow.parquet": any(kind == "parquet" for kind, _ in names),
        "zstandard": any(path.endswith(".zst") for _, path in names),
    }
    return {
        "op": "setup",
        "work": str(work),
        "tokenizer": tokenizer.describe(),
        "libraries": [name for name, needed in libraries.items() if needed],
        "reading": asdict(plan.reading),
        "cutting": {
            "seed": plan.options.seed,
            "val_fraction": plan.val_fraction,
            "split_at": plan.split_at,
            "running_bytes": plan.running.size if plan.running else None,
        },
    }


def _splits(plan: Plan, order: dict[str, Any], entries: dict[str, list[Any]]) -> dict[str, Any]:
    splits = {}
    for name in ("train", "val"):
        if order["splits"][name]["tokens"]:
            totals = {
                key: value for key, value in order["splits"][name].items() if key != "buckets"
            }
            if plan.running is not None:
                totals["documents"] = 1  # its pieces are one text
            splits[name] = {**totals, "shards": entries[name]}
    if "train" not in splits:
        raise UserError(
            "no document is left to train on: all fell to validation",
            hint="choose a smaller share with the option `val_fraction`",
        )
    return splits


def _write_shards(
    plan: Plan, work: Path, crew: Crew, order: dict[str, Any], report: Report
) -> dict[str, list[Any]]:
    """Every shard, by whichever worker is free; those an earlier run finished are kept."""
    jobs, number = [], 0
    for split in ("val", "train"):
        total, step = order["splits"][split]["tokens"], plan.options.shard_tokens
        number = max(number, 1) if split == "train" else 0
        for start in range(0, total, step):
            jobs.append(
                {
                    "op": "shard",
                    "split": split,
                    "file": f"{plan.name}_{split}_{number:06d}.bin",
                    "start": start,
                    "stop": min(start + step, total),
                }
            )
            number += 1
    everything = sum(split["tokens"] for split in order["splits"].values())
    entries: dict[str, Any] = {}
    queue = iter(jobs)

    def next_job() -> dict[str, Any] | None:
        for job in queue:
            kept = (work / "shards" / job["file"]).with_suffix(".json")
            if kept.exists() and kept.with_suffix(".bin").exists():
                entries[job["file"]] = json.loads(kept.read_text())
                continue
            return job
        return None

    report(Event("shuffling", 0, everything, everything))
    for answer in crew.run(next_job):
        entries[answer["done"]["file"]] = answer["done"]
        done = sum(entry["tokens"] for entry in entries.values())
        report(Event("shuffling", done, everything, everything))
    return {
        split: [entries[job["file"]] for job in jobs if job["split"] == split]
        for split in ("train", "val")
    }
