"""A conversation with a tuned model: many turns, the oldest dropped when the context is full.

>>> talk = Dialogue(open_model("out-chat"), Sampling(temperature=0.7))      # doctest: +SKIP
>>> reply = talk.ask("Hello")                                               # doctest: +SKIP
>>> for piece in reply.stream: print(piece, end="", flush=True)             # doctest: +SKIP
>>> talk.keep(reply)                                                        # doctest: +SKIP
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from onecard.data.tokenizers.special import SpecialTokenizer, has_chat_tokens
from onecard.errors import UserError
from onecard.model.generate import Sampler, Sampling
from onecard.model.text_pieces import TextStream
from onecard.tune.formats import Message
from onecard.tune.template import encode_turns, prompt_of

_ANSWER_SHARE = 0.25  # of the context that is kept free for the answer, at most


@dataclass(frozen=True)
class Reply:
    """An answer on its way."""

    question: str
    stream: TextStream
    dropped: int  # messages that were left out of the context before this answer


class Dialogue:
    """The messages so far. A model that was never tuned has no roles: it continues each text by itself."""

    def __init__(
        self,
        sampler: Sampler,
        sampling: Sampling | None = None,
        most_tokens: int = 256,
        system: str | None = None,
    ):
        self.sampler = sampler
        self.sampling = sampling or Sampling()
        self.most_tokens = most_tokens
        self.system = system
        self.messages: list[Message] = []
        self._answers = 0

    @property
    def tuned(self) -> bool:
        return has_chat_tokens(self.sampler.tokenizer)

    @property
    def room(self) -> int:
        return self.sampler.model.config.block_size

    def reset(self) -> None:
        """Forget the messages; the system message and the settings stay."""
        self.messages.clear()

    def ask(self, text: str, stop_texts: Sequence[str] = ()) -> Reply:
        """The answer to `text`, drawn as its stream is read; `keep` makes both part of the conversation."""
        prompt, dropped = self._prompt(text) if self.tuned else self._continued(text)
        self._answers += 1
        # each answer draws numbers of its own, or the same question would always get the same one
        seed = self.sampling.seed + self._answers - 1
        tokenizer = self.sampler.tokenizer
        stops = tokenizer.special.values() if isinstance(tokenizer, SpecialTokenizer) else ()
        stream = TextStream(
            self.sampler,
            prompt,
            replace(self.sampling, seed=seed),
            most_tokens=min(self.most_tokens, max(1, self.room - len(prompt))),
            stop_tokens=[*stops, *([] if tokenizer.eot is None else [tokenizer.eot])],
            stop_texts=stop_texts,
        )
        return Reply(text, stream, dropped)

    def keep(self, reply: Reply) -> None:
        """The question and as much of its answer as was read, for the turns to come."""
        if self.tuned and reply.stream.text.strip():
            self.messages += [
                Message("user", reply.question),
                Message("assistant", reply.stream.text.strip()),
            ]

    def to_json(self) -> dict[str, object]:
        """In the format that `onecard tune` reads."""
        messages = [*self._system(), *self.messages]
        return {"messages": [{"role": m.role, "content": m.content} for m in messages]}

    def _system(self) -> list[Message]:
        return [Message("system", self.system)] if self.system and self.tuned else []

    def _prompt(self, text: str) -> tuple[list[int], int]:
        """The tokens to answer, and how many old messages had to go for good."""
        tokenizer = self.sampler.tokenizer
        assert isinstance(tokenizer, SpecialTokenizer)
        new = [*self._system(), Message("user", text)]
        limit = self.room - min(self.most_tokens, int(_ANSWER_SHARE * self.room))
        fixed = prompt_of(tokenizer, new)
        if len(fixed) > limit:
            raise UserError(
                f"the message has {len(fixed):,} tokens; {limit:,} fit into the context of {self.room:,}",
                hint="shorten it",
            )
        lengths = (
            [len(turn) for turn in encode_turns(tokenizer, self.messages)] if self.messages else []
        )
        dropped = 0
        while sum(lengths[dropped:]) + len(fixed) > limit:
            dropped += 1
        while dropped < len(self.messages) and self.messages[dropped].role == "assistant":
            dropped += 1  # an answer without its question
        del self.messages[:dropped]
        return prompt_of(tokenizer, [*self._system(), *self.messages, new[-1]]), dropped

    def _continued(self, text: str) -> tuple[list[int], int]:
        ids = self.sampler.encode(text)
        limit = self.room - min(self.most_tokens, int(_ANSWER_SHARE * self.room))
        return ids[-limit:], 0
