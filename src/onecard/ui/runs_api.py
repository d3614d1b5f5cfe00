"""Runs: the list and one run, live by server-sent events; compare; dropped logs; stop and resume where allowed."""

import asyncio
import functools
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from onecard.errors import UserError
from onecard.report.compare_view import compare_document
from onecard.report.language import Language
from onecard.runs.compare import compare
from onecard.runs.explain import explain, explained
from onecard.runs.run import Run
from onecard.ui.answers import errors_as_json, in_thread, json_answer, language_of
from onecard.ui.control import resume_run, stop_run
from onecard.ui.document_json import document_json
from onecard.ui.registry import Registry
from onecard.ui.run_watch import RunWatch
from onecard.ui.settings import Settings

POLL_SECONDS = 0.7
BEAT_SECONDS = 15.0  # a word now and then, so that a connection that is gone is noticed
FINDINGS_SECONDS = 5.0
_CATCH_UP_SECONDS = 0.5  # between two pictures of a run whose log is still being read
_RETRY_MILLISECONDS = 1000  # until a browser whose connection broke tries again
_MOST_COMPARED = 12
_MOST_HEAVY = 2  # comparisons and zooms at once: others must find a thread free


class RunsApi:
    """The routes of Runs over one registry."""

    def __init__(self, settings: Settings, registry: Registry):
        self.settings = settings
        self.registry = registry
        self.streams = 0
        self._heavy = asyncio.Semaphore(_MOST_HEAVY)

    def routes(self) -> list[Route]:
        return [
            Route("/api/runs", errors_as_json(self.rows)),
            Route("/api/runs/live", errors_as_json(self.rows_live)),
            Route("/api/run/live", errors_as_json(self.run_live)),
            Route("/api/run/zoom", errors_as_json(self.zoom)),
            Route("/api/compare", errors_as_json(self.compare)),
            Route("/api/logs", errors_as_json(self.drop), methods=["POST", "DELETE"]),
            Route("/api/run/{action}", errors_as_json(self.control), methods=["POST"]),
        ]

    async def rows(self, request: Request) -> Response:
        return json_answer(await in_thread(self._rows))

    def _rows(self) -> dict[str, Any]:
        return {"folder": self.settings.root.name, "runs": self.registry.rows()}

    async def rows_live(self, request: Request) -> Response:
        async def changes() -> AsyncIterator[dict[str, Any]]:
            known = None
            while True:
                rows = await in_thread(self._rows)
                if rows != known:
                    known = rows
                    yield rows
                else:
                    yield {}
                await asyncio.sleep(POLL_SECONDS)

        return self._stream(changes)

    async def run_live(self, request: Request) -> Response:
        name, words = request.query_params.get("id", ""), language_of(request)
        run = self.registry.dropped(name)
        if run is not None:
            watched = run
            return self._stream(lambda: _once(dropped_run(watched, self.registry, name, words)))
        await in_thread(lambda: self.registry.folder(name))
        return self._stream(lambda: self._run_changes(name, words))

    async def _run_changes(self, name: str, words: Language) -> AsyncIterator[dict[str, Any]]:
        version, sent, changes, explained_at = -1, 0, -1, -1e9
        shown: dict[str, Any] = {}  # the newest point as the page has it
        watch = await in_thread(lambda: self.registry.watch(name))
        message: dict[str, Any] = {"plan": await in_thread(watch.plan_band)}
        more = await in_thread(watch.advance)
        while watch.path.is_dir():  # else it was removed: the next request says so
            new = await in_thread(functools.partial(watch.points_since, version, sent))
            if new.version != version or new.points != shown:
                message |= {"from": new.start, "points": new.points}
                shown = {column: values[-1:] for column, values in new.points.items()}
            version, sent = new.version, new.count
            if watch.changes != changes:
                changes = watch.changes
                message |= {
                    "evals": watch.evals,
                    "events": list(watch.events),
                    "samples": list(watch.samples),
                }
            row = await in_thread(lambda: self.registry.row(name, watch.path))
            message |= {"row": row, "read": watch.share_read}
            if not more and time.monotonic() - explained_at > FINDINGS_SECONDS:
                message["findings"] = await in_thread(lambda: watch.findings(words))
                explained_at = time.monotonic()
            yield message
            message = {}
            if not more:
                await asyncio.sleep(POLL_SECONDS)
            more = await self._read_on(watch)

    async def _read_on(self, watch: RunWatch) -> bool:
        """What is new in the log, for as long as a reader may wait for the next picture; whether there is more."""
        until = time.monotonic() + _CATCH_UP_SECONDS
        while (more := await in_thread(watch.advance)) and time.monotonic() < until:
            await asyncio.sleep(0.002)  # without a pause, the others' requests would be slow
        return more

    def _stream(self, changes: Callable[[], AsyncIterator[dict[str, Any]]]) -> Response:
        if self.streams >= self.settings.limits.streams:
            raise UserError("too many pages are open on this server", hint="close some of them")

        async def lines() -> AsyncIterator[str]:
            self.streams += 1
            last, beat = None, time.monotonic()
            yield f"retry: {_RETRY_MILLISECONDS}\n\n"
            try:
                async for message in changes():
                    text = await in_thread(functools.partial(_compact, message))
                    if message and text != last:
                        last, beat = text, time.monotonic()
                        yield f"data: {text}\n\n"
                    elif time.monotonic() - beat > BEAT_SECONDS:
                        beat = time.monotonic()
                        yield ": still here\n\n"
            finally:
                self.streams -= 1

        head = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(lines(), media_type="text/event-stream", headers=head)

    async def zoom(self, request: Request) -> Response:
        query = request.query_params
        try:
            first, last = float(query["from"]), float(query["to"])
        except (KeyError, ValueError):
            raise UserError(
                "from and to must both be steps", hint="for example from=100&to=200"
            ) from None
        name = query.get("id", "")
        async with self._heavy:
            detail = await in_thread(lambda: self.registry.watch(name).zoom(first, last))
        return json_answer(detail)

    async def compare(self, request: Request) -> Response:
        names, words = request.query_params.getlist("run"), language_of(request)
        if not 2 <= len(names) <= _MOST_COMPARED:
            raise UserError(f"{len(names)} runs cannot be compared", hint="tick 2 to 12 of them")

        def work() -> dict[str, Any]:
            result = explained(compare([self.registry.figures(name) for name in names]))
            return document_json(compare_document(result), words)

        async with self._heavy:
            answer = await in_thread(work)
        return json_answer(answer)

    async def drop(self, request: Request) -> Response:
        name = request.query_params.get("name", "log")
        if request.method == "DELETE":
            self.registry.forget(name)
            return json_answer({})
        content = await request.body()
        return json_answer({"ids": await in_thread(lambda: self.registry.drop(name, content))})

    async def control(self, request: Request) -> Response:
        if not self.settings.control:
            raise UserError("this page is read-only", hint="start it with `onecard ui --control`")
        name = request.query_params.get("id", "")
        action = {"stop": stop_run, "resume": resume_run}.get(request.path_params["action"])
        if action is None:
            raise UserError(
                "a run can be stopped or resumed", hint="nothing else is done from here"
            )
        await in_thread(lambda: action(self.registry.folder(name)))
        return json_answer({})


def _compact(message: dict[str, Any]) -> str:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"))


async def _once(message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield message
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield {}


def dropped_run(run: Run, registry: Registry, name: str, words: Language) -> dict[str, Any]:
    """Another trainer's log in the form of a run's page."""
    figured = registry.figures(name)
    tokens = figured.tokens_per_step
    curve = run.curve
    points = {
        "step": list(curve.steps),
        "tokens": [step * tokens if tokens else None for step in curve.steps],
        "seconds": list(curve.seconds),
        "loss": list(curve.losses),
    }
    rows = [row for row in registry.rows() if row["id"] == name]
    return {
        "row": rows[0] if rows else {"id": name, "name": run.name, "state": "log"},
        "read": 1.0,
        "plan": None,
        "from": 0,
        "points": points,
        "evals": [
            {
                "step": e.step,
                "tokens": e.step * tokens if tokens else None,
                "val_loss": e.val_loss,
                "perplexity": math.exp(e.val_loss)
                if e.val_loss is not None and e.val_loss < 50
                else None,
                "bits_per_byte": e.bits_per_byte,
            }
            for e in run.evals
        ],
        "events": [],
        "samples": [],
        "flops_per_token": figured.flops_per_token,
        "findings": [{"rule": f.note.code, "text": words.text(f.note)} for f in explain(figured)],
    }
