"""What was asked of `onecard data`, resolved: options, files, split; saved, so that going on is exact.

>>> Options(tokens=100_000_000, tokenizer="bpe:8192").checked().tokens
100000000
"""

import datetime
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard.data.read.manifest import write_aside
from onecard.data.sources.documents import Reading
from onecard.data.sources.resolve import Input, Source, resolve_source, running_text
from onecard.errors import UserError

SHARD_TOKENS = 100_000_000  # llm.c's
_UNIT_BYTES = (4 * 1024**2, 96 * 1024**2)  # least and most text in a unit


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
                f"unknown tokeniser {self.tokenizer!r}",
                hint="gpt2, bytes, chars, or bpe:8192 to train one",
            )
        if kind == "bpe" and not (size.isdecimal() and 257 < int(size) <= 65536):
            raise UserError(
                f"a BPE vocabulary of {size!r} cannot be made",
                hint="between 258 and 65536, as in bpe:8192",
            )
        if self.val_fraction is not None and not 0 <= self.val_fraction < 1:
            raise UserError(
                f"a validation fraction of {self.val_fraction} cannot be",
                hint="0.005 is half a per cent",
            )
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
        files = [
            (source.uri, source.revision, [(i.path, i.size) for i in source.inputs])
            for source in self.sources
        ]
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


def _build_time() -> datetime.datetime:
    """Now, or SOURCE_DATE_EPOCH's time where somebody builds the same set again."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return datetime.datetime.now(datetime.UTC)
    try:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"SOURCE_DATE_EPOCH = {epoch!r} is no time", hint="it is seconds since 1970, or unset"
        ) from None


def planned(words: list[str], options: Options, request: str, work: Path, fresh: bool) -> Plan:
    """The saved plan of the same request, or a new one."""
    saved = work / "plan.json"
    if saved.exists() and not fresh:
        plan = Plan.from_json(json.loads(saved.read_text(encoding="utf-8")))
        if plan.request != request:
            raise UserError(
                f"{work.parent} was begun with other arguments",
                hint="give the same ones to go on, --fresh to begin anew, or another --out",
            )
        unchanged(plan, " since this was begun", "--fresh begins anew")
        return plan
    for entry in work.iterdir():
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    sources = [resolve_source(word, options.tokens) for word in words]
    if len({source.pretokenized for source in sources}) > 1:
        raise UserError(
            "text and ready tokens cannot be mixed in one data set", hint="prepare them apart"
        )
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
    now = _build_time()
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


def unchanged(
    plan: Plan, when: str = " while it was read", hint: str = "--fresh begins anew"
) -> None:
    for _, source, item in plan.inputs:
        if source.repo is None:
            try:
                stat = os.stat(item.path)
            except OSError as error:
                raise UserError(
                    f"{item.path} has gone{when}: {error.strerror}", hint=hint
                ) from None
            if (stat.st_size, stat.st_mtime_ns) != (item.size, item.modified):
                raise UserError(f"{item.path} has changed{when}", hint=hint)


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


def stamp(source: Source) -> str:
    """Names and sizes of a source's files in one digest."""
    listing = [(Path(item.path).name, item.size) for item in source.inputs]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
