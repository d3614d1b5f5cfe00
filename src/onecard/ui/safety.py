"""The guard before every request: who may ask, from where, how much; and the headers that bind the browser.

A page of another site can make a browser send requests here, and DNS rebinding can give that site a name that means this
machine. So the Host must be one of ours, an Origin must be this very server, requests that a browser marks as made by
another site are refused, and where others can reach the server every request needs the token.
"""

import asyncio
import contextlib
import hmac
import ipaddress
import json
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onecard.ui.settings import Settings

COOKIE = "onecard_token"
_TOO_LARGE = "the request is too large"
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
# Nothing but this server's own files: no inline script or style, no frame, no form to elsewhere. `blob:` is what the page
# draws a chart's PNG from.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)


class TooLarge(Exception):
    """A request's body is larger than its bound."""


class TooSlow(Exception):
    """A request's body takes too long to arrive."""


class Gone(Exception):
    """The reader takes nothing any more."""


class Guard:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.app = app
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets here: the connection is refused
        request = Request(scope)
        guarded = _with_headers(send, self.settings.limits.send_seconds)
        refusal = self._refusal(request)
        if refusal is not None:
            await _refused(*refusal)(scope, receive, guarded)
            return
        if moved := self._without_token(request):
            await _redirect(*moved)(scope, receive, guarded)
            return
        limit = self.settings.limits
        most = limit.log_bytes if scope["path"] == "/api/logs" else limit.body_bytes
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            await _refused(413, _TOO_LARGE)(scope, receive, guarded)
            return
        with contextlib.suppress(Gone):
            await self.app(scope, _bounded(receive, most, limit.body_seconds), guarded)

    def _refusal(self, request: Request) -> tuple[int, str] | None:
        headers, host = request.headers, request.headers.get("host", "")
        if not self._known_host(host):
            return 403, "this address is not one of the server's own: use the link that it printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests from other sites are refused"
        page = headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not page:
            return 403, "requests from other sites are refused"
        if self.settings.token is not None and not self._has_token(request):
            return 401, "the token is missing or wrong: use the link that the server printed"
        return None

    def _known_host(self, host: str) -> bool:
        name = host_name(host)
        if name in LOCAL or name in self.settings.hosts:
            return True
        return self.settings.any_address and _is_address(name)

    def _has_token(self, request: Request) -> bool:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = (
            bearer if scheme.lower() == "bearer" else "",
            request.cookies.get(COOKIE, ""),
            request.query_params.get("token", "") if request.method == "GET" else "",
        )
        wanted = (self.settings.token or "").encode()
        return any(hmac.compare_digest(each.encode(), wanted) for each in given)

    def _without_token(self, request: Request) -> tuple[str, str] | None:
        """The link's token moves into a cookie, so that it stays out of history, bookmarks and pictures."""
        pairs = request.query_params.multi_items()
        if self.settings.token is None or "token" not in request.query_params:
            return None
        rest = urlencode([(key, value) for key, value in pairs if key != "token"])
        path = "/" + request.scope["path"].lstrip("/")  # "//site" would leave this server
        return path + (f"?{rest}" if rest else ""), self.settings.token


def host_name(host: str) -> str:
    """The name in a Host header, without its port: "[::1]:8000" is "::1"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_headers(send: Send, seconds: float) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
        try:
            async with asyncio.timeout(seconds):  # a reader that takes nothing holds nothing up
                await send(message)
        except TimeoutError:
            raise Gone from None

    return guarded


def _bounded(receive: Receive, most: int, seconds: float) -> Receive:
    """The body, no longer than `most` and no slower than `seconds`; waiting for a disconnect takes as long as it takes."""
    taken = 0
    complete = False

    async def bounded() -> Message:
        nonlocal taken, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(seconds):
                message = await receive()
        except TimeoutError:
            raise TooSlow from None
        taken += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if taken > most:
            raise TooLarge
        return message

    return bounded


async def too_large(request: Request, error: Exception) -> Response:
    return _refused(413, _TOO_LARGE)


async def too_slow(request: Request, error: Exception) -> Response:
    return _refused(408, "the request took too long to arrive")


def _refused(status: int, words: str) -> Response:
    body = json.dumps({"error": {"message": words, "type": "refused"}})
    head = {"connection": "close"} if status in (408, 413) else {}
    return Response(body, status, media_type="application/json", headers=head)


def _redirect(place: str, token: str) -> Response:
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000"
    head = {"location": place.encode("ascii", "ignore").decode(), "set-cookie": cookie}
    return Response(status_code=303, headers=head)
