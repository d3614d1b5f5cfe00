"""A real server on a real socket, for tests that need one, and runs to show."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from onecard.config import load
from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord
from onecard.ui.server import make_server, open_socket
from onecard.ui.settings import Settings
from run_folders import new_folder

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\u202e"


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


def make_run(path: Path, steps: int = 5) -> RunRecord:
    record = new_folder(path, load("gpt2", ["max_iters=100", "warmup_iters=5"]))
    log = LogWriter(path / "log.jsonl")
    for step in range(1, steps + 1):
        log.write(kind="step", step=step, tokens=step * 1024, loss=5.0 - step / 100, seconds=step)
    log.write(kind="event", step=steps, event="preflight", text=HOSTILE)
    log.close()
    return record
