"""JSON answers of the page's API; a user's mistake is a sentence with its hint, here as on the command line."""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from onecard.errors import OnecardError
from onecard.report.language import NAMES, Language, language
from onecard.untrusted import printable

Kept = TypeVar("Kept")
Endpoint = Callable[[Request], Awaitable[Response]]


def json_answer(value: Any, status: int = 200) -> Response:
    """Numbers as Python has them, to the digit; what is not finite is null."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(
        text, status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def errors_as_json(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose user errors are answered as JSON, with the hint."""

    @functools.wraps(endpoint)
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except OnecardError as error:
            body = {
                "message": printable(error.message),
                "hint": printable(error.hint) if error.hint else "",
            }
            return json_answer({"error": body}, 422 if error.exit_code == 2 else 500)

    return answered


async def in_thread(work: Callable[[], Kept]) -> Kept:
    """Work that computes, off the loop that answers everyone."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


def language_of(request: Request) -> Language:
    """The page's switch (a cookie, or `lang` in the query), else what the browser asks for."""
    chosen = request.query_params.get("lang") or request.cookies.get("lang") or ""
    if chosen.partition("-")[0] in NAMES:
        return _language(chosen)
    wanted = []
    for number, part in enumerate(request.headers.get("accept-language", "")[:500].split(",")):
        name, _, quality = part.strip().partition(";q=")
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            weight = 0.0
        wanted.append((-weight, number, name))
    for _, _, name in sorted(wanted):
        if name.partition("-")[0].lower() in NAMES:
            return _language(name)
    return _language("en")


@functools.lru_cache(maxsize=32)
def _language(name: str) -> Language:
    code, _, region = name.partition("-")
    good = region if region.isalpha() and len(region) == 2 else ""
    return language(code.lower() + (f"_{good}" if good else ""))
