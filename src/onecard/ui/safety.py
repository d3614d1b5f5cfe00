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
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onecard.ui.settings import Settings

COOKIE = "onecard_token"
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
        headers = {
            key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]
        }
        guarded = _with_headers(send, self.settings.limits.send_seconds)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(guarded, *refusal)
            return
        if moved := self._without_token(scope):
            await _redirect(guarded, *moved)
            return
        limit = self.settings.limits
        most = limit.log_bytes if scope["path"] == "/api/logs" else limit.body_bytes
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > most:
            await _answer(guarded, 413, "the request is too large")
            return
        with contextlib.suppress(Gone):
            await self.app(scope, _bounded(receive, most, limit.body_seconds), guarded)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._known_host(host):
            return 403, "this address is not one of the server's own: use the link that it printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests from other sites are refused"
        page = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") and not page:
            return 403, "requests from other sites are refused"
        if self.settings.token is not None and not self._has_token(scope, headers):
            return 401, "the token is missing or wrong: use the link that the server printed"
        return None

    def _known_host(self, host: str) -> bool:
        name = host_name(host)
        if name in LOCAL or name in self.settings.hosts:
            return True
        return self.settings.any_address and _is_address(name)

    def _has_token(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        given = (
            bearer if scheme.lower() == "bearer" else "",
            cookie.value if cookie is not None else "",
            query.get("token", "") if scope["method"] == "GET" else "",
        )
        wanted = (self.settings.token or "").encode()
        return any(hmac.compare_digest(each.encode(), wanted) for each in given)

    def _without_token(self, scope: Scope) -> tuple[str, str] | None:
        """The link's token moves into a cookie, so that it stays out of history, bookmarks and pictures."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"))
        if self.settings.token is None or not any(key == "token" for key, _ in pairs):
            return None
        rest = urlencode([(key, value) for key, value in pairs if key != "token"])
        path = "/" + scope["path"].lstrip("/")  # "//site" would leave this server
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
    return _closing(413, "the request is too large")


async def too_slow(request: Request, error: Exception) -> Response:
    return _closing(408, "the request took too long to arrive")


def _closing(status: int, words: str) -> Response:
    body = json.dumps({"error": {"message": words, "type": "refused"}})
    head = {"connection": "close"}
    return Response(body, status, media_type="application/json", headers=head)


async def _answer(send: Send, status: int, words: str) -> None:
    body = json.dumps({"error": {"message": words, "type": "refused"}}).encode()
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status in (408, 413):
        head.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _redirect(send: Send, place: str, token: str) -> None:
    cookie = f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000"
    head = [
        (b"location", place.encode("ascii", "ignore")),
        (b"set-cookie", cookie.encode()),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": head})
    await send({"type": "http.response.body", "body": b""})
