"""The work between a plan and its result: units to parts, parts to an order, the order to shards."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onecard.data.preparation.crew import Crew
from onecard.data.preparation.encode import Encoding, Event
from onecard.data.preparation.mixing import Mixed, copies_of, counted, mix_sources
from onecard.data.preparation.order import Taken, by_source, lay_out, shard_jobs, take
from onecard.data.preparation.request import Plan
from onecard.data.preparation.size import Size
from onecard.data.tokenizers.kinds import Tokenizer
from onecard.data.tokenizers.learn import nothing_to_take
from onecard.errors import UserError

Report = Callable[[Event], None]


@dataclass(frozen=True)
class Made:
    """What came of the work: entries of the manifest."""

    splits: dict[str, Any]
    skipped: dict[str, int] = field(default_factory=dict)
    duplicates: int | None = None  # exact copies of an earlier document, left out or not
    sources: list[dict[str, Any]] = field(default_factory=list)  # what each source gave
    val_runs: bytes | None = None  # whose each validation token is, where there are several sources


def make_shards(
    plan: Plan, work: Path, tokenizer: Tokenizer, workers: int, size: Size, report: Report
) -> Made:
    """Shards in WORK/shards, and the manifest's entries for them."""
    with Crew(workers, _setup(plan, work, tokenizer)) as crew:
        if plan.options.mix:
            mixed = mix_sources(plan, work, crew, size.text_bytes, report)
        else:
            mixed = _plain(plan, work, crew, size, report)
        order = lay_out(mixed.taken, work, plan.val_fraction > 0, mixed.promoted)
        entries = _write_shards(plan, work, crew, order, report)
    skipped = sum((Counter(item.part.head.get("skipped", {})) for item in mixed.taken), Counter())
    if plan.options.dedup and mixed.duplicates:
        skipped["duplicate"] = mixed.duplicates
    if mixed.near:
        skipped["near copy"] = mixed.near
    sources, runs = _sources(plan, mixed, order)
    return Made(
        _splits(plan, order, entries),
        dict(sorted(skipped.items())),
        mixed.duplicates,
        sources,
        runs,
    )


def _plain(plan: Plan, work: Path, crew: Crew, size: Size, report: Report) -> Mixed:
    """Sources without shares: one after the other, up to the number of tokens asked for."""
    encoding = Encoding(plan, work, size.text_bytes, report)
    try:
        wanted = goal = plan.options.tokens
        while True:
            parts = encoding.run(crew, goal)
            copies, dropped = copies_of(plan, [Taken(part) for part in parts])
            taken, total = take(parts, wanted, dropped)
            if goal is None or wanted is None or encoding.exhausted or total >= wanted:
                break
            goal += int(1.05 * (wanted - total)) + 1  # duplicates took their share
    finally:
        encoding.feed.stop()
    if not total:
        raise nothing_to_take(
            plan, sum((Counter(part.head["skipped"]) for part in parts), Counter())
        )
    exact = counted(taken, copies)
    near = counted(taken, dropped) - exact if plan.options.dedup == "near" else 0
    return Mixed(taken, [], [1.0] * len(plan.sources), exact, near)


def _sources(
    plan: Plan, mixed: Mixed, order: dict[str, Any]
) -> tuple[list[dict[str, Any]], bytes | None]:
    if len(plan.sources) < 2:
        return [], None
    totals, runs = by_source(mixed.taken, order["promoted"], len(plan.sources))
    train = sum(total["train"]["tokens"] for total in totals) or 1
    return [
        {
            "name": name,
            "share": round(total["train"]["tokens"] / train, 6),
            "epochs": round(epochs, 4),
            **({"share_asked": round(plan.shares[number], 6)} if plan.shares else {}),
            "splits": total,
        }
        for number, (name, total, epochs) in enumerate(
            zip(plan.names, totals, mixed.epochs, strict=True)
        )
    ], runs


def _setup(plan: Plan, work: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    names = [(item.kind, item.path.lower()) for *_, item in plan.numbered]
    libraries = {
        "pyarrow.parquet": any(kind == "parquet" for kind, _ in names),
        "zstandard": any(path.endswith(".zst") for _, path in names),
    }
    return {
        "op": "setup",
        "work": str(work),
        "tokenizer": tokenizer.describe(),
        "libraries": [name for name, needed in libraries.items() if needed],
        "readings": [asdict(reading) for reading in plan.readings],
        "cuttings": [
            {
                "seed": plan.options.seed,
                "val_fraction": plan.fraction(number),
                "split_at": plan.split_at,
                "running_bytes": plan.running.size if plan.running else None,
                "near": plan.options.dedup == "near" and plan.running is None,
            }
            for number in range(len(plan.sources))
        ],
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
            "no document is left to train on: all were assigned to validation",
            hint="choose a smaller share with the option `val_fraction`",
        )
    return splits


def _write_shards(
    plan: Plan, work: Path, crew: Crew, order: dict[str, Any], report: Report
) -> dict[str, list[Any]]:
    """Every shard, by whichever worker is free; those an earlier run finished are kept."""
    shards = shard_jobs(order, plan.name, plan.options.shard_tokens)
    jobs = [{"op": "shard", **job} for job in shards]
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
