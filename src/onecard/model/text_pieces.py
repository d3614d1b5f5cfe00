"""Tokens to text as they come: whole characters only, and nothing of a stop text.

>>> stream = TextStream(sampler, sampler.encode("Once"), Sampling(temperature=0.7))      # doctest: +SKIP
>>> for piece in stream: print(piece, end="", flush=True)                                # doctest: +SKIP
>>> stream.text, stream.ended                                                            # doctest: +SKIP

>>> pieces = TextPieces(lambda token: bytes([token]), stop_texts=["END"])
>>> [pieces.push(value) for value in "aé".encode()]
['a', '', 'é']
>>> [pieces.push(value) for value in b"xENbENDy"], pieces.stopped
(['x', '', '', 'ENb', '', '', '', ''], True)
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from onecard.model.generate import Ended, Generation, Sampler, Sampling, write_together


class TextPieces:
    """`push` gives the text that a token completes. Bytes that are part of a character wait for the rest; so does text
    that may be the beginning of a stop text. `finish` gives what still waits."""

    def __init__(self, to_bytes: Callable[[int], bytes], stop_texts: Sequence[str] = ()):
        self._to_bytes = to_bytes
        self._stops = [text for text in stop_texts if text]
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting = ""
        self.stopped = False  # a stop text came; nothing is given from then on

    def push(self, token: int) -> str:
        return self._given(self._decoder.decode(self._to_bytes(token)))

    def finish(self) -> str:
        text = self._given(self._decoder.decode(b"", final=True))
        rest, self._waiting = self._waiting, ""
        return text if self.stopped else text + rest

    def _given(self, new: str) -> str:
        if self.stopped:
            return ""
        text = self._waiting + new
        stops = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if stops:
            self.stopped, self._waiting = True, ""
            return text[: min(stops)]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._waiting = text[len(text) - held :]
        return text[: len(text) - held]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the text's end are the stop text's beginning."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class TextStream:
    """One text as it is written: an iterator of its pieces. `cancel` ends it from any thread."""

    def __init__(
        self,
        sampler: Sampler,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        *,
        most_tokens: int = 200,
        stop_tokens: Iterable[int] = (),
        stop_texts: Sequence[str] = (),
    ):
        self.sampler = sampler
        self.generation = Generation(prompt, sampling, most_tokens, stop_tokens)
        self.text = ""  # what has been given so far
        self._pieces = TextPieces(sampler.tokenizer.bytes_of, stop_texts)
        self._flushed = False

    @property
    def ids(self) -> list[int]:
        """The tokens drawn so far, without the stop token; a stop text's are among them."""
        return self.generation.ids

    @property
    def ended(self) -> Ended | None:
        """Why it ended: a stop token or text, its length, cancelled; None while it continues."""
        return self.generation.ended

    def cancel(self) -> None:
        self.generation.cancel()

    def __iter__(self) -> Iterator[str]:
        for (piece,) in stream_together([self]):
            if piece:
                yield piece

    def take(self, token: int | None) -> str:
        """The text that this step completes; what waited, once the text has ended."""
        piece = "" if token is None else self._pieces.push(token)
        if self._pieces.stopped:
            self.generation.ended = "stop"
        if self.ended and not self._flushed:
            self._flushed = True
            piece += self._pieces.finish()
        self.text += piece
        return piece


def texts_after(
    sampler: Sampler, prompt: Sequence[int], sampling: Sampling, count: int, **more: Any
) -> list[TextStream]:
    """`count` texts after one prompt, to be written side by side; their seeds count up from the sampling's."""
    seeded = (replace(sampling, seed=sampling.seed + n) for n in range(count))
    return [TextStream(sampler, prompt, each, **more) for each in seeded]


def stream_together(streams: Sequence[TextStream]) -> Iterator[list[str]]:
    """The next piece of every text of one model, "" where it has none, until all have ended."""
    sampler = streams[0].sampler
    generations = [stream.generation for stream in streams]
    for tokens in write_together(sampler.model, generations, sampler.vocab_size):
        yield [stream.take(token) for stream, token in zip(streams, tokens, strict=True)]
    yield [stream.take(None) for stream in streams]  # of those that were cancelled in between
