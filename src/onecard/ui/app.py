"""The application: the page, its API, the OpenAI-compatible API, behind one guard.

uvicorn.run(application(Settings(root=Path("."))))
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from onecard.config import PRESETS, choices
from onecard.config.presets import about
from onecard.facts.datasets import all_datasets
from onecard.facts.gpus import all_gpus
from onecard.report.language import NAMES
from onecard.ui.answers import language_of
from onecard.ui.generations import Generations
from onecard.ui.models import Models
from onecard.ui.openai_api import OpenAiApi
from onecard.ui.page_words import PAGE_WORDS
from onecard.ui.plan_api import plan_routes, prepared_folders
from onecard.ui.plan_request import first_card
from onecard.ui.registry import Registry
from onecard.ui.runs_api import RunsApi
from onecard.ui.safety import Guard, TooLarge, TooSlow, too_large, too_slow
from onecard.ui.settings import Settings
from onecard.version import __version__

_HERE = Path(__file__).parent
_TABS = ("plan", "runs", "talk")
_CHOICES = ("dtype", "recipe", "recompute", "attention", "optimizer", "schedule")


def application(settings: Settings) -> ASGIApp:
    """All of it; without `settings.page`, the API alone."""
    registry = Registry(settings)
    models = Models(settings, registry)
    generations = Generations(models, settings.limits.queue)
    routes: list[BaseRoute] = [*OpenAiApi(models, generations, settings.limits).routes()]
    if settings.page:
        routes += [
            *_page_routes(settings),
            *plan_routes(),
            *RunsApi(settings, registry).routes(),
            Mount("/static", _Files(directory=_HERE / "static")),
        ]
    app = Starlette(routes=routes, exception_handlers={TooLarge: too_large, TooSlow: too_slow})
    app.state.generations = generations
    return Guard(app, settings)


class _Files(StaticFiles):
    """Our own files; asked again each time, so that an upgrade is seen at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "no-cache"
        return response


def _page_routes(settings: Settings) -> list[BaseRoute]:
    pages = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape(["html"])
    )
    template = pages.get_template("page.html")

    async def page(request: Request) -> Response:
        words = language_of(request)
        text = template.render(
            lang=words.code,
            languages=NAMES,
            tabs=_TABS,
            words={key: words.text(value) for key, value in PAGE_WORDS.items()},
            boot=boot(settings),
            version=__version__,
        )
        head = {"cache-control": "no-store", "vary": "accept-language, cookie"}
        return Response(text, media_type="text/html; charset=utf-8", headers=head)

    return [Route(path, page) for path in ("/", *(f"/{tab}" for tab in _TABS))]


def boot(settings: Settings) -> dict[str, Any]:
    """What the page needs to know at once: cards, presets, data sets, choices."""
    return {
        "cards": [
            {
                "name": card.name,
                "about": f"{card.vendor} · {card.architecture}",
                "gib": round(card.memory_bytes / 2**30, 1),
            }
            for card in all_gpus()
        ],
        "presets": [{"name": name, "about": about(name)} for name in PRESETS],
        "datasets": [
            *({"name": name, "tokens": None} for name in prepared_folders()),
            *(
                {"name": entry.aliases[0] if entry.aliases else entry.name, "tokens": entry.tokens}
                for entry in all_datasets()
            ),
        ],
        "choices": {key: choices(key) for key in _CHOICES},
        "control": settings.control,
        "first_card": first_card(),
    }
