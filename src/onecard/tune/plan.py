"""A tuning run before it starts: what is read, what is learned from, how long it takes, what to expect of it.

>>> planned = plan_tuning(Request("gpt2", ["chats.jsonl"], out="gpt2-chat"))      # doctest: +SKIP
>>> planned.prepared.train, planned.distinct                                      # doctest: +SKIP
(1000, 14)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onecard.config import RunConfig
from onecard.data.shares import parse_percent, parse_shares
from onecard.errors import UserError
from onecard.messages import Note
from onecard.tune.base import Base, base_text, open_base
from onecard.tune.defaults import KEEP_BASE, Choice, choices, config_of
from onecard.tune.gather import Gathered, gather
from onecard.tune.prepare import Mixing, Prepared, Window, prepare_windows, write_windows

FOLDER = "conversations"  # in the run's folder: what it trains on
_TINY, _LARGE = 80e6, 700e6  # parameters
_FEW_DISTINCT = 0.5


@dataclass(frozen=True)
class Request:
    """What was asked for; None leaves the choice to the defaults."""

    base: str
    files: list[str]  # paths, or all of them with shares: a.jsonl=60%
    out: str | None = None
    epochs: float | None = None
    keep_base: str | None = None  # "10%"
    base_data: str | None = None
    repeat: bool = False
    dataset: str | None = None  # whose tokeniser, if the base's is gone
    given: dict[str, Any] = field(default_factory=dict)  # config keys


@dataclass(frozen=True)
class TuningPlan:
    base: Base
    files: tuple[str, ...]
    config: RunConfig
    gathered: Gathered
    prepared: Prepared
    choices: tuple[Choice, ...]
    keep_base: float
    expectation: Note
    notes: tuple[Note, ...]
    splits: dict[str, list[Window]]

    @property
    def conversations(self) -> int:
        return len(self.gathered.items)

    @property
    def distinct(self) -> int:
        return self.gathered.distinct

    @property
    def epochs(self) -> float:
        c = self.config
        return c.max_iters * c.sequences_per_step / self.prepared.windows

    def to_json(self) -> dict[str, Any]:
        p = self.prepared
        return {
            "base": self.base.source,
            "parameters": self.base.parameters,
            "conversations": self.conversations,
            "distinct": self.distinct,
            "train": p.train,
            "held_out": p.held_out,
            "tokens": p.tokens,
            "learned_tokens": p.learned,
            "windows": p.windows,
            "base_windows": p.base_windows,
            "epochs": self.epochs,
            "files": [
                {"file": name, "share": share, "passes": passes}
                for name, share, passes in zip(self.files, p.shares, p.epochs, strict=True)
            ],
            "skipped": [skips.to_json() for skips in self.gathered.skipped],
            "shortened": self.gathered.shortened,
            "settings": {
                c.key: {"value": getattr(self.config, c.key, c.value), "why": str(c.why)}
                for c in self.choices
            },
            "expectation": str(self.expectation),
            "notes": [str(note) for note in self.notes],
            "config": self.config.changed(),
        }


def plan_tuning(
    request: Request,
    report: Callable[[str], None] = lambda text: None,
    progress: Callable[[float, float], None] = lambda read_bytes, whole_bytes: None,
) -> TuningPlan:
    """Read everything and choose the settings; nothing is written."""
    words, shares = _files(request.files)
    keep = None if request.keep_base is None else _keep_share(request.keep_base)
    if request.epochs is not None and not 0 < request.epochs <= 1000:
        raise UserError(
            f"the option `epochs` cannot be {request.epochs:g}",
            hint="for example the option `epochs=3`",
        )
    base = open_base(request.base, request.dataset, report)
    out = request.out or _default_out(Path(request.base))
    text = base_text(base, request.base_data, report)
    gathered = gather(
        [Path(w) for w in words], base.chat_tokenizer, base.config.block_size, progress
    )
    if keep and text is None:
        raise UserError(
            "the option `keep_base` needs the text that the base was trained on",
            hint="the option `base_data` names a prepared folder, or leave the option `keep_base` out",
        )
    keep = (KEEP_BASE if text else 0.0) if keep is None else keep
    mixing = Mixing(shares, request.repeat, keep, int(request.given.get("seed", 1337)))
    prepared, splits = prepare_windows(
        gathered, words, base.chat_tokenizer, base.config.block_size, mixing, text
    )
    chosen = choices(base, prepared, gathered.distinct, request.epochs, request.given)
    config = config_of(base, chosen, request.given, str(Path(out) / FOLDER), out)
    return TuningPlan(
        base=base,
        files=tuple(words),
        config=config,
        gathered=gathered,
        prepared=prepared,
        choices=tuple(chosen),
        keep_base=keep,
        expectation=_expectation(base.parameters),
        notes=tuple(_notes(gathered, prepared, keep, text is not None)),
        splits=splits,
    )


def write_data(planned: TuningPlan) -> None:
    """What the run reads, into its folder."""
    base = planned.base
    filters = {
        "learn_from": "answers",
        "block_size": base.config.block_size,
        "base": base.source,
        "new_ids_from": base.new_ids_from,
        "keep_base": planned.keep_base,
        "conversations": planned.conversations,
        "distinct": planned.distinct,
        "learned_tokens": planned.prepared.learned,
    }
    write_windows(
        Path(planned.config.dataset),
        planned.splits,
        base.chat_tokenizer,
        planned.gathered,
        [Path(name) for name in planned.files],
        filters,
        planned.config.seed,
    )


def _default_out(base: Path) -> str:
    """The base's name with -chat, in the folder that one is in."""
    named = base.parent if base.suffix == ".pt" and base.parent.name else base
    return f"{named.resolve().name if named.name in ('', '.', '..') else named.name}-chat"


def _files(words: list[str]) -> tuple[list[str], tuple[float, ...] | None]:
    if not words:
        raise UserError(
            "no file of conversations was named", hint="onecard tune RUN conversations.jsonl"
        )
    shared = parse_shares(words)
    if shared is None:
        return words, None
    return [item.word for item in shared], tuple(item.share for item in shared)


def _keep_share(text: str) -> float:
    if text.strip() in ("0", "0%"):
        return 0.0
    share = parse_percent(text, "the option `keep_base`")
    if share > 0.9:
        raise UserError(
            "the option `keep_base` above 90% leaves nothing to tune on", hint="10% is usual"
        )
    return share


def _expectation(parameters: int) -> Note:
    if parameters < _TINY:
        return Note("tune-expect-tiny", params=parameters)
    if parameters < _LARGE:
        return Note("tune-expect-small", params=parameters)
    return Note("tune-expect-large", params=parameters)


def _notes(gathered: Gathered, prepared: Prepared, keep: float, base_text: bool) -> list[Note]:
    notes = []
    distinct, count = gathered.distinct, len(gathered.items)
    if distinct < _FEW_DISTINCT * count:
        notes.append(Note("tune-few-distinct", distinct=distinct, conversations=count))
    if prepared.held_out_again:
        notes.append(Note("tune-held-out-again"))
    notes += [skips.note for skips in gathered.skipped]
    if gathered.shortened:
        notes.append(Note("tune-shortened", count=gathered.shortened))
    if keep:
        notes.append(Note("tune-keep-base", share=keep))
    elif not base_text:
        notes.append(Note("tune-no-base-text"))
    return notes
