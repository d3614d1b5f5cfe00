"""Conversation files read and encoded: what is there, what is distinct, what was left out and why.

>>> found = gather([Path("chats.jsonl")], with_chat_tokens(gpt2()), room=1024)      # doctest: +SKIP
>>> len(found.items), found.distinct, found.skipped["not JSON"].lines               # doctest: +SKIP
(998, 14, (7, 31))
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.tokenizers.special import SpecialTokenizer
from onecard.errors import UserError
from onecard.tune.formats import Conversation, UnreadableError, read_conversations
from onecard.tune.template import encode_turns

_LINES_NAMED = 5


@dataclass(frozen=True)
class Item:
    """One conversation as it is trained on."""

    file: int
    ids: npt.NDArray[np.uint16]
    learnt: int  # tokens that the loss counts
    digest: bytes  # of its content: copies have the same


@dataclass(frozen=True)
class Skips:
    """Records of one file left out for one reason; the first lines are named."""

    file: str
    reason: str
    count: int
    lines: tuple[int, ...]

    def __str__(self) -> str:
        more = f" and {self.count - len(self.lines):,} more" if self.count > len(self.lines) else ""
        noun = "line" if self.count == 1 else "lines"
        return f"{self.file}: {self.reason}: {noun} {', '.join(map(str, self.lines))}{more}"

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "reason": self.reason,
            "count": self.count,
            "lines": list(self.lines),
        }


@dataclass(frozen=True)
class Gathered:
    items: list[Item]
    skipped: tuple[Skips, ...]
    shortened: int  # conversations whose last turns did not fit into the context

    @property
    def distinct(self) -> int:
        return len({item.digest for item in self.items})


def gather(
    files: Sequence[Path],
    tokenizer: SpecialTokenizer,
    room: int,
    progress: Callable[[int], None] = lambda conversations: None,
) -> Gathered:
    """All conversations of the files, each at most `room` tokens long."""
    items: list[Item] = []
    reasons: dict[tuple[int, str], list[int]] = {}
    shortened = 0
    for place, path in enumerate(files):
        before = len(items)
        for line, read in read_conversations(path):
            found = read if isinstance(read, UnreadableError) else _encoded(read, tokenizer, room)
            if isinstance(found, UnreadableError):
                reasons.setdefault((place, str(found)), []).append(line)
                continue
            ids, learnt, whole, digest = found
            shortened += not whole
            items.append(Item(place, ids, learnt, digest))
            if len(items) % 1000 == 0:
                progress(len(items))
        if len(items) == before:
            raise _nothing(path, {why: at for (file, why), at in reasons.items() if file == place})
    skipped = tuple(
        Skips(files[place].name, why, len(lines), tuple(lines[:_LINES_NAMED]))
        for (place, why), lines in reasons.items()
    )
    return Gathered(items, skipped, shortened)


def _nothing(path: Path, reasons: dict[str, list[int]]) -> UserError:
    hint = 'a line looks like {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
    if not reasons:
        return UserError(f"{path} holds no conversation", hint=hint)
    why, lines = max(reasons.items(), key=lambda entry: len(entry[1]))
    if why.startswith("longer than"):
        hint = "a model with a longer context, or shorter conversations"
    return UserError(
        f"{path} holds no conversation that can be learnt from; {len(lines):,} times {why}, first in line {lines[0]}",
        hint=hint,
    )


def _encoded(
    conversation: Conversation, tokenizer: SpecialTokenizer, room: int
) -> tuple[npt.NDArray[np.uint16], int, bool, bytes] | UnreadableError:
    """Its tokens, how many are learnt, whether all turns are there, its digest; turns that do not fit are left out."""
    assert tokenizer.eot is not None
    longest_token = int(tokenizer.byte_lengths.max())
    fitting = []
    for message in conversation:
        if len(message.content) > room * longest_token:
            break  # it cannot fit, and need not be encoded to see that
        fitting.append(message)
    try:
        turns = encode_turns(tokenizer, fitting) if fitting else []
    except UserError as error:  # a character that this vocabulary does not have
        return UnreadableError(error.message)
    used, length = 0, 1
    for place, turn in enumerate(turns):
        length += len(turn)
        if length > room:
            break
        if fitting[place].role == "assistant":
            used = place + 1
    if not used:
        return UnreadableError(f"longer than the context of {room:,} tokens")
    ids = [tokenizer.eot, *(i for turn in turns[:used] for i in turn)]
    learnt = sum(
        len(turn) - 1
        for turn, message in zip(turns[:used], fitting, strict=False)
        if message.role == "assistant"
    )
    array = np.array(ids, np.uint16)
    digest = hashlib.sha256(array.tobytes()).digest()
    return array, learnt, used == len(conversation), digest
