"""Generations one after the other: a bounded queue, one thread with the models, texts handed on as they are written.

A job's pieces reach the loop that asked; cancelling it ends its text before the next token, or before it begins.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onecard.errors import OnecardError, UserError
from onecard.ui.conversation import Turn, chat_streams
from onecard.ui.models import Models

if TYPE_CHECKING:
    from onecard.model.text_pieces import TextStream


class Busy(Exception):
    """The queue is full."""


@dataclass
class Job:
    """`choices` texts for each prompt, or for the conversation `turns`; the seeds count up from the sampling's, as those of
    `onecard sample --n` do."""

    model: str
    prompts: list[str]
    sampling: dict[str, Any]
    most_tokens: int
    choices: int = 1
    stop_texts: Sequence[str] = ()
    turns: Sequence[Turn] = ()
    cancelled: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    pieces: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    streams: list[Any] = field(default_factory=list)

    @property
    def texts(self) -> int:
        """How many it asks for."""
        return (1 if self.turns else len(self.prompts)) * self.choices

    def cancel(self) -> None:
        self.cancelled = True
        for stream in self.streams:
            stream.cancel()

    def give(self, item: Any) -> None:
        """From the working thread to the loop; a loop that has ended needs nothing."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, item)

    async def __aiter__(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """(index of the text, what was added, why it ended or None), until all have ended."""
        while (item := await self.pieces.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item


class Generations:
    """The one thread that generates."""

    def __init__(self, models: Models, most_waiting: int):
        self.models = models
        self._waiting: queue.Queue[Job] = queue.Queue(maxsize=most_waiting)
        self._thread: threading.Thread | None = None

    def submit(self, job: Job) -> None:
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise Busy from None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True, name="generations")
            self._thread.start()

    def _work(self) -> None:
        while True:
            job = self._waiting.get()
            try:
                if not job.cancelled:
                    self._generate(job)
                job.give(None)
            except OnecardError as error:
                job.give(error)
            except Exception as error:  # a model that cannot be run must not end the server
                job.give(UserError(f"the model cannot be run: {type(error).__name__}"))

    def _generate(self, job: Job) -> None:
        from onecard.model.text_pieces import stream_together

        job.streams = self._streams(job)
        each_prompt = job.streams[:: job.choices]
        job.prompt_tokens = sum(len(stream.generation.prompt) for stream in each_prompt)
        reported: set[int] = set()
        for pieces in stream_together(job.streams):
            if job.cancelled:
                job.cancel()  # it may have been asked for before the streams were there
            for index, (piece, stream) in enumerate(zip(pieces, job.streams, strict=True)):
                ended = stream.ended if index not in reported else None
                if piece or ended:
                    job.give((index, piece, ended))
                if ended:
                    reported.add(index)
        job.tokens = sum(len(stream.ids) for stream in job.streams)

    def _streams(self, job: Job) -> "list[TextStream]":
        from onecard.model.generate import Sampling
        from onecard.model.text_pieces import texts_after

        sampler = self.models.sampler(job.model)
        first = Sampling(**job.sampling).checked()
        if job.turns:
            return chat_streams(
                sampler, job.turns, first, job.most_tokens, job.choices, job.stop_texts
            )
        more = {"most_tokens": job.most_tokens, "stop_texts": job.stop_texts}
        return [
            stream
            for ids in map(sampler.encode, job.prompts)
            for stream in texts_after(sampler, ids, first, job.choices, **more)
        ]
