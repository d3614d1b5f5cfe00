"""A real server on a real socket, for tests that need one."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from onecard.ui.server import make_server, open_socket
from onecard.ui.settings import Settings


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[int]:
    """The port that it answers on."""
    ready = threading.Event()
    server = make_server(settings, ready.set)
    listening = open_socket("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert ready.wait(120)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()


def connect(port: int, seconds: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def ask_raw(port: int, request: bytes) -> bytes:
    """Whatever comes back until the other side is done."""
    with connect(port) as line:
        line.sendall(request)
        answer = b""
        with contextlib.suppress(OSError):
            while piece := line.recv(65536):
                answer += piece
                if b"\r\n\r\n" in answer and b"connection: close" not in request.lower():
                    break
        return answer
