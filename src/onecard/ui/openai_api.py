"""The API that OpenAI's clients use: /v1/models, /v1/completions, /v1/chat/completions, streaming and not.

Beside their parameters: top_k, min_p and repetition_penalty.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from onecard.errors import OnecardError, UserError
from onecard.ui.answers import in_thread, json_answer
from onecard.ui.conversation import is_text, turns_of
from onecard.ui.generations import Busy, Generations, Job
from onecard.ui.models import Models, no_model
from onecard.ui.settings import Limits
from onecard.untrusted import parse_json

_LOOK_SECONDS = 0.25  # between two looks whether the client is still there
_REASONS = {"stop": "stop", "length": "length", "cancelled": "stop"}


class OpenAiApi:
    """Its routes over the models and the queue of one server."""

    def __init__(self, models: Models, generations: Generations, limits: Limits):
        self.models = models
        self.generations = generations
        self.limits = limits

    def routes(self) -> list[Route]:
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{name:path}", self.one_model),
            Route("/v1/completions", partial(self._answer, chat=False), methods=["POST"]),
            Route("/v1/chat/completions", partial(self._answer, chat=True), methods=["POST"]),
        ]

    async def list_models(self, request: Request) -> Response:
        names = await in_thread(self.models.folders)
        return json_answer({"object": "list", "data": [_model(name) for name in names]})

    async def one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in await in_thread(self.models.folders):
            return _refused(str(no_model(name)), 404)
        return json_answer(_model(name))

    async def _answer(self, request: Request, chat: bool) -> Response:
        try:
            asked = parse_json(await request.body())
            if not isinstance(asked, dict):
                raise UserError("the request is no JSON object")
            names = list(await in_thread(self.models.folders))
            if asked.get("model") is None and len(names) == 1:  # `onecard serve` has one
                asked["model"] = names[0]
            if asked.get("model") is None:
                raise UserError("the request names no model", hint="GET /v1/models lists them")
            if asked["model"] not in names:
                return _refused(str(no_model(asked["model"])), 404)
            sampling = await in_thread(lambda: _sampling(asked))  # it brings torch along
            job = self._job(asked, sampling, chat)
        except ValueError as error:
            return _refused(f"the request is not JSON: {error}", 400)
        except OnecardError as error:
            return _refused(str(error), 400)
        try:
            self.generations.submit(job)
        except Busy:
            return _refused("the queue is full; try again in a moment", 429)
        reply = _Reply(job, chat, echo=not chat and bool(asked.get("echo")))
        if asked.get("stream"):
            head = {"cache-control": "no-store"}
            lines = self._lines(request, reply)
            return StreamingResponse(lines, media_type="text/event-stream", headers=head)
        return await self._whole(request, reply)

    def _job(self, asked: dict[str, Any], sampling: dict[str, Any], chat: bool) -> Job:
        turns = turns_of(asked.get("messages")) if chat else []
        prompts = [] if chat else _prompts(asked.get("prompt", ""))
        limits = self.limits
        if sum(map(len, (*prompts, *(text for _, text in turns)))) > limits.prompt_characters:
            raise UserError(f"the prompt has more than {limits.prompt_characters:,} characters")
        most = asked.get("max_completion_tokens") or asked.get("max_tokens")
        tokens = _whole_number("max_tokens", most, 256 if chat else 16, limits.tokens)
        choices = _whole_number("n", asked.get("n"), 1, limits.choices)
        stops = asked.get("stop") or []
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or len(stops) > 16 or not all(is_text(s) for s in stops):
            raise UserError("stop is a text or a list of at most 16")
        job = Job(
            model=asked["model"],
            prompts=prompts,
            sampling=sampling,
            most_tokens=tokens,
            choices=choices,
            stop_texts=stops,
            turns=turns,
        )
        if job.texts > limits.choices:
            raise UserError(f"at most {limits.choices} texts at once")
        return job

    async def _whole(self, request: Request, reply: "_Reply") -> Response:
        job = reply.job
        texts = [reply.start(index) for index in range(job.texts)]
        ended: dict[int, str] = {}
        watching = asyncio.create_task(_cancel_when_gone(request, job))
        try:
            async for index, piece, why in job:
                texts[index] += piece
                if why:
                    ended[index] = why
        except OnecardError as error:
            return _refused(str(error), 500 if error.exit_code != 2 else 400)
        finally:
            job.cancel()
            watching.cancel()
        return json_answer(reply.whole(texts, ended))

    async def _lines(self, request: Request, reply: "_Reply") -> AsyncIterator[str]:
        job = reply.job
        watching = asyncio.create_task(_cancel_when_gone(request, job))
        try:
            for index in range(job.texts):
                if reply.chat or reply.echo:
                    yield reply.line(index, reply.start(index), None, first=True)
            async for index, piece, why in job:
                if piece:
                    yield reply.line(index, piece, None)
                if why:
                    yield reply.line(index, "", _REASONS[why])
            yield "data: [DONE]\n\n"
        except OnecardError as error:
            yield f"data: {json.dumps(_error(str(error)))}\n\n"
        finally:
            job.cancel()  # the reader may have gone
            watching.cancel()


class _Reply:
    """One answer's frame, as whole or in pieces."""

    def __init__(self, job: Job, chat: bool, echo: bool):
        self.job = job
        self.chat = chat
        self.echo = echo
        self.head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "created": int(time.time()),
            "model": job.model,
        }

    def start(self, index: int) -> str:
        return self.job.prompts[index // self.job.choices] if self.echo else ""

    def line(self, index: int, text: str, why: str | None, first: bool = False) -> str:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        choice: dict[str, Any] = {"index": index, "finish_reason": why, "logprobs": None}
        if self.chat:
            choice["delta"] = {"role": "assistant", "content": ""} if first else {"content": text}
            if why:
                choice["delta"] = {}
        else:
            choice["text"] = text
        message = {**self.head, "object": kind, "choices": [choice]}
        return f"data: {json.dumps(message, ensure_ascii=False)}\n\n"

    def whole(self, texts: list[str], ended: dict[int, str]) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for index, text in enumerate(texts):
            choice = {"index": index, "finish_reason": _REASONS[ended.get(index, "stop")]}
            body = (
                {"message": {"role": "assistant", "content": text.strip()}}
                if self.chat
                else {"text": text}
            )
            choices.append({**choice, "logprobs": None, **body})
        job = self.job
        usage = {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": job.tokens,
            "total_tokens": job.prompt_tokens + job.tokens,
        }
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.head, "object": kind, "choices": choices, "usage": usage}


async def _cancel_when_gone(request: Request, job: Job) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(_LOOK_SECONDS)
    job.cancel()


def _prompts(prompt: Any) -> list[str]:
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, list) or not texts or not all(is_text(text) for text in texts):
        raise UserError("prompt is a text or a list of texts")
    return texts


def _sampling(asked: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"temperature": 1.0, "seed": secrets.randbelow(2**31)}
    for key, kind in (
        ("temperature", float),
        ("top_p", float),
        ("min_p", float),
        ("repetition_penalty", float),
        ("top_k", int),
        ("seed", int),
    ):
        value = asked.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
            raise UserError(f"{key} is a number")
        if not abs(value) < 2**62:
            raise UserError(f"{key} is too large")
        values[key] = kind(value)
    from onecard.model.generate import Sampling

    Sampling(**values).checked()
    return values


def _whole_number(name: str, value: Any, usual: int, most: int) -> int:
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UserError(f"{name} is a whole number from 1 to {most:,}")
    return value


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "onecard"}


def _error(message: str) -> dict[str, Any]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    }


def _refused(message: str, status: int) -> Response:
    return json_answer(_error(message), status)
