"""Runs: the list and one run, live by server-sent events; compare; dropped logs; stop and resume where allowed."""

import asyncio
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
from onecard.ui.answers import in_thread, json_answer, language_of, said
from onecard.ui.control import resume_run, stop_run
from onecard.ui.document_json import document_json
from onecard.ui.registry import Registry
from onecard.ui.settings import Settings

POLL_SECONDS = 0.7
BEAT_SECONDS = 15.0  # a word now and then, so that a connection that is gone is noticed
FINDINGS_SECONDS = 5.0
_MOST_COMPARED = 12


class RunsApi:
    """The routes of Runs over one registry."""

    def __init__(self, settings: Settings, registry: Registry):
        self.settings = settings
        self.registry = registry
        self.streams = 0

    def routes(self) -> list[Route]:
        return [
            Route("/api/runs", said(self.rows)),
            Route("/api/runs/live", said(self.rows_live)),
            Route("/api/run/live", said(self.run_live)),
            Route("/api/run/zoom", said(self.zoom)),
            Route("/api/compare", said(self.compare)),
            Route("/api/logs", said(self.drop), methods=["POST", "DELETE"]),
            Route("/api/run/{action}", said(self.control), methods=["POST"]),
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
            found = run
            return self._stream(lambda: _once(dropped_run(found, self.registry, name, words)))
        await in_thread(lambda: self.registry.folder(name))
        return self._stream(lambda: self._run_changes(name, words))

    async def _run_changes(self, name: str, words: Language) -> AsyncIterator[dict[str, Any]]:
        version, sent, changes, explained_at, shown = -1, 0, -1, -1e9, None
        watch = await in_thread(lambda: self.registry.watch(name))
        first = True
        while True:
            more = await in_thread(watch.advance)
            message: dict[str, Any] = {}
            if first:
                message["plan"], first = watch.plan_band(), False
            if watch.series.version != version or len(watch.series) != sent or not more:
                start = 0 if watch.series.version != version else max(0, sent - 1)
                points = watch.series.points(start)
                if start == 0 or points != shown:
                    message |= {"from": start, "points": points}
                    shown = watch.series.points(max(0, len(watch.series) - 1))
                version, sent = watch.series.version, len(watch.series)
            if watch.changes != changes:
                changes = watch.changes
                message |= {
                    "evals": watch.evals,
                    "events": list(watch.events),
                    "samples": list(watch.samples),
                }
            row = await in_thread(lambda: self.registry._row(name, watch.path))
            message |= {"row": row, "read": watch.share_read}
            if not more and time.monotonic() - explained_at > FINDINGS_SECONDS:
                message["findings"] = await in_thread(lambda: watch.findings(words))
                explained_at = time.monotonic()
            yield message
            await asyncio.sleep(0.01 if more else POLL_SECONDS)

    def _stream(self, changes: Callable[[], AsyncIterator[dict[str, Any]]]) -> Response:
        if self.streams >= self.settings.limits.streams:
            raise UserError("too many pages are open on this server", hint="close some of them")

        async def lines() -> AsyncIterator[str]:
            self.streams += 1
            last, beat = None, time.monotonic()
            try:
                async for message in changes():
                    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
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
            raise UserError("a part of a run has two ends", hint="from and to are steps") from None
        watch = self.registry.watch(query.get("id", ""))
        return json_answer(await in_thread(lambda: watch.zoom(first, last)))

    async def compare(self, request: Request) -> Response:
        names, words = request.query_params.getlist("run"), language_of(request)
        if not 2 <= len(names) <= _MOST_COMPARED:
            raise UserError(f"{len(names)} runs cannot be compared", hint="tick 2 to 12 of them")

        def work() -> dict[str, Any]:
            result = explained(compare([self.registry.figures(name) for name in names]))
            return document_json(compare_document(result), words)

        return json_answer(await in_thread(work))

    async def drop(self, request: Request) -> Response:
        name = request.query_params.get("name", "log")
        if request.method == "DELETE":
            self.registry.forget(name)
            return json_answer({})
        content = await request.body()
        return json_answer({"ids": await in_thread(lambda: self.registry.drop(name, content))})

    async def control(self, request: Request) -> Response:
        if not self.settings.control:
            raise UserError("this page may only look", hint="start it with `onecard ui --control`")
        path = self.registry.folder(request.query_params.get("id", ""))
        action = {"stop": stop_run, "resume": resume_run}.get(request.path_params["action"])
        if action is None:
            raise UserError(
                "a run can be stopped or resumed", hint="nothing else is done from here"
            )
        await in_thread(lambda: action(path))
        return json_answer({})


async def _once(message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield message
    while True:
        await asyncio.sleep(POLL_SECONDS)
        yield {}


def dropped_run(run: Run, registry: Registry, name: str, words: Language) -> dict[str, Any]:
    """A stranger's log in the form of a run's page."""
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
