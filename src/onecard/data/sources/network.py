"""Asking a server that may be away, busy or cut off: quick to report that nothing is there, patient once work has begun.

>>> _address("https://hub.example:8443/x", {})
('hub.example', 8443)
>>> _address("https://hub.example", {"https_proxy": "http://proxy:3128"})
('proxy', 3128)
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from onecard.errors import RunFailure, UserError, first_line
from onecard.files import DISK_FULL

_ATTEMPTS = 6
_LONGEST_WAIT = 120.0  # seconds; what a server asks for beyond this is not waited for
_CONNECT_SECONDS = 2.5
_OFFLINE_HINT = "check the network; `onecard data stdlib` and local files need none"
_NETWORK_MODULES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")

T = TypeVar("T")


def check_reachable(url: str) -> None:
    """A connection to the server (or the proxy before it) within moments, or one sentence."""
    host, port = _address(url, getproxies())
    answer: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), _CONNECT_SECONDS).close()
            answer.append("")
        except OSError as error:
            answer.append(error.strerror or str(error) or type(error).__name__)

    # In a thread, for looking up a name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    why = answer[0] if answer else f"no answer within {_CONNECT_SECONDS:.1f} s"
    if why:
        raise RunFailure(f"{host} cannot be reached ({why})", hint=_OFFLINE_HINT)


def _address(url: str, proxies: Mapping[str, str]) -> tuple[str, int]:
    target = urlsplit(url)
    folded = {key.lower().removesuffix("_proxy"): value for key, value in proxies.items()}
    proxy = folded.get(target.scheme) or folded.get("all")
    if proxy and target.hostname and not proxy_bypass(target.hostname):
        target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    try:
        port = target.port or (443 if target.scheme == "https" else 80)
    except ValueError:
        raise UserError(f"{url!r} is not an address", hint="check HF_ENDPOINT") from None
    if not target.hostname:
        raise UserError(f"{url!r} is not an address", hint="check HF_ENDPOINT")
    return target.hostname, port


def check_hub() -> None:
    """Whether the hub can be asked at all."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise RunFailure(
            "HF_HUB_OFFLINE is set, so the hub is not asked", hint="unset it, or give local files"
        )
    check_reachable(os.environ.get("HF_ENDPOINT") or constants.ENDPOINT)


def patiently(call: Callable[[], T], what: str, kept: Callable[[], bool] = lambda: False) -> T:
    """Try again through cut connections, wrong lengths and 429s, as long as a server asks; other answers are final.

    `kept` says whether part of it has arrived and will be used by the next attempt.
    """
    wait = 0.5
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except Exception as error:
            asked, last = _wait_asked_for(error, what), error
        if attempt + 1 == _ATTEMPTS or (asked is not None and asked > _LONGEST_WAIT):
            break
        time.sleep(wait if asked is None else asked)
        wait *= 2
    raise RunFailure(
        f"{what}: the download failed {attempt + 1} times ({first_line(last)})",
        hint="what arrived is kept: the same command continues"
        if kept()
        else "run the same command again later",
    )


def _wait_asked_for(error: Exception, what: str) -> float | None:
    """How long the server asks to wait before the next attempt, if it says so; final answers are raised."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # the server could not be asked
        return None
    if isinstance(error, errors.HFValidationError):
        raise UserError(
            f"{what} is not a hub name ({first_line(error)})", hint="write hf:owner/name"
        ) from None
    if isinstance(error, errors.GatedRepoError):
        raise UserError(
            f"{what} needs an accepted licence and a token",
            hint="accept it on its page, then `hf auth login`",
        ) from None
    if isinstance(
        error,
        errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.EntryNotFoundError,
    ):
        kind = type(error).__name__.removesuffix("NotFoundError").removeprefix("Remote").lower()
        raise UserError(
            f"the hub does not know {what} (no such {kind})",
            hint="a private set needs `hf auth login`",
        ) from None
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else None
        if status is not None and status < 500 and status not in (408, 429):
            raise RunFailure(f"{what}: the hub answered {status}", hint=first_line(error)) from None
        return _retry_after(error.response.headers if error.response is not None else {})
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        raise RunFailure(
            "the disk with the hub's cache is full",
            hint="free some space or set HF_HOME; the same command continues",
        ) from None
    if isinstance(error, OSError | RuntimeError):  # cut connections, wrong lengths, time-outs
        return None
    if type(error).__module__.split(".")[0] not in _NETWORK_MODULES:
        raise error
    return None


def _retry_after(headers: Any) -> float | None:
    try:
        return float(headers.get("Retry-After") or headers.get("retry-after"))
    except (TypeError, ValueError):
        return None
