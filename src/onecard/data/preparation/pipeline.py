"""The whole way from sources to shards: resolve, size, tokenise, order, shard, manifest. Restartable at every point.

>>> prepare(["stdlib"], "data/stdlib", tokens=1_000_000).tokens                       # doctest: +SKIP
1000412

Everything unfinished lives in OUT/.work: plan.json (what was asked and found), parts/ (tokens of finished units),
order/, shards/. Each file there is whole or absent, and each is a function of the request alone, so a killed run goes
on with what is there, and the result has the same bytes as an undisturbed one.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onecard.data.lock import FolderLock
from onecard.data.preparation.crew import Crew
from onecard.data.preparation.encode import Encoding, Event
from onecard.data.preparation.order import lay_out, take
from onecard.data.preparation.request import Options, Plan, default_name, planned, stamp, unchanged
from onecard.data.preparation.size import Size, bytes_under, check_disk, estimate, tokenizer_kind
from onecard.data.read.manifest import (
    DATA_HOME,
    DISK_FULL,
    MANIFEST,
    WORK,
    Manifest,
    read_manifest,
    sync_folder,
    write_aside,
    write_manifest,
)
from onecard.data.sources.resolve import resolve_source
from onecard.data.tokenizers.kinds import Tokenizer, gpt2
from onecard.data.tokenizers.learn import nothing_to_take, tokenizer_of
from onecard.errors import RunFailure, UserError
from onecard.version import __version__


def prepare(
    sources: list[str],
    out: str | os.PathLike[str] | None = None,
    tokens: int | None = None,
    *,
    workers: int | None = None,
    fresh: bool = False,
    progress: Callable[[Event], None] | None = None,
    announce: Callable[[Size, Path], None] | None = None,
    **options: Any,
) -> Manifest:
    """Make (or finish) the data set of `sources` in the folder `out`; see Options for the rest.

    The same call goes on with what an earlier one left; a finished set that fits is returned as it is.
    """
    asked = Options(tokens=tokens, **options).checked()
    words = [str(word) for word in sources] or ["stdlib"]
    workers = max(1, workers or os.cpu_count() or 1)
    tell = progress or (lambda event: None)
    request = hashlib.sha256(json.dumps([words, asdict(asked)]).encode()).hexdigest()
    adopted = _adoptable(words, asked)
    if adopted is not None:
        from onecard.data.sources.ready_shards import adopt

        return adopt(adopted, out, tell)
    folder = Path(out) if out is not None else DATA_HOME / (asked.name or default_name(words))
    done = _finished(folder, request, words, asked)
    if done is not None and not (folder / WORK).exists():
        return done
    try:
        (folder / WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made: {error.strerror}", hint="choose another --out"
        ) from None
    with FolderLock(folder / WORK):
        done = _finished(folder, request, words, asked)
        if (
            done is not None
        ):  # a run was killed while it cleared away, or has finished since we looked
            shutil.rmtree(folder / WORK, ignore_errors=True)
            return done
        try:
            return _prepare(words, folder, asked, request, workers, fresh, tell, announce)
        except UserError:
            if not (
                folder / WORK / "plan.json"
            ).exists():  # nothing was begun: leave no trace of a mistyped name
                shutil.rmtree(folder / WORK, ignore_errors=True)
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise RunFailure(
                    f"{error.filename or folder}: {error.strerror or error}",
                    hint="the same command goes on",
                ) from None
            raise RunFailure(
                f"the disk is full ({folder})",
                hint="free some space, then run the same command: it goes on where it was",
            ) from None


def sized(
    sources: list[str],
    out: str | os.PathLike[str] | None = None,
    tokens: int | None = None,
    *,
    workers: int | None = None,
    **options: Any,
) -> tuple[Size, Path]:
    """What `prepare` with the same arguments will take, and where it will put it."""
    asked = Options(tokens=tokens, **options).checked()
    words = [str(word) for word in sources] or ["stdlib"]
    found = [resolve_source(word, tokens) for word in words]
    folder = Path(out) if out is not None else DATA_HOME / (asked.name or default_name(words))
    return estimate(
        found, tokenizer_kind(asked.tokenizer), tokens, max(1, workers or os.cpu_count() or 1)
    ), folder


def _adoptable(words: list[str], options: Options) -> Path | None:
    folders = [Path(word) for word in words if Path(word).is_dir()]
    tokens = [
        f
        for f in folders
        if not (f / WORK).exists() and (any(f.glob("*.bin")) or any(f.glob("*.ds")))
    ]
    if not tokens:
        return None
    if len(words) > 1:
        raise UserError(
            f"{tokens[0]} holds tokens already, and is used as it is", hint="give it alone"
        )
    if options != Options():
        raise UserError(
            f"{tokens[0]} holds tokens already: nothing of it is selected or encoded anew",
            hint="give it without other options",
        )
    return tokens[0]


def _finished(folder: Path, request: str, words: list[str], options: Options) -> Manifest | None:
    if not (folder / MANIFEST).is_file():
        if folder.is_dir() and not (folder / WORK).is_dir() and any(folder.iterdir()):
            raise UserError(
                f"{folder} holds other files", hint="choose an empty or new folder with --out"
            )
        return None
    found = read_manifest(folder)
    if found.request != request:
        raise UserError(
            f"{folder} holds another data set already: {found.tokens:,} tokens of {found.sources[0]['uri']}",
            hint="choose another --out, or delete it first",
        )
    for source in (resolve_source(word, options.tokens) for word in words if not _on_hub(word)):
        seen = {entry["uri"]: entry.get("files") for entry in found.sources}.get(source.uri)
        if seen != stamp(source):
            raise UserError(
                f"{source.uri} has changed since {folder} was made from it",
                hint="choose another --out, or delete it first",
            )
    return found


def _on_hub(word: str) -> bool:
    from onecard.facts.datasets import known_dataset

    return word.startswith("hf:") or (
        word != "stdlib" and known_dataset(word) is not None and not Path(word).exists()
    )


def _prepare(
    words: list[str],
    folder: Path,
    options: Options,
    request: str,
    workers: int,
    fresh: bool,
    tell: Callable[[Event], None],
    announce: Callable[[Size, Path], None] | None,
) -> Manifest:
    work = folder / WORK
    plan = planned(words, options, request, work, fresh)
    size = estimate(plan.sources, tokenizer_kind(options.tokenizer), options.tokens, workers)
    check_disk(size, folder, bytes_under(work))
    if announce is not None:
        announce(size, folder)
    for name in ("parts", "shards"):
        (work / name).mkdir(exist_ok=True)
        for aside in (work / name).glob("*.tmp"):
            aside.unlink()
    if any(source.pretokenized for source in plan.sources):
        from onecard.data.sources.ready_shards import take_shards

        tokenizer: Tokenizer = gpt2()
        splits = take_shards(plan.sources, options.tokens, work / "shards", tell)
        skipped: dict[str, int] = {}
    else:
        tokenizer = tokenizer_of(plan, work)
        splits, skipped = _make(plan, work, tokenizer, workers, size, tell)
    unchanged(plan)
    return _finish(plan, folder, tokenizer, splits, skipped)


def _make(
    plan: Plan,
    work: Path,
    tokenizer: Tokenizer,
    workers: int,
    size: Size,
    tell: Callable[[Event], None],
) -> tuple[dict[str, Any], dict[str, int]]:
    """Units to parts, parts to an order, the order to shards."""
    setup = {
        "op": "setup",
        "work": str(work),
        "tokenizer": tokenizer.describe(),
        "reading": asdict(plan.reading),
        "cutting": {
            "seed": plan.options.seed,
            "val_fraction": plan.val_fraction,
            "split_at": plan.split_at,
            "running_bytes": plan.running.size if plan.running else None,
        },
    }
    encoding = Encoding(plan, work, size.text_bytes, tell)
    try:
        with Crew(workers, setup) as crew:
            wanted = goal = plan.options.tokens
            while True:
                parts = encoding.run(crew, goal)
                taken, total = take(parts, wanted, plan.options.dedup)
                if goal is None or wanted is None or encoding.exhausted or total >= wanted:
                    break
                goal += int(1.05 * (wanted - total)) + 1  # duplicates took their share
            if not total:
                raise nothing_to_take(
                    plan, sum((Counter(p.head["skipped"]) for p in parts), Counter())
                )
            order = lay_out(taken, work, want_val=plan.val_fraction > 0)
            entries = _shards(plan, work, crew, order, tell)
    finally:
        encoding.feed.stop()
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
            hint="choose a smaller --val-fraction",
        )
    skipped = sum((Counter(item.part.head["skipped"]) for item in taken), Counter())
    duplicates = sum(len(item.dropped) for item in taken if item.dropped is not None)
    return splits, {
        **dict(sorted(skipped.items())),
        **({"duplicate": duplicates} if duplicates else {}),
    }


def _shards(
    plan: Plan, work: Path, crew: Crew, order: dict[str, Any], tell: Callable[[Event], None]
) -> dict[str, list[Any]]:
    """Every shard, by whichever worker is free; those an earlier run finished are kept."""
    name = plan.name
    jobs, number = [], 0
    for split in ("val", "train"):
        total, step = order["splits"][split]["tokens"], plan.options.shard_tokens
        number = max(number, 1) if split == "train" else 0
        for start in range(0, total, step):
            jobs.append(
                {
                    "op": "shard",
                    "split": split,
                    "file": f"{name}_{split}_{number:06d}.bin",
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

    tell(Event("shuffling", 0, everything, everything))
    for answer in crew.run(next_job):
        entries[answer["done"]["file"]] = answer["done"]
        tell(
            Event(
                "shuffling",
                sum(entry["tokens"] for entry in entries.values()),
                everything,
                everything,
            )
        )
    return {
        split: [entries[job["file"]] for job in jobs if job["split"] == split]
        for split in ("train", "val")
    }


def _finish(
    plan: Plan, folder: Path, tokenizer: Tokenizer, splits: dict[str, Any], skipped: dict[str, int]
) -> Manifest:
    """Move the shards in, write the manifest last, and clear the work away."""
    work = folder / WORK
    for split in splits.values():
        for entry in split["shards"]:
            if (work / "shards" / entry["file"]).exists():
                os.replace(work / "shards" / entry["file"], folder / entry["file"])
    content = tokenizer.file_content()
    if content is not None:
        write_aside(folder / "tokenizer.json", content)
    tokens, text = (sum(split[key] for split in splits.values()) for key in ("tokens", "bytes"))
    options = plan.options
    manifest = Manifest(
        name=plan.name,
        sources=[
            {"uri": s.uri, "revision": s.revision, "licence": s.licence, "files": stamp(s)}
            for s in plan.sources
        ],
        tokenizer=tokenizer.describe(),
        splits=splits,
        bytes_per_token=round(text / tokens, 6) if tokens else None,
        seed=options.seed,
        val_fraction=plan.val_fraction,
        filters={
            "column": options.column,
            "min_chars": options.min_chars,
            "language": options.language,
            "min_language_score": options.min_language_score,
            "dedup": options.dedup,
            "tokens": options.tokens,
        },
        skipped=skipped,
        order="as given"
        if plan.sources[0].pretokenized
        else "running text"
        if plan.running
        else "shuffled",
        fingerprint=plan.fingerprint(),
        request=plan.request,
        version=__version__,
        created=plan.created,
    )
    sync_folder(folder)
    write_manifest(folder, manifest)
    sync_folder(folder)
    shutil.rmtree(work, ignore_errors=True)
    return manifest
