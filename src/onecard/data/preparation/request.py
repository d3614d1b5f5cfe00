"""What was asked of `onecard data`, resolved: options, files, split; saved, so that a restart is exact.

>>> Options(tokens=100_000_000, tokenizer="bpe:8192").checked().tokens
100000000
"""

import datetime
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onecard.data.preparation.work_folder import REPLACED, WorkFolder
from onecard.data.sources.documents import expected_text_bytes
from onecard.data.sources.local_files import file_name, running_text
from onecard.data.sources.resolve import resolve_source, text_of_named
from onecard.data.sources.source import Input, Source
from onecard.data.sources.unit import Reading
from onecard.errors import UserError
from onecard.facts.datasets import known_dataset
from onecard.files import write_bytes
from onecard.untrusted import read_json

SHARD_TOKENS = 100_000_000  # llm.c's
PLAN = "plan.json"
_UNIT_BYTES = (4 * 1024**2, 96 * 1024**2)  # least and most text in a unit


@dataclass(frozen=True)
class Options:
    """What was asked, apart from the sources; all of it shows in the result."""

    tokens: int | None = None
    # None: 10 % of a small set or a running text, 1 % of a middling one, 0.5 % of a large one
    val_fraction: float | None = None
    seed: int = 1337
    tokenizer: str | None = None  # None: what the named set is known with, else gpt2
    column: str = "text"
    min_chars: int = 0
    language: str | None = None
    min_language_score: float | None = None
    dedup: bool = False
    shard_tokens: int = SHARD_TOKENS
    name: str | None = None

    def checked(self) -> "Options":
        kind, _, size = (self.tokenizer or "gpt2").partition(":")
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
            raise UserError("at least 1 token must be taken", hint="write it like 3.7B or 100M")
        if not 1 <= self.shard_tokens < 2**31:
            raise UserError(
                f"a shard of {self.shard_tokens:,} tokens cannot be",
                hint="llm.c's header counts up to 2,147,483,647; 100M is usual",
            )
        if self.min_chars < 0:
            raise UserError("a minimum length below zero cannot be")
        if not 0 <= self.seed < 2**64:
            raise UserError(f"a seed of {self.seed} cannot be", hint="write it like 1337")
        if self.name is not None and not re.fullmatch(r"\w[\w.-]{0,99}", self.name):
            raise UserError(
                f"{self.name!r} cannot be a data set's name",
                hint="letters, digits, dots, dashes and underscores, as in fineweb-edu",
            )
        return self

    def resolved(self, words: list[str]) -> "Options":
        """With the tokeniser that a known set is prepared with, where none was chosen."""
        known = known_dataset(words[0].partition("=")[0])
        return replace(self, tokenizer=self.tokenizer or (known.tokenizer if known else "gpt2"))


@dataclass(frozen=True)
class Plan:
    """A request resolved: its files, its split, its units' size. Saved, so that a restart is exact."""

    request: str
    name: str
    sources: list[Source]
    options: Options
    val_fraction: float
    running: Input | None
    unit_bytes: int
    created: str

    @property
    def tokenizer(self) -> str:
        return self.options.tokenizer or "gpt2"

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
        return replace(reading_of(self.options), split_at=self.split_at)

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


def reading_of(options: Options) -> Reading:
    return Reading(options.column, options.min_chars, options.language, options.min_language_score)


def saved_plan(work: Path) -> Plan | None:
    """The plan of an unfinished run, if there is one."""
    if not (work / PLAN).exists():
        return None
    try:
        return Plan.from_json(read_json(work / PLAN))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{work / PLAN} is damaged ({error})", hint="start again with the option `fresh`"
        ) from None


def planned(
    words: list[str], options: Options, request: str, work: WorkFolder, fresh: bool
) -> Plan:
    """The saved plan of the same request, or a new one."""
    saved = None if fresh else saved_plan(work.path)
    if saved is not None and saved.request != request and _has_results(work.path):
        raise UserError(
            f"{work.out} was begun with other arguments",
            hint="give the same ones to continue it, start again with the option `fresh`, "
            "or choose another folder with the option `out`",
        )
    if saved is not None and saved.request == request:
        unchanged(saved, " since this was begun")
        return saved
    work.clear(keep=REPLACED)
    plan = _new_plan(words, options, request)
    write_bytes(work.path / PLAN, json.dumps(plan.to_json()).encode())
    return plan


def _has_results(work: Path) -> bool:
    return any(any((work / name).glob("*")) for name in ("parts", "shards", "fetched"))


def _new_plan(words: list[str], options: Options, request: str) -> Plan:
    created = _now()
    sources = sized_sources(words, options)
    if len({source.pretokenized for source in sources}) > 1:
        raise UserError(
            "text and ready tokens cannot be mixed in one data set", hint="prepare them apart"
        )
    running = running_text(sources)
    if running is not None and options.tokens is not None:
        raise UserError(
            "a single text file is taken whole, in order, without a number of tokens",
            hint="leave the option `tokens` out, or give a folder of texts",
        )
    text = sum(item.text_bytes for source in sources for item in source.inputs)
    fraction = options.val_fraction
    if fraction is None:
        wanted = min(text / 4.5, options.tokens or text)
        fraction = 0.1 if running is not None or wanted < 20e6 else 0.01 if wanted < 2e9 else 0.005
    least, most = _UNIT_BYTES
    return Plan(
        request,
        options.name or default_name(words),
        sources,
        options,
        fraction,
        running,
        int(min(max(text / 64, least), most)),
        created,
    )


def sized_sources(words: list[str], options: Options) -> list[Source]:
    """The sources with the text expected in each local file; a wrong column shows here, before any work."""
    reading = reading_of(options)
    sources = [resolve_source(word, options.tokens) for word in words]
    return [
        source
        if source.repo is not None
        else replace(
            source,
            inputs=tuple(
                replace(item, text_bytes=expected_text_bytes(item, reading))
                for item in source.inputs
            ),
        )
        for source in sources
    ]


def _now() -> str:
    """The time the work began, or SOURCE_DATE_EPOCH, for results that are the same byte by byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).isoformat(
            timespec="seconds"
        )
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"SOURCE_DATE_EPOCH is {epoch!r}, not a time in seconds", hint="unset it"
        ) from None


def unchanged(plan: Plan, when: str = " while it was read") -> None:
    """Every local file is as it was when the work was planned."""
    hint = "start again with the option `fresh`"
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
    word = words[0].removeprefix("hf:").split("@")[0]
    if text_of_named(words[0]) is not None:
        word = words[0].partition("=")[0]
    elif words[0].startswith("hf:") or (known_dataset(word) and not Path(word).exists()):
        word = word.split("/")[-1].replace(":", "-")
    else:
        word = Path(word).resolve().name
        word = word.split(".")[0] or word
    return file_name(word) + ("-and-more" if len(words) > 1 else "")
