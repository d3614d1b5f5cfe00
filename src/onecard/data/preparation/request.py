"""What was asked of `onecard data`, resolved: options, files, split; saved, so that a restart is exact."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onecard.data.preparation.options import Options
from onecard.data.preparation.work_folder import REPLACED, WorkFolder
from onecard.data.sources.documents import expected_text_bytes
from onecard.data.sources.local_files import file_name, running_text
from onecard.data.sources.resolve import resolve_source, text_of_named
from onecard.data.sources.source import Input, Source
from onecard.data.sources.unit import Reading
from onecard.errors import UserError
from onecard.facts.datasets import known_dataset
from onecard.files import write_bytes
from onecard.units import utc_now
from onecard.untrusted import read_json

PLAN = "plan.json"
# of a single text file in a mix: shares and validation need several documents
_MIX_PIECE_BYTES = 8 * 1024
_MOST_VALIDATION = 0.1  # of a source, however often it is repeated
_UNIT_BYTES = (4 * 1024**2, 96 * 1024**2)  # least and most text in a unit


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
    base: str = ""  # digest of the request, without what to do with a source that is too small
    fractions: tuple[float, ...] = ()  # of each source of a mix, for validation

    @property
    def tokenizer(self) -> str:
        return self.options.tokenizer or "gpt2"

    @property
    def numbered(self) -> list[tuple[int, int, Source, Input]]:
        """Every file: its place among all, its source's number, the source, the file."""
        files = [
            (number, source, self.running or item)
            for number, source in enumerate(self.sources)
            for item in source.inputs
        ]
        return [(place, *file) for place, file in enumerate(files)]

    @property
    def shares(self) -> list[float]:
        return [own.share for own in self.options.mix]

    @property
    def names(self) -> list[str]:
        """A short name for each source, all of them different."""
        names: list[str] = []
        for source in self.sources:
            count = sum(
                name.rpartition("-")[0] == source.name or name == source.name for name in names
            )
            names.append(f"{source.name}-{count + 1}" if count else source.name)
        return names

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
    def readings(self) -> list[Reading]:
        return [
            replace(reading_of(self.options, number, source), split_at=self.split_at)
            for number, source in enumerate(self.sources)
        ]

    def fraction(self, source: int) -> float:
        return self.fractions[source] if self.fractions else self.val_fraction

    def fingerprint(self) -> str:
        files = [
            (source.uri, source.revision, [(i.path, i.size) for i in source.inputs])
            for source in self.sources
        ]
        return hashlib.sha256(json.dumps([files, asdict(self.options)]).encode()).hexdigest()

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Plan":
        own = {
            "sources": [Source.from_json(s) for s in raw["sources"]],
            "options": Options.from_json(raw["options"]),
            "running": Input(**raw["running"]) if raw["running"] else None,
            "fractions": tuple(raw["fractions"]),
        }
        return Plan(**{**raw, **own})


def reading_of(options: Options, number: int, source: Source) -> Reading:
    reading = options.reading(number)
    if source.column and reading.column == "text":
        reading = replace(reading, column=source.column)  # what the named set is known with
    single = len(source.inputs) == 1 and source.inputs[0].kind == "text"
    if options.mix and single and source.repo is None:
        return replace(reading, piece_bytes=_MIX_PIECE_BYTES)
    return reading


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
    base = options.digest_of(words, policy=False)
    if saved is not None and saved.request != request and saved.base == base:
        # the parts are the same: only what is made of them is another
        saved = replace(saved, request=request, options=options)
        for name in ("order", "shards", "copies"):
            shutil.rmtree(work.path / name, ignore_errors=True)
        _save(saved, work)
    if saved is not None and saved.request != request and has_results(work.path):
        raise UserError(
            f"{work.out} was started with other arguments",
            hint="give the same ones to continue it, start again with the option `fresh`, "
            "or choose another folder with the option `out`",
        )
    if saved is not None and saved.request == request:
        unchanged(saved, " since this was started")
        return saved
    work.clear(keep=REPLACED)
    plan = _new_plan(words, options, request)
    _save(plan, work)
    return plan


def _save(plan: Plan, work: WorkFolder) -> None:
    write_bytes(work.path / PLAN, json.dumps(asdict(plan)).encode())


def has_results(work: Path, *more: str) -> bool:
    """Whether there is anything that another attempt can use; `more` are further folders to look into."""
    return any(any((work / name).glob("*")) for name in ("parts", "shards", "fetched", *more))


def _new_plan(words: list[str], options: Options, request: str) -> Plan:
    created = _now()
    sources = sized_sources(words, options)
    if len({source.pretokenized for source in sources}) > 1:
        raise UserError(
            "text and ready tokens cannot be mixed in one data set", hint="prepare them apart"
        )
    arrays = [i.path for source in sources for i in source.inputs if i.kind == "tokens"]
    if arrays and (options.tokenizer or "gpt2") != "gpt2":
        raise UserError(
            f"{arrays[0]} holds GPT-2's tokens, which {options.tokenizer} does not have",
            hint="leave the option `tokenizer` out",
        )
    running = None if options.mix else running_text(sources)
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
    fractions: list[float] = []
    for own, source in zip(options.mix, sources, strict=False):
        have = sum(item.text_bytes for item in source.inputs) / (source.bytes_per_token or 4.5)
        times = (options.tokens or 0) * own.share / max(have, 1)
        most_here = max(fraction, _MOST_VALIDATION)
        fractions.append(min(most_here, fraction * times) if times > 1 else fraction)
    return Plan(
        request,
        options.name or default_name(words),
        sources,
        options,
        fraction,
        running,
        int(min(max(text / 64, least), most)),
        created,
        options.digest_of(words, policy=False),
        tuple(fractions),
    )


def sized_sources(words: list[str], options: Options) -> list[Source]:
    """The sources with the text expected in each local file; a wrong column shows here, before any work."""
    sources = []
    for number, word in enumerate(words):
        own = options.mix[number] if options.mix else None
        tokens = round(options.tokens * own.share) if own and options.tokens else options.tokens
        source = resolve_source(word, tokens)
        if own is not None and own.licence:
            source = replace(source, licence=own.licence)
        if source.repo is None:
            reading = reading_of(options, number, source)
            inputs = [
                replace(item, text_bytes=expected_text_bytes(item, reading))
                for item in source.inputs
            ]
            source = replace(source, inputs=tuple(inputs))
        sources.append(source)
    return sources


def _now() -> str:
    """The time the work began, or SOURCE_DATE_EPOCH, for results that are the same byte by byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        return utc_now()
    try:
        return datetime.fromtimestamp(int(epoch), UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"SOURCE_DATE_EPOCH is {epoch!r}, not a time in seconds", hint="unset it"
        ) from None


def unchanged(plan: Plan, when: str = " while it was read") -> None:
    """Every local file is as it was when the work was planned."""
    hint = "start again with the option `fresh`"
    for _, _, source, item in plan.numbered:
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
