"""Conversation files read and encoded: what is there, what is distinct, what was left out and why.

>>> gathered = gather([Path("chats.jsonl")], with_chat_tokens(gpt2()), room=1024)      # doctest: +SKIP
>>> len(gathered.items), gathered.distinct, gathered.skipped[0].lines               # doctest: +SKIP
(998, 14, (7, 31))
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.sources.local_files import expansion
from onecard.data.tokenizers.special import SpecialTokenizer
from onecard.errors import UserError
from onecard.messages import Note
from onecard.tune.formats import Conversation, UnreadableError, read_conversations
from onecard.tune.template import encode_turns

_LINES_NAMED = 5


@dataclass(frozen=True)
class Item:
    """One conversation as it is trained on."""

    file: int
    ids: npt.NDArray[np.uint16]
    learned: int  # tokens that the loss counts
    digest: bytes  # of its content: copies have the same


@dataclass(frozen=True)
class Skips:
    """Records of one file left out for one reason; the first lines are named."""

    file: str
    reason: Note
    count: int
    lines: tuple[int, ...]

    @property
    def note(self) -> Note:
        more = self.count - len(self.lines)
        lines = ", ".join(map(str, self.lines))
        values = {"count": self.count, "file": self.file, "reason": self.reason, "lines": lines}
        return (
            Note("tune-skipped-more", **values, more=more)
            if more
            else Note("tune-skipped", **values)
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "reason": str(self.reason),
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
    progress: Callable[[float, float], None] = lambda read_bytes, whole_bytes: None,
) -> Gathered:
    """All conversations of the files, each at most `room` tokens long; `progress` gets bytes read of all there are."""
    items: list[Item] = []
    reasons: dict[tuple[int, Note], list[int]] = {}
    shortened = 0
    sizes = [
        path.stat().st_size * expansion(path, "jsonl") if path.is_file() else 0 for path in files
    ]
    all_bytes = sum(sizes)
    for place, path in enumerate(files):
        before, start = len(items), sum(sizes[:place])

        def reached(at: int, start: float = start) -> None:
            progress(start + at, all_bytes)

        for line, read in read_conversations(path, reached):
            conversation = (
                read if isinstance(read, UnreadableError) else _encoded(read, tokenizer, room)
            )
            if isinstance(conversation, UnreadableError):
                reasons.setdefault((place, conversation.reason), []).append(line)
                continue
            ids, learned, whole, digest = conversation
            shortened += not whole
            items.append(Item(place, ids, learned, digest))
        if len(items) == before:
            raise _nothing(path, {why: at for (file, why), at in reasons.items() if file == place})
    skipped = tuple(
        Skips(files[place].name, why, len(lines), tuple(lines[:_LINES_NAMED]))
        for (place, why), lines in reasons.items()
    )
    return Gathered(items, skipped, shortened)


def _nothing(path: Path, reasons: dict[Note, list[int]]) -> UserError:
    hint = 'a line looks like {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
    if not reasons:
        return UserError(f"{path} holds no conversation", hint=hint)
    why, lines = max(reasons.items(), key=lambda entry: len(entry[1]))
    if why.code == "skip-too-long":
        hint = "a model with a longer context, or shorter conversations"
    return UserError(
        f"{path} holds no conversation that can be learned from; {len(lines):,} times {why}, first in line {lines[0]}",
        hint=hint,
    )


def _encoded(
    conversation: Conversation, tokenizer: SpecialTokenizer, room: int
) -> tuple[npt.NDArray[np.uint16], int, bool, bytes] | UnreadableError:
    """Its tokens, how many are learned, whether all turns are there, its digest; turns that do not fit are left out."""
    assert tokenizer.eot is not None
    longest_token = int(tokenizer.byte_lengths.max())
    fitting = []
    for message in conversation:
        if len(message.content) > room * longest_token:
            break  # it cannot fit, and need not be encoded to see that
        fitting.append(message)
    try:
        turns = encode_turns(tokenizer, fitting) if fitting else []
    except UserError:
        return UnreadableError("skip-character")
    used, length = 0, 1
    for place, turn in enumerate(turns):
        length += len(turn)
        if length > room:
            break
        if fitting[place].role == "assistant":
            used = place + 1
    if not used:
        return UnreadableError("skip-too-long", room=room)
    ids = [tokenizer.eot, *(i for turn in turns[:used] for i in turn)]
    learned = sum(
        len(turn) - 1
        for turn, message in zip(turns[:used], fitting, strict=False)
        if message.role == "assistant"
    )
    array = np.array(ids, np.uint16)
    digest = hashlib.sha256(array.tobytes()).digest()
    return array, learned, used == len(conversation), digest
