"""A tokeniser with a few ids more, for what is no text: the roles of a conversation.

>>> from onecard.data.tokenizers.kinds import BytesTokenizer
>>> chat = with_chat_tokens(BytesTokenizer())
>>> chat.special["<|user|>"], chat.vocab_size
(258, 261)
>>> chat.encode("<|user|>") == BytesTokenizer().encode("<|user|>")     # text never becomes a special token
True
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from onecard.data.read.manifest import LARGEST_VOCAB
from onecard.data.tokenizers.kinds import EOT, Ids, Offsets, Tokenizer
from onecard.errors import UserError

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
CHAT_TOKENS = (SYSTEM, USER, ASSISTANT, END)


class SpecialTokenizer(Tokenizer):
    """`base` with the tokens `names` after its last id. Where base has no separator, EOT must be among them."""

    def __init__(self, base: Tokenizer, names: Sequence[str]):
        self.base = base
        self.name = base.name
        self.special = {name: base.vocab_size + n for n, name in enumerate(names)}
        self.vocab_size = base.vocab_size + len(names)
        self.eot = self.special.get(EOT) if base.eot is None else base.eot
        if self.vocab_size > LARGEST_VOCAB:
            raise UserError(
                f"a vocabulary of {self.vocab_size:,} does not fit in 16-bit ids",
                hint="65,536 is the most",
            )
        self._names = {index: name.encode() for name, index in self.special.items()}

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        return self.base.encode_batch(texts)

    @cached_property
    def pieces(self) -> list[bytes]:
        return [*self.base.pieces, *[b""] * len(self.special)]

    def bytes_of(self, index: int) -> bytes:
        return self._names.get(index) or super().bytes_of(index)

    def file_content(self) -> bytes | None:
        return self.base.file_content()

    def describe(self) -> dict[str, Any]:
        entry = self.base.describe()
        own = {"vocab_size": self.vocab_size, "eot": self.eot, "special": list(self.special)}
        return {**entry, **own}


def with_chat_tokens(tokenizer: Tokenizer) -> SpecialTokenizer:
    """The tokeniser with the tokens of a conversation; itself where it has them."""
    if isinstance(tokenizer, SpecialTokenizer) and has_chat_tokens(tokenizer):
        return tokenizer
    names = CHAT_TOKENS if tokenizer.eot is not None else (EOT, *CHAT_TOKENS)
    return SpecialTokenizer(tokenizer, names)


def has_chat_tokens(tokenizer: Tokenizer) -> bool:
    """Whether the tokeniser has the tokens of a conversation: its model was tuned on some."""
    return isinstance(tokenizer, SpecialTokenizer) and set(CHAT_TOKENS) <= set(tokenizer.special)


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The tokeniser of the text alone."""
    return tokenizer.base if isinstance(tokenizer, SpecialTokenizer) else tokenizer
