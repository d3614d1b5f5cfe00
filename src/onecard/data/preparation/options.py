"""What was asked of `onecard data`, apart from the sources; all of it shows in the result.

>>> Options(tokens=100_000_000, tokenizer="bpe:8192").checked().tokens
100000000
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from onecard.data.preparation.mix_file import SourceOptions
from onecard.data.shares import TooSmall
from onecard.data.sources.unit import Reading
from onecard.errors import UserError
from onecard.facts.datasets import known_dataset

SHARD_TOKENS = 100_000_000  # llm.c's


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
    dedup: bool | Literal["near"] = False
    shard_tokens: int = SHARD_TOKENS
    name: str | None = None
    template: str | None = None
    where: tuple[str, ...] = ()
    separator: str | None = None
    mix: tuple[SourceOptions, ...] = ()  # one for each source, where they have shares
    repeat: bool = False  # a source of a mix that is too small is repeated
    largest: bool = False  # or limits the size of the mix

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
        if self.repeat and self.largest:
            raise UserError(
                "a mix either repeats a source or is the largest without repetition",
                hint="choose one of the options `repeat` and `largest`",
            )
        for place in range(max(len(self.mix), 1)):  # a wrong template or condition shows now
            reading = self.reading(place)
            _ = reading.filled, reading.conditions
            if reading.separator == "":
                raise UserError("an empty separator separates nothing", hint="leave it out")
        if self.name is not None and not re.fullmatch(r"\w[\w.-]{0,99}", self.name):
            raise UserError(
                f"{self.name!r} cannot be a data set's name",
                hint="letters, digits, dots, dashes and underscores, as in fineweb-edu",
            )
        return self

    @property
    def too_small(self) -> TooSmall:
        """What to do where a source of a mix has too little."""
        return "repeat" if self.repeat else "largest" if self.largest else None

    def resolved(self, words: list[str]) -> "Options":
        """With the tokeniser that a known set is prepared with, where none was chosen."""
        known = known_dataset(words[0].partition("=")[0])
        return replace(self, tokenizer=self.tokenizer or (known.tokenizer if known else "gpt2"))

    def reading(self, source: int = 0) -> Reading:
        """Which documents of a source are wanted: its own entry in the mix first, then what holds for all."""
        own = self.mix[source] if self.mix else SourceOptions("", 1.0)
        return Reading(
            own.column or self.column,
            self.min_chars if own.min_chars is None else own.min_chars,
            own.language or self.language,
            self.min_language_score if own.min_language_score is None else own.min_language_score,
            template=own.template or self.template,
            where=own.where or self.where,
            separator=own.separator or self.separator,
        )

    def digest_of(self, words: list[str], policy: bool = True) -> str:
        """Of everything that shows in the result; without `policy`, of everything that shows in the parts."""
        # keys that came later count only where they are used: older sets stay the same request
        late = ("template", "where", "separator", "mix", "repeat", "largest")
        values = asdict(self)
        for key in late:
            if not values[key] or (not policy and key in ("repeat", "largest")):
                del values[key]
        return hashlib.sha256(json.dumps([words, values]).encode()).hexdigest()

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Options":
        mix = tuple(
            SourceOptions(**{**entry, "where": tuple(entry["where"])}) for entry in raw["mix"]
        )
        return Options(**{**raw, "mix": mix, "where": tuple(raw["where"])})
