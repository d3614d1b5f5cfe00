"""Data sets people name: how many tokens, how much to download, whose licence, from datasets.toml with source.

>>> find_dataset("owt").tokens
9035582198
>>> find_dataset("fineweb-edu-10B").name
'fineweb-edu:sample-10BT'
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from onecard.errors import UserError, nearest
from onecard.facts.data_files import fact_file


@dataclass(frozen=True)
class DatasetFacts:
    """One named set. Tokens are GPT-2's and train-split where the set has a validation split of its own."""

    name: str
    tokens: int
    exact: bool
    bytes_per_token: float
    download_bytes: int
    licence: str
    source: str
    aliases: tuple[str, ...] = ()
    repo: str | None = None  # on the hub
    paths: tuple[str, ...] = ()
    pretokenized: bool = False
    rows: int | None = None
    val_tokens: int | None = None
    vocab_size: int = 50257
    # what its tokens are counted in, and what it is prepared with by default
    tokenizer: str = "gpt2"
    column: str = "text"  # that holds the text, or the ids
    columns: tuple[str, ...] = ()
    date: str = ""  # when the entry was last looked at
    url: str | None = None  # of a single text file that is not on the hub
    sha256: str | None = None


@cache
def all_datasets() -> tuple[DatasetFacts, ...]:
    """Every named set, in the file's order."""
    entries: list[dict[str, Any]] = tomllib.loads(fact_file("datasets.toml"))["dataset"]
    return tuple(
        DatasetFacts(
            **{
                **entry,
                "aliases": tuple(entry["aliases"]),
                **{key: tuple(entry.get(key, ())) for key in ("paths", "columns")},
            }
        )
        for entry in entries
    )


def known_dataset(name: str) -> DatasetFacts | None:
    """The set of that name or alias, in any case; a family (`fineweb-edu`) is its smallest sample. None if unknown."""
    wanted = name.strip().lower()
    for entry in all_datasets():
        if wanted in (entry.name.lower(), *(alias.lower() for alias in entry.aliases)):
            return entry
    members = family(name)
    return members[0] if members else None


def find_dataset(name: str) -> DatasetFacts:
    """Like `known_dataset`, but an unknown name is a user's mistake with the nearest names."""
    dataset = known_dataset(name)
    if dataset is None:
        names = {key for entry in all_datasets() for key in (entry.name, *entry.aliases)}
        known = family_names()
        hint = nearest(name, names.union(known)) or f"known: {', '.join(known)}"
        raise UserError(f"unknown data set {name!r}", hint=hint)
    return dataset


def family_names() -> list[str]:
    """The sets by name, without their samples."""
    return sorted({entry.name.partition(":")[0] for entry in all_datasets()})


def family(name: str) -> list[DatasetFacts]:
    """The samples of a family, smallest first: "fineweb-edu" has 10BT, 100BT and 350BT."""
    prefix = f"{name.strip().lower()}:"
    return sorted(
        (e for e in all_datasets() if e.name.lower().startswith(prefix)), key=lambda e: e.tokens
    )
