"""The whole way from sources to shards: resolve, size, tokenise, order, shard, manifest. Restartable at every point.

>>> prepare(["stdlib"], "data/stdlib", tokens=1_000_000).tokens                       # doctest: +SKIP
1000412

Everything unfinished lives in OUT/.work: plan.json (what was asked and found), parts/ (tokens of finished units), order/,
shards/. Each file there is whole or absent, and each is a function of the request alone, so a killed run goes on with what
is there, and the result has the same bytes as an undisturbed one.
"""

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard import __version__
from onecard.data.crew import Crew, NotYet
from onecard.data.documents import Reading, Unit, batches
from onecard.data.lock import FolderLock
from onecard.data.manifest import (
    DATA_HOME,
    MANIFEST,
    WORK,
    Manifest,
    read_manifest,
    sync_folder,
    write_aside,
    write_manifest,
)
from onecard.data.order import lay_out, take
from onecard.data.parts import Part, open_part, part_path
from onecard.data.size import Size, bytes_under, check_disk, estimate, tokenizer_kind
from onecard.data.sources import Input, Source, resolve_source, running_text, units_of
from onecard.data.tokenizer import BytesTokenizer, CharsTokenizer, Tokenizer, gpt2, load_tokenizer, train_bpe
from onecard.errors import RunFailure, UserError

SHARD_TOKENS = 100_000_000  # llm.c's
_UNIT_BYTES = (4 * 1024**2, 96 * 1024**2)  # least and most text in a unit
_BPE_SAMPLE_BYTES = 64 * 1024**2  # text that a trained vocabulary is learnt from: the beginning of the input


@dataclass(frozen=True)
class Options:
    """What was asked, apart from the sources; all of it shows in the result."""

    tokens: int | None = None
    val_fraction: float | None = (
        None  # None: 10 % of a small set or a running text, 1 % of a middling one, 0.5 % of a large
    )
    seed: int = 1337
    tokenizer: str = "gpt2"
    column: str = "text"
    min_chars: int = 0
    language: str | None = None
    min_language_score: float | None = None
    dedup: bool = False
    shard_tokens: int = SHARD_TOKENS
    name: str | None = None

    def checked(self) -> "Options":
        kind, _, size = self.tokenizer.partition(":")
        if kind not in ("gpt2", "bytes", "chars", "bpe") or (kind == "bpe") != bool(size):
            raise UserError(
                f"unknown tokeniser {self.tokenizer!r}", hint="gpt2, bytes, chars, or bpe:8192 to train one"
            )
        if kind == "bpe" and not (size.isdecimal() and 257 < int(size) <= 65536):
            raise UserError(
                f"a BPE vocabulary of {size!r} cannot be made", hint="between 258 and 65536, as in bpe:8192"
            )
        if self.val_fraction is not None and not 0 <= self.val_fraction < 1:
            raise UserError(f"a validation fraction of {self.val_fraction} cannot be", hint="0.005 is half a per cent")
        if self.tokens is not None and self.tokens < 1:
            raise UserError("--tokens must be at least 1", hint="write it like 3.7B or 100M")
        if not 1 <= self.shard_tokens < 2**31:
            raise UserError(
                f"a shard of {self.shard_tokens:,} tokens cannot be",
                hint="llm.c's header counts up to 2,147,483,647; 100M is usual",
            )
        if self.min_chars < 0:
            raise UserError("a minimum length below zero cannot be")
        return self


@dataclass(frozen=True)
class Event:
    """Progress: bytes of text (or shards) done of an expected total, and tokens so far."""

    stage: str  # "tokenising", "shuffling", "checking"
    done: float
    total: float
    tokens: int


@dataclass(frozen=True)
class Plan:
    """A request resolved: its files, its split, its units' size. Saved, so that going on needs no second look."""

    request: str
    name: str
    sources: list[Source]
    options: Options
    val_fraction: float
    running: Input | None
    unit_bytes: int
    created: str

    @property
    def inputs(self) -> list[tuple[int, Source, Input]]:
        pairs = [(source, item) for source in self.sources for item in source.inputs]
        return [(place, source, self.running or item) for place, (source, item) in enumerate(pairs)]

    @property
    def split_at(self) -> int | None:
        """Running text: the byte where validation begins, as nanoGPT's shakespeare cuts it, moved to a character."""
        if self.running is None or not self.val_fraction:
            return None
        at = int(self.running.size * (1 - self.val_fraction))
        with open(self.running.path, "rb") as file:
            file.seek(at)
            while (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:
                at += 1
        return at if 0 < at < self.running.size else None

    @property
    def reading(self) -> Reading:
        o = self.options
        return Reading(o.column, o.min_chars, o.language, o.min_language_score, self.split_at)

    def fingerprint(self) -> str:
        files = [(source.uri, source.revision, [(i.path, i.size) for i in source.inputs]) for source in self.sources]
        return hashlib.sha256(json.dumps([files, asdict(self.options)]).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.request,
            "name": self.name,
            "sources": [s.to_json() for s in self.sources],
            "options": asdict(self.options),
            "val_fraction": self.val_fraction,
            "running": self.running.to_json() if self.running else None,
            "unit_bytes": self.unit_bytes,
            "created": self.created,
        }

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Plan":
        running = Input(**raw["running"]) if raw["running"] else None
        return Plan(
            raw["request"],
            raw["name"],
            [Source.from_json(s) for s in raw["sources"]],
            Options(**raw["options"]),
            raw["val_fraction"],
            running,
            raw["unit_bytes"],
            raw["created"],
        )


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
        from onecard.data.foreign import adopt

        return adopt(adopted, out, tell)
    folder = Path(out) if out is not None else DATA_HOME / (asked.name or default_name(words))
    done = _finished(folder, request, words, asked)
    if done is not None:
        return done
    try:
        (folder / WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}", hint="choose another --out") from None
    with FolderLock(folder / WORK):
        done = _finished(folder, request, words, asked)
        if done is not None:  # the run that held the lock has just finished it
            shutil.rmtree(folder / WORK, ignore_errors=True)
            return done
        try:
            return _prepare(words, folder, asked, request, workers, fresh, tell, announce)
        except UserError:
            if not (folder / WORK / "plan.json").exists():  # nothing was begun: leave no trace of a mistyped name
                shutil.rmtree(folder / WORK, ignore_errors=True)
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        except OSError as error:
            if error.errno not in (28, 122, 27):  # ENOSPC, EDQUOT, EFBIG
                raise RunFailure(
                    f"{error.filename or folder}: {error.strerror or error}", hint="the same command goes on"
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
    return estimate(found, tokenizer_kind(asked.tokenizer), tokens, max(1, workers or os.cpu_count() or 1)), folder


def default_name(words: list[str]) -> str:
    """data/NAME for a request: the set's name, the file's stem or the folder's name."""
    from onecard.facts.datasets import known_dataset

    word = words[0].removeprefix("hf:").split("@")[0]
    if words[0].startswith("hf:") or (known_dataset(word) is not None and not Path(word).exists()):
        word = word.split("/")[-1].replace(":", "-")
    else:
        word = Path(word).resolve().name
        word = word.split(".")[0] or word
    return word + ("-and-more" if len(words) > 1 else "")


def _adoptable(words: list[str], options: Options) -> Path | None:
    folders = [Path(word) for word in words if Path(word).is_dir()]
    tokens = [f for f in folders if not (f / WORK).exists() and (any(f.glob("*.bin")) or any(f.glob("*.ds")))]
    if not tokens:
        return None
    if len(words) > 1:
        raise UserError(f"{tokens[0]} holds tokens already, and is used as it is", hint="give it alone")
    if options != Options():
        raise UserError(
            f"{tokens[0]} holds tokens already: nothing of it is selected or encoded anew",
            hint="give it without other options",
        )
    return tokens[0]


def _finished(folder: Path, request: str, words: list[str], options: Options) -> Manifest | None:
    if not (folder / MANIFEST).is_file():
        if folder.is_dir() and not (folder / WORK).is_dir() and any(folder.iterdir()):
            raise UserError(f"{folder} holds other files", hint="choose an empty or new folder with --out")
        return None
    found = read_manifest(folder)
    if found.request != request:
        raise UserError(
            f"{folder} holds another data set already ({found.tokens:,} tokens of {', '.join(s['uri'] for s in found.sources)})",
            hint="choose another --out, or delete it first",
        )
    for source in (resolve_source(word, options.tokens) for word in words if not _on_hub(word)):
        seen = {entry["uri"]: entry.get("files") for entry in found.sources}.get(source.uri)
        if seen != _stamp(source):
            raise UserError(
                f"{source.uri} has changed since {folder} was made from it",
                hint="choose another --out, or delete it first",
            )
    return found


def _on_hub(word: str) -> bool:
    from onecard.facts.datasets import known_dataset

    return word.startswith("hf:") or (word != "stdlib" and known_dataset(word) is not None and not Path(word).exists())


def _stamp(source: Source) -> str:
    """Names and sizes of a source's files in one digest."""
    listing = [(Path(item.path).name, item.size) for item in source.inputs]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


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
    plan = _planned(words, options, request, work, fresh)
    size = estimate(plan.sources, tokenizer_kind(options.tokenizer), options.tokens, workers)
    check_disk(size, folder, bytes_under(work))
    if announce is not None:
        announce(size, folder)
    for name in ("parts", "shards"):
        (work / name).mkdir(exist_ok=True)
        for aside in (work / name).glob("*.tmp"):
            aside.unlink()
    if any(source.pretokenized for source in plan.sources):
        from onecard.data.foreign import take_shards

        splits, tokenizer = take_shards(plan.sources, options.tokens, work / "shards", tell), gpt2()
        skipped: dict[str, int] = {}
    else:
        tokenizer = _tokenizer(plan, work)
        splits, skipped = _make(plan, work, tokenizer, workers, size, tell)
    _unchanged(plan)
    return _finish(plan, folder, tokenizer, splits, skipped)


def _planned(words: list[str], options: Options, request: str, work: Path, fresh: bool) -> Plan:
    """The saved plan of the same request, or a new one."""
    saved = work / "plan.json"
    if saved.exists() and not fresh:
        plan = Plan.from_json(json.loads(saved.read_text(encoding="utf-8")))
        if plan.request != request:
            raise UserError(
                f"{work.parent} was begun with other arguments",
                hint="give the same ones to go on, --fresh to begin anew, or another --out",
            )
        _unchanged(plan, " since this was begun", "--fresh begins anew")
        return plan
    for entry in work.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    sources = [resolve_source(word, options.tokens) for word in words]
    if len({source.pretokenized for source in sources}) > 1:
        raise UserError("text and ready tokens cannot be mixed in one data set", hint="prepare them apart")
    running = running_text(sources)
    if running is not None and options.tokens is not None:
        raise UserError(
            "a single text file is taken whole, in order; --tokens does not go with it",
            hint="leave --tokens out, or give a folder of texts",
        )
    text = sum(item.text_bytes for source in sources for item in source.inputs)
    fraction = options.val_fraction
    if fraction is None:
        wanted = min(text / 4.5, options.tokens or text)
        fraction = 0.1 if running is not None or wanted < 20e6 else 0.01 if wanted < 2e9 else 0.005
    least, most = _UNIT_BYTES
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch else datetime.datetime.now(datetime.UTC)
    plan = Plan(
        request,
        options.name or default_name(words),
        sources,
        options,
        fraction,
        running,
        int(min(max(text / 64, least), most)),
        now.isoformat(timespec="seconds"),
    )
    write_aside(saved, json.dumps(plan.to_json()).encode())
    return plan


def _unchanged(plan: Plan, when: str = " while it was read", hint: str = "--fresh begins anew") -> None:
    for _, source, item in plan.inputs:
        if source.repo is None:
            try:
                stat = os.stat(item.path)
            except OSError as error:
                raise UserError(f"{item.path} has gone{when}: {error.strerror}", hint=hint) from None
            if (stat.st_size, stat.st_mtime_ns) != (item.size, item.modified):
                raise UserError(f"{item.path} has changed{when}", hint=hint)


def _tokenizer(plan: Plan, work: Path) -> Tokenizer:
    """The tokeniser asked for; one that is learnt from the data is learnt once and kept."""
    kind = tokenizer_kind(plan.options.tokenizer)
    if kind == "gpt2":
        return gpt2()
    if kind == "bytes":
        return BytesTokenizer()
    if (work / "tokenizer.json").exists():
        return load_tokenizer({"name": kind}, work)
    made: Tokenizer
    if kind == "chars":
        seen: set[str] = set()
        count, goal = 0, None if plan.options.dedup else plan.options.tokens
        for text in _texts(plan):
            seen.update(text)
            count += len(text) + 1
            if goal is not None and count >= goal:
                break
        if not seen:
            raise _nothing(plan)
        made = CharsTokenizer(sorted(seen), separator=plan.running is None)
    else:
        made = train_bpe(_sample(plan), int(plan.options.tokenizer.partition(":")[2]))
    write_aside(work / "tokenizer.json", made.file_content() or b"")
    return load_tokenizer({"name": kind}, work)


def _sample(plan: Plan) -> Iterator[str]:
    size = 0
    for text in _texts(plan):
        yield text
        size += len(text.encode())
        if size >= _BPE_SAMPLE_BYTES:
            return


def _texts(plan: Plan) -> Iterator[str]:
    reading = plan.reading
    for place, source, item in plan.inputs:
        for unit in units_of([(place, item, source.fetch(item))], plan.unit_bytes, 0, reading):
            for batch in batches(unit, reading):
                yield from (text for text in batch.texts if _encodable(text))


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Feed:
    """Units as their files arrive. A file on the hub is fetched only when what is here will not give enough tokens."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.units: list[Unit] = []
        self.ended = False
        self.error: BaseException | None = None
        self.wanted = threading.Event()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            reading = self.plan.reading
            local: list[tuple[int, Input, Path]] = []
            for place, source, item in self.plan.inputs:
                if source.repo is None:
                    local.append((place, item, Path(item.path)))
                    continue
                self._add(units_of(local, self.plan.unit_bytes, len(self.units), reading))
                local = []
                self.wanted.wait()
                if self.stopped:
                    return
                here = source.fetch(item)
                self._add(units_of([(place, item, here)], self.plan.unit_bytes, len(self.units), reading))
            self._add(units_of(local, self.plan.unit_bytes, len(self.units), reading))
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True

    def _add(self, units: list[Unit]) -> None:
        self.units = [*self.units, *units]
        self.wanted.clear()

    def stop(self) -> None:
        self.stopped = True
        self.wanted.set()


def _make(
    plan: Plan, work: Path, tokenizer: Tokenizer, workers: int, size: Size, tell: Callable[[Event], None]
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
    feed = _Feed(plan)
    try:
        with Crew(workers, setup) as crew:
            goal = plan.options.tokens
            while True:
                parts, whole = _encode(plan, work, crew, feed, goal, size, tell)
                taken, total = take(parts, plan.options.tokens, plan.options.dedup)
                if goal is None or whole or total >= (plan.options.tokens or 0):
                    break
                goal += int(1.05 * ((plan.options.tokens or 0) - total)) + 1  # duplicates took their share
            if not total:
                raise _nothing(plan, sum((Counter(p.head["skipped"]) for p in parts), Counter()))
            order = lay_out(taken, work, want_val=plan.val_fraction > 0)
            entries = _shards(plan, work, crew, order, tell)
    finally:
        feed.stop()
    splits = {}
    for name in ("train", "val"):
        if order["splits"][name]["tokens"]:
            totals = {key: value for key, value in order["splits"][name].items() if key != "buckets"}
            splits[name] = {**totals, "shards": entries[name]}
    if "train" not in splits:
        raise UserError(
            "no document is left to train on: all fell to validation", hint="choose a smaller --val-fraction"
        )
    skipped = sum((Counter(item.part.head["skipped"]) for item in taken), Counter())
    duplicates = sum(len(item.dropped) for item in taken if item.dropped is not None)
    return splits, {**dict(sorted(skipped.items())), **({"duplicate": duplicates} if duplicates else {})}


def _encode(
    plan: Plan, work: Path, crew: Crew, feed: _Feed, goal: int | None, size: Size, tell: Callable[[Event], None]
) -> tuple[list[Part], bool]:
    """Encode units in order until their beginning holds `goal` tokens; its parts, and whether that is all there is."""
    done: dict[int, list[Part]] = {}
    given: set[int] = set()
    state = {"prefix": 0, "tokens": 0, "bytes": 0}
    limit = None if plan.options.dedup else plan.options.tokens

    def take_in(index: int) -> None:
        done[index] = parts = _parts_of(work, index)
        state["bytes"] += sum(int(part.head["text_bytes"]) for part in parts)
        while state["prefix"] in done:
            state["tokens"] += sum(int(part.head["tokens"]) for part in done[state["prefix"]])
            state["prefix"] += 1
        so_far = sum(int(part.head["tokens"]) for parts in done.values() for part in parts) if len(done) < 64 else 0
        report(so_far)

    def report(so_far: int = 0) -> None:
        tell(Event("tokenising", state["bytes"], max(size.text_bytes, state["bytes"]), so_far or state["tokens"]))

    def enough() -> bool:
        return goal is not None and state["tokens"] >= goal

    def next_job() -> dict[str, Any] | None:
        if feed.error is not None:
            raise feed.error
        while True:
            waiting = [unit for unit in feed.units[len(given) :]] if len(given) < len(feed.units) else []
            if enough() or (feed.ended and not waiting and len(given) == len(feed.units)):
                return None
            if not waiting:
                _ask(feed, done, state, goal)
                raise NotYet
            unit = waiting[0]
            given.add(unit.index)
            if _whole(work, unit.index):
                take_in(unit.index)
                continue
            return {"op": "encode", "unit": unit.to_json(), "limit": limit}

    for answer in crew.run(next_job, idle=report):
        take_in(int(answer["done"]))
        _ask(feed, done, state, goal)
    parts = [part for index in range(state["prefix"]) for part in done[index]]
    return parts, feed.ended and state["prefix"] == len(feed.units)


def _ask(feed: _Feed, done: dict[int, list[Part]], state: dict[str, int], goal: int | None) -> None:
    """Let the next file come when those here, by what their text has given so far, will not do."""
    if goal is None:
        feed.wanted.set()
        return
    units = feed.units
    text = sum(unit.size for unit in units if unit.index not in done)
    seen_bytes = state["bytes"] or 1
    seen_tokens = sum(int(part.head["tokens"]) for parts in done.values() for part in parts)
    per_byte = seen_tokens / seen_bytes if state["bytes"] else 1 / 5
    if seen_tokens + text * per_byte < goal:
        feed.wanted.set()


def _parts_of(work: Path, unit: int) -> list[Part]:
    parts = []
    while (path := part_path(work, unit, len(parts))).exists():
        parts.append(open_part(path))
    return parts


def _whole(work: Path, unit: int) -> bool:
    if not part_path(work, unit, 0).exists():
        return False
    return bool(_parts_of(work, unit)[-1].head["last"])


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
        tell(Event("shuffling", sum(entry["tokens"] for entry in entries.values()), everything, everything))
    return {split: [entries[job["file"]] for job in jobs if job["split"] == split] for split in ("train", "val")}


def _nothing(plan: Plan, skipped: Counter[str] | None = None) -> UserError:
    reasons = ", ".join(f"{count:,} {why}" for why, count in sorted((skipped or Counter()).items()))
    what = ", ".join(source.uri for source in plan.sources)
    return UserError(
        f"{what}: no document to take" + (f" (left out: {reasons})" if reasons else ""),
        hint="the files are empty or filtered away",
    )


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
            {"uri": s.uri, "revision": s.revision, "licence": s.licence, "files": _stamp(s)} for s in plan.sources
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
        order="as given" if plan.sources[0].pretokenized else "running text" if plan.running else "shuffled",
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
