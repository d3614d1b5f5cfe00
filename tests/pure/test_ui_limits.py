"""What the server bears: sizes, slowness, numbers of connections and of logs."""

import contextlib
import time

import pytest
from starlette.testclient import TestClient
from test_ui_safety import ADDRESS, JUNK_LOGS
from ui_server import ask_raw, connect, make_run, running

from onecard.ui.app import application
from onecard.ui.settings import Limits, Settings


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path / "good")
    return tmp_path.resolve()


def test_bodies_are_bounded(root):
    limits = Limits(body_bytes=1000, log_bytes=2000)
    client = TestClient(application(Settings(root=root, limits=limits)), base_url=ADDRESS)
    large = b"x" * 1001
    assert client.post("/v1/completions", content=large).status_code == 413
    assert client.post("/api/logs?name=a", content=large * 2).status_code == 413
    assert client.post("/v1/completions", content=iter([large])).status_code == 413  # chunked
    assert client.post("/api/logs?name=a", content=large).status_code == 422  # no log, but read


def test_slow_clients_are_let_go_and_others_answered(root):
    """A silent one, one in the middle of its head, one in the middle of its body."""
    limits = Limits(header_seconds=1.0, body_seconds=1.0)
    with running(Settings(root=root, limits=limits)) as port, contextlib.ExitStack() as lines:
        silent, half, body = (lines.enter_context(connect(port)) for _ in range(3))
        half.sendall(b"GET / HTTP/1.1\r\nHost: local")
        body.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        )
        assert b"200 OK" in ask_raw(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent.recv(100) == b""  # closed; the socket's own limit of a minute would raise
        assert half.recv(100) == b""
        assert b" 408 " in body.recv(1000)


def test_two_hundred_connections_do_not_keep_the_next_one_out(root):
    with running(Settings(root=root)) as port:
        lines = [connect(port) for _ in range(200)]
        for line in lines[::2]:
            line.sendall(b"GET /api/runs/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.5)
        answer = ask_raw(
            port, b"GET /api/plan?gpu=RTX+4070&preset=gpt2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert b"200 OK" in answer
        for line in lines:
            line.close()


def test_a_reader_that_takes_nothing_is_given_up(root):
    from onecard.ui.safety import Gone, _with_headers

    async def never(message):
        import asyncio

        await asyncio.sleep(60)

    async def send():
        await _with_headers(never, 0.05)({"type": "http.response.body", "body": b"x"})

    import asyncio

    with pytest.raises(Gone):
        asyncio.run(send())


def test_dropped_logs_are_kept_as_figures_and_bounded(root):
    client = TestClient(
        application(Settings(root=root, limits=Limits(dropped_logs=3))), base_url=ADDRESS
    )
    log = "\n".join(
        f"iter {i}: loss {5 - i / 100:.4f}, time 100.00ms, mfu 10.00%" for i in range(50)
    )
    for number in range(6):
        answer = client.post(f"/api/logs?name=../../etc/{number}.log", content=log.encode())
        assert answer.status_code == 200
    rows = [row for row in client.get("/api/runs").json()["runs"] if row["state"] == "log"]
    assert [row["id"] for row in rows] == ["log:4", "log:5", "log:6"]
    compared = client.get("/api/compare", params=[("run", "log:5"), ("run", "log:6")])
    assert compared.json()["sections"]
    client.delete("/api/logs?name=log:5")
    assert client.get("/api/compare?run=log:5&run=log:6").status_code == 422
    for junk in JUNK_LOGS:
        assert client.post("/api/logs?name=x.log", content=junk).status_code == 422
