"""What makes a run the run it is: its config, its data by content, its tokeniser. A resume is compared with the record.

What changes only output, speed or the machine may change. What would make it another run is refused, unless it is named
(`--change learning_rate`); it is then recorded in the log and in a new checkpoint. What the weights or the optimizer's
state depend on cannot change at all.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onecard.config import KEYS, RunConfig
from onecard.data import Dataset, Split
from onecard.errors import UserError, nearest

_PIECES = 1024  # of a split that are hashed: 4 MiB at most, evenly spread
_PIECE_TOKENS = 2048

_BATCH = ("batch_size", "gradient_accumulation_steps")
# with another value the saved optimizer state would not fit
_OPTIMIZER = "optimizer", "optimizer_state", "weights", "offload_optimizer", "update_in_backward"
_BEGINNING = ("init_from",)  # where the weights came from; on resume they come from the checkpoint
DATA, TOKENIZER = "dataset", "tokenizer"


@dataclass(frozen=True)
class Change:
    """One thing that differs from the record."""

    key: str
    before: Any
    after: Any
    named: bool  # it makes another run, and was asked for by name

    def __str__(self) -> str:
        return f"{self.key}: {self.before} → {self.after}"


def identity_of(data: Dataset) -> dict[str, Any]:
    """What a checkpoint records of the data: the tokens and a digest of each split, and the tokeniser's digest."""
    return {
        "splits": {
            name: {"tokens": data.splits[name].tokens, "sha256": _content(data.splits[name])}
            for name in sorted(data.splits)
        },
        "tokenizer": _tokenizer(data),
    }


def _content(split: Split) -> str:
    """A digest of evenly spread pieces (all of a small split); reading them checks their ids too.

    It depends on the stream of tokens alone, not on how it is cut into files or where they lie.
    """
    digest = hashlib.sha256()
    last = max(0, split.tokens - _PIECE_TOKENS)
    pieces = min(_PIECES, -(-split.tokens // _PIECE_TOKENS))
    for start in np.linspace(0, last, pieces, dtype=np.int64).tolist():
        digest.update(split.read(start, min(_PIECE_TOKENS, split.tokens)).tobytes())
    return digest.hexdigest()


def _tokenizer(data: Dataset) -> str | None:
    described = data.layout.tokenizer
    if described is None:
        return None
    file = described.get("file")
    plain = {key: value for key, value in described.items() if key != "file"}
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode())
    if file:
        try:
            digest.update((data.path / str(file)).read_bytes())
        except OSError as error:
            raise UserError(
                f"the tokeniser {data.path / str(file)} cannot be read: {error.strerror}",
                hint="prepare the data again",
            ) from None
    return digest.hexdigest()


def check_names(names: Collection[str]) -> None:
    """A change is named by its config key, or `tokenizer`."""
    known = (*KEYS, TOKENIZER)
    for name in names:
        if name not in known:
            raise UserError(
                f"the option `change={name}`: there is no such config key",
                hint=nearest(name, known) or "for example the option `change=learning_rate`",
            )


def changes_since(
    state: Mapping[str, Any],
    config: RunConfig,
    identity: Mapping[str, Any],
    allowed: Collection[str],
) -> list[Change]:
    """What differs from a checkpoint's record; UserError where it would be another run and was not named."""
    before = RunConfig.from_values(state["config"])
    changes = [
        Change(key, getattr(before, key), getattr(config, key), _another_run(key, before, config))
        for key in KEYS
        if getattr(before, key) != getattr(config, key) and key not in (DATA, *_BEGINNING)
    ]
    changes += _changed_data(state.get("identity"), identity, before, config)
    for change in changes:
        affects = RunConfig.facts(change.key).affects if change.key in KEYS else frozenset()
        if "shape" in affects or change.key in _OPTIMIZER:
            raise UserError(
                f"the run was started with {change.key} = {change.before!r}; it cannot continue with {change.after!r}",
                hint=f"leave {change.key} out, or start a new run from its weights with init_from={config.out_dir!r}",
            )
    refused = [change for change in changes if change.named and change.key not in allowed]
    if refused:
        listed = ", ".join(map(str, refused))
        names = ",".join(change.key for change in refused)
        raise UserError(
            f"this would make the run in {config.out_dir} another one ({listed})",
            hint=f"leave it as it was, or continue with the change by the option `change={names}`",
        )
    return changes


def _another_run(key: str, before: RunConfig, now: RunConfig) -> bool:
    if key in _BATCH and before.sequences_per_step == now.sequences_per_step:
        return False  # the same rows in other micro-batches
    if key == "decay_fraction" and "wsd" not in (before.schedule, now.schedule):
        return False  # no other schedule reads it
    return not RunConfig.facts(key).may_change_on_resume


def _changed_data(
    recorded: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    before: RunConfig,
    config: RunConfig,
) -> list[Change]:
    """The data by content: another folder with the same tokens is no other run."""
    moved = before.dataset != config.dataset
    if recorded is None:  # a checkpoint of an older version
        return [Change(DATA, before.dataset, config.dataset, named=True)] if moved else []
    changes = []
    if recorded.get("splits") != now["splits"]:
        after = config.dataset if moved else "other content"
        changes.append(Change(DATA, before.dataset, after, named=True))
    elif moved:
        changes.append(Change(DATA, before.dataset, config.dataset, named=False))
    if recorded.get("tokenizer") != now["tokenizer"]:
        changes.append(Change(TOKENIZER, "as recorded", "another", named=True))
    return changes
