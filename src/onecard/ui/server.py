"""Starting the server: the socket, the links that are printed, and connections that may not idle.

serve(settings, host="127.0.0.1", port=8321, say=print)
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from onecard.errors import UserError
from onecard.ui.app import application
from onecard.ui.safety import LOCAL
from onecard.ui.settings import Settings

FIRST_PORT = 8321
_PORTS_TRIED = 20


class _ImpatientProtocol(H11Protocol):
    """A connection that has not sent a whole request's head in time is closed: uvicorn itself would wait for ever."""

    header_seconds = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._deadline is None:  # the beginning of another request
            self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy and not self.transport.is_closing():
            self.transport.close()


def is_loopback(host: str) -> bool:
    return host in LOCAL or host.startswith("127.")


def open_socket(host: str, port: int | None) -> socket.socket:
    """The port asked for, or the first free one from 8321 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for trial in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, trial))
        except (OSError, OverflowError) as error:
            listening.close()
            why = error.strerror or str(error) if isinstance(error, OSError) else "no such port"
            continue
        listening.listen(256)
        return listening
    raise UserError(f"cannot listen on {host}: {why}", hint="name another --port or --host")


def outside_address() -> str:
    """This machine's address in its network, as a phone beside it would reach it; no packet is sent to find it."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect(("192.0.2.1", 9))  # an address kept for documentation
        return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    finally:
        probe.close()


def link(settings: Settings, host: str, port: int) -> str:
    """The address to open, with the token where there is one."""
    shown = outside_address() if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={settings.token}" if settings.token else "")


def make_server(settings: Settings, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """The server, not yet running; `ready` is called when the first request could be answered."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # answers that are still being computed are given up: no error, and no traceback for who pressed Ctrl-C
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            await super().shutdown(sockets)

    class Protocol(_ImpatientProtocol):
        header_seconds = settings.limits.header_seconds

    config = uvicorn.Config(
        application(settings),
        http=Protocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.limits.connections,
        h11_max_incomplete_event_size=32 * 1024,
        timeout_graceful_shutdown=2,
    )
    return Server(config)


def serve(settings: Settings, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer until Ctrl-C."""
    make_server(settings, ready).run(sockets=[listening])
