"""Plan: what the planner and `recommend` answer, for a page that asks at every move of a slider."""

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from onecard.advise.budget import Budget
from onecard.advise.recipe_choice import search_of, wins
from onecard.advise.recommend import recommended_plan
from onecard.advise.search import Search
from onecard.config import RunConfig, to_toml
from onecard.data.read.layout import DATA_HOME, prepared_names
from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.planner import RunPlan
from onecard.planner.result import as_plain
from onecard.report.language import Language
from onecard.report.plan_fit import memory_section
from onecard.report.plan_summary import headline
from onecard.report.plan_view import plan_document, subtitle
from onecard.ui.answers import errors_as_json, in_thread, json_answer, language_of
from onecard.ui.document_json import block_json, document_json, figure_json
from onecard.ui.plan_request import PAGE_KEYS, PlanRequest, overrides_of, parse_hours
from onecard.units import HOUR

MOST_CURVE_HOURS = 10_000.0


def plan_routes() -> list[Route]:
    """Every route of Plan."""
    turn = asyncio.Lock()  # one search at a time: plans must find the interpreter free

    def asked(request: Request) -> PlanRequest:
        return PlanRequest.from_query(request.query_params, prepared_folders())

    @errors_as_json
    async def plan(request: Request) -> Response:
        ask, words = asked(request), language_of(request)
        return json_answer(await in_thread(lambda: _plan_answer(ask, words)))

    @errors_as_json
    async def recommend(request: Request) -> Response:
        ask, words = asked(request), language_of(request)
        hours = parse_hours(request.query_params.get("for_hours", ""))
        return await searched(request, lambda: _recommended(ask, hours, words))

    @errors_as_json
    async def curve(request: Request) -> Response:
        ask = asked(request)
        hours = min(parse_hours(request.query_params.get("at", "")), MOST_CURVE_HOURS)
        return await searched(request, lambda: _curve_point(ask, hours))

    async def searched(request: Request, work: Callable[[], dict[str, Any]]) -> Response:
        async with turn:
            if await request.is_disconnected():  # the slider moved on while this one waited
                return json_answer({})
            return json_answer(await in_thread(work))

    @errors_as_json
    async def config(request: Request) -> Response:
        made, answer = await in_thread(asked(request).plan)
        text = to_toml(answer.config, head=f"made by: {made.command}")
        head = {"content-disposition": 'attachment; filename="run.toml"'}
        return Response(text, media_type="application/toml", headers=head)

    return [
        Route("/api/plan", plan),
        Route("/api/recommend", recommend),
        Route("/api/curve", curve),
        Route("/api/config", config),
    ]


def _plan_answer(ask: PlanRequest, words: Language) -> dict[str, Any]:
    made, answer = ask.plan()
    return {
        "command": made.command,
        "plan": answer.to_json(),
        "config": _page_values(answer.config),
        "base": _page_values(made.base_config()),
        "view": _view(answer, words),
        "document": document_json(plan_document(answer, explain=True), words),
    }


def _view(answer: RunPlan, words: Language) -> dict[str, Any]:
    bar = memory_section(answer, {}).blocks[1]
    return {
        "subtitle": words.text(subtitle(answer)),
        "headline": [figure_json(figure, words) for figure in headline(answer)],
        "memory": block_json(bar, words),
        "changes": [words.text(note) for note in answer.memory.changes],
        "warnings": [words.text(note) for note in answer.warnings],
    }


def _recommended(ask: PlanRequest, hours: float, words: Language) -> dict[str, Any]:
    """The best run for as long as the plan takes; `hours` is what the page shows of it."""
    shown = float(f"{hours:.4g}")
    best = _best(ask.device, shown, ask.data, _recipe(ask), ask.price)
    command = f'onecard recommend --gpu "{ask.gpu or "here"}" --hours {shown:g}'
    command += f" --data {ask.data}" if ask.data else ""
    command += f" --recipe {recipe}" if (recipe := _recipe(ask)) else ""
    return {
        "command": command,
        "hours": shown,
        "plan": best.to_json(),
        "view": _view(best, words),
        "take": {**overrides_of(best.config), "data": ask.data or best.config.dataset},
    }


def _curve_point(ask: PlanRequest, hours: float) -> dict[str, Any]:
    best = _best(ask.device, hours, ask.data, _recipe(ask), ask.price)
    loss = best.loss.expected if best.loss else None
    return {"hours": hours, "loss": as_plain(loss), "params": best.params.total}


def _recipe(ask: PlanRequest) -> str | None:
    """The modern recipe where the page has it; else the better one, as `recommend` chooses it."""
    config = ask.config()
    return config.recipe if config.shape.modern else None


@functools.lru_cache(maxsize=512)
def _best(
    device: Device, hours: float, data: str | None, recipe: str | None, price: str | None
) -> RunPlan:
    budget = Budget(seconds=hours * HOUR)
    search = _search(device, data, recipe or "gpt2")
    if recipe is None:
        modern = _search(device, data, "modern").with_budget(budget)
        with contextlib.suppress(UserError):  # it has no run for this budget
            if wins(modern, modern.best(), search.with_budget(budget).best()):
                search = modern
    return recommended_plan(search, budget, data=data, price=price)


@functools.lru_cache(maxsize=16)
def _search(device: Device, data: str | None, recipe: str) -> Search:
    return search_of(device, data, recipe)


def _page_values(config: RunConfig) -> dict[str, Any]:
    return {key: getattr(config, key) for key in PAGE_KEYS}


def prepared_folders() -> tuple[str, ...]:
    """Prepared data sets that `onecard plan --data NAME` would find from here: the folders in ./data."""
    if DATA_HOME.is_symlink():
        return ()
    return tuple(name for name in prepared_names()[:200] if not (DATA_HOME / name).is_symlink())
