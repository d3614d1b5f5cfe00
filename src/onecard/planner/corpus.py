"""What a run reads: a named data set, a prepared folder, or just a number of tokens.

>>> corpus_of("fineweb-edu-10B").family
'fineweb-edu'
>>> corpus_of("3.68B").tokens
3680000000
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import UserError
from onecard.facts.datasets import DatasetFacts, find_dataset, known_dataset
from onecard.messages import Note
from onecard.units import parse_count, show_count

if TYPE_CHECKING:
    from onecard.data import Summary

# what is meant as a count
_TOKENS = re.compile(r"[\d.][\d.,_]*(e\d+)? ?[a-z]{0,3}( ?tok(en)?s?)?", re.IGNORECASE)
_PREPARED = ("manifest.json", "train.bin")
_MOST_OF_IT = 0.5  # a folder with more of a named set is taken for the set


@dataclass(frozen=True)
class Corpus:
    """The text that a run reads, as far as the planner must know it."""

    name: str | None
    tokens: int | None  # to train on, each counted once
    family: str | None  # the text it is drawn from, as the public losses name it
    vocab_size: int | None = None
    # of a mix: name, share of the tokens and distinct tokens of each source
    sources: tuple[tuple[str, float, int], ...] = ()
    whole_tokens: int | None = None  # of the named set that a prepared folder holds a part of

    @property
    def notes(self) -> list[Note]:
        """A folder prepared for a first try is what a run would read, so it is planned with; that is worth a word."""
        if (
            not self.tokens
            or not self.whole_tokens
            or self.tokens > _MOST_OF_IT * self.whole_tokens
        ):
            return []
        return [
            Note(
                "data-part",
                name=self.name,
                tokens=show_count(self.tokens),
                family=self.family,
                whole=show_count(self.whole_tokens),
            )
        ]


def corpus_of(data: str | int, asked: bool = True, like: str = "") -> Corpus:
    """Resolve --data, or a config's `dataset` (asked=False: an unknown name there is only unknown, not a mistake).

    A bare number of tokens is so many of the set it is `like`; of FineWeb where that is unknown too.
    """
    if isinstance(data, int):
        if data < 1:
            raise UserError(
                f"{data} tokens is no data set", hint="write it like the option `data=3.7B`"
            )
        known = known_dataset(like)
        return Corpus(None, data, _family(known) if known else "fineweb")
    if asked and not data.strip():
        raise UserError(
            "the option `data` is empty",
            hint="name a data set or a folder, or write tokens like 3.7B",
        )
    if _TOKENS.fullmatch(data.strip()) and not Path(data).is_dir():
        return corpus_of(parse_count(data), like=like)
    folder = prepared_folder(data)
    if folder is not None:
        summary = _summary(folder)
        known = known_dataset(folder.name)
        mix = _mix(folder)
        return Corpus(
            folder.name,
            sum(unique for _, _, unique in mix) or summary.tokens_train,
            _family(known) if known else None,
            summary.vocab_size,
            mix,
            known.tokens if known else None,
        )
    facts = find_dataset(data) if asked and not Path(data).exists() else known_dataset(data)
    if facts is None and asked:  # it exists, but is not a prepared folder: the reader explains
        summary = _summary(data)
        return Corpus(Path(data).name, summary.tokens_train, None, summary.vocab_size)
    if facts is None:
        return Corpus(data, None, None)
    return Corpus(facts.name, facts.tokens, _family(facts), facts.vocab_size)


def prepared_folder(data: str) -> Path | None:
    """The folder of tokens that a name means, in data/ or as a path; None if there is none."""
    for folder in (Path("data") / data, Path(data)):
        if any((folder / name).is_file() for name in _PREPARED):
            return folder
    return None


def _summary(folder: str | Path) -> "Summary":
    from onecard.data import summary  # only a folder needs the reader of shards

    return summary(folder)


def _mix(folder: Path) -> tuple[tuple[str, float, int], ...]:
    """The sources of a mix by its manifest; none where it is of one source."""
    if not (folder / "manifest.json").is_file():
        return ()
    from onecard.data import read_manifest

    shares = []
    for source in read_manifest(folder).sources:
        tokens = source.get("splits", {}).get("train", {}).get("tokens")
        if tokens is None or source.get("share") is None:
            return ()
        times = max(float(source.get("epochs") or 1), 1.0)
        name = str(source.get("name") or source["uri"])
        shares.append((name, float(source["share"]), round(tokens / times)))
    return tuple(shares)


def _family(facts: DatasetFacts) -> str:
    """fineweb-edu:sample-10BT is fineweb-edu; pre-tokenised shards of a set are that set."""
    name = facts.name.lower()
    if "finewebedu" in name or "fineweb-edu" in name:
        return "fineweb-edu"
    return "fineweb" if "fineweb" in name else name.partition(":")[0]
