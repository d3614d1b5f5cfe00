"""Attacks on the server: paths, hosts, origins, tokens, sizes, slowness, numbers of connections, hostile names."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from ui_server import ask_raw, make_run, running

from onecard.facts.prices import electricity
from onecard.runs.record import RunRecord
from onecard.ui.app import application
from onecard.ui.run_watch import RunWatch
from onecard.ui.settings import Settings

ADDRESS = "http://localhost"
TOKEN = "a-token-of-some-length"
WRONG_TOKENS = ("", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper())
JUNK = (b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"model": 5}')
JUNK_LOGS = (b"", b"\0" * 1000, b"PK\x03\x04" * 100, os.urandom(5000))


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "runs"
    place.mkdir()
    make_run(place / "good")
    (tmp_path / "secret").mkdir()
    make_run(tmp_path / "secret" / "private")
    return place.resolve()


@pytest.fixture
def client(root):
    return TestClient(application(Settings(root=root)), base_url=ADDRESS)


def names(client) -> list[str]:
    return [row["id"] for row in client.get("/api/runs").json()["runs"]]


ESCAPES = [
    "../secret/private",
    "..",
    "/etc",
    "/etc/passwd",
    "good/../../secret/private",
    "good/..",
    "./good",
    "good/",
    "good\0",
    "..\\secret\\private",
    "%2e%2e/secret/private",
    "%2e%2e%2fsecret",
    "....//secret",
    "file:///etc/passwd",
    "~",
    "~root",
    "log:1/../../secret",
    "",
    "good/log.jsonl",
    "good/checkpoints",
    "C:\\Windows",
    "\\\\host\\share",
    "x" * 5000,
    "\ud83d\ude00",
]


@pytest.mark.parametrize("name", ESCAPES, ids=ascii)
def test_no_name_leads_out_of_the_folder(client, name):
    name = name.encode("utf-16", "surrogatepass").decode("utf-16")
    for address in ("/api/run/live", "/api/run/zoom?from=0&to=5"):
        answer = client.get(address, params={"id": name, "from": "0", "to": "5"})
        assert answer.status_code == 422, address
    compared = client.get("/api/compare", params=[("run", "good"), ("run", name)])
    assert compared.status_code == 422
    asked = client.post("/v1/completions", json={"model": name, "prompt": "x"})
    assert asked.status_code == 404


STATIC = [
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static//etc/passwd",
    "/static/..%5capp.py",
    "/../../etc/passwd",
    "//etc/passwd",
    "/static/%00",
]


@pytest.mark.parametrize(
    "address",
    STATIC,
)
def test_no_address_leads_out_of_the_static_files(root, address):
    with running(Settings(root=root)) as port:
        request = f"GET {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        status = ask_raw(port, request.encode()).split(b" ", 2)[1]
    assert status in (b"404", b"400")


LINKS = ["folder", "log.jsonl", "config.toml", "plan.json", "checkpoints"]


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("what", LINKS)
def test_links_that_lead_out_make_no_run(client, root, what):
    outside = root.parent / "secret" / "private"
    if what == "folder":
        (root / "linked").symlink_to(outside)
    else:
        make_run(root / "linked")
        place = root / "linked" / what
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
        (outside / what).touch() if not (outside / what).exists() else None
        place.symlink_to(outside / what)
    assert names(client) == ["good"]
    assert client.get("/api/run/live", params={"id": "linked"}).status_code == 422


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_link_within_the_folder_is_a_run(client, root):
    make_run(root / "other")
    (root / "other" / "log.jsonl").unlink()
    (root / "other" / "log.jsonl").symlink_to(root / "good" / "log.jsonl")
    assert names(client) == ["good", "other"]


HOSTS = [
    "evil.example",
    "evil.example:8321",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "192.168.1.5",
    "0.0.0.0",
    "[::2]",
    "",
    "localhost:8321:evil",
    "evil.example#localhost",
    "evil@localhost.example",
]


@pytest.mark.parametrize(
    "host",
    HOSTS,
)
def test_a_forged_host_is_refused(client, host):
    for address in ("/", "/api/plan", "/api/runs", "/v1/models", "/static/page.js"):
        answer = client.get(address, headers={"host": host})
        assert answer.status_code == 403, address


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8321", "[::1]:8321", "LOCALHOST:1"])
def test_the_loopbacks_own_names_are_good(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


SITES = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:9999"},
    {"origin": "http://localhost.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
]


@pytest.mark.parametrize(
    "headers",
    SITES,
    ids=str,
)
def test_requests_of_other_sites_are_refused(client, headers):
    for method, address in (
        ("GET", "/api/runs"),
        ("POST", "/api/logs?name=x"),
        ("POST", "/v1/completions"),
        ("POST", "/api/run/stop?id=good"),
        ("DELETE", "/api/logs?name=x"),
    ):
        assert client.request(method, address, headers=headers).status_code == 403


def test_a_link_from_another_site_may_open_the_page(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/plan?gpu=RTX+4070", headers=headers).status_code == 200


def test_where_others_can_reach_it_every_request_needs_the_token(root):
    settings = Settings(root=root, token=TOKEN, any_address=True)
    client = TestClient(application(settings), base_url="http://192.168.1.5:8321")
    for address in ("/", "/api/runs", "/v1/models", "/static/page.js", "/api/plan"):
        assert client.get(address).status_code == 401
        for wrong in WRONG_TOKENS:
            given = {"authorization": f"Bearer {wrong}"}
            assert client.get(address, headers=given).status_code == 401
        good = {"authorization": f"Bearer {TOKEN}"}
        assert client.get(address, headers=good).status_code in (200, 422)
    assert client.post(f"/v1/completions?token={TOKEN}", json={}).status_code == 401
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_the_links_token_becomes_a_cookie_and_leaves_the_address(root):
    settings = Settings(root=root, token=TOKEN, any_address=True)
    client = TestClient(application(settings), base_url="http://192.168.1.5:8321")
    moved = client.get(f"/plan?token={TOKEN}&gpu=cpu", follow_redirects=False)
    assert moved.status_code == 303
    assert moved.headers["location"] == "/plan?gpu=cpu"
    cookie = moved.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/runs").status_code == 200
    away = client.get(f"//evil.example/x?token={TOKEN}", follow_redirects=False)
    assert not away.headers["location"].startswith("//")


def test_every_answer_carries_the_policy(client):
    for address in ("/", "/api/runs", "/static/page.js", "/nowhere", "/v1/models", "/api/run/live"):
        policy = client.get(address).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get(address, headers={"host": "x"}).headers["x-frame-options"] == "DENY"


def test_the_page_has_no_inline_script_or_style(client):
    page = client.get("/").text
    assert "<style" not in page
    assert " style=" not in page
    assert " onclick=" not in page
    scripts = page.split("<script")[1:]
    assert all(
        "src=" in s.partition(">")[0] or "application/json" in s.partition(">")[0] for s in scripts
    )


def test_untrusted_names_and_texts_stay_text(root):
    folder = root / "<script>alert(1)<"
    make_run(folder)
    client = TestClient(application(Settings(root=root)), base_url=ADDRESS)
    row = client.get("/api/runs").json()["runs"][0]
    assert row["name"] == "<script>alert(1)<"  # JSON; the page sets it as text
    page = client.get("/").text
    assert "alert(1)" not in page


HOSTILE_NAMES = [
    "\x1b[2J\x1b]0;title\x07",
    "\u202egpj.exe",
    "a\rb",
    "\x9b31m",
    "<b>&amp;",
    "\x7f\x08\x08",
]


@pytest.mark.skipif(os.name == "nt", reason="such names cannot be there")
@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_escapes_in_names_and_logs_are_shown_as_text(root, name):
    make_run(root / name)
    client = TestClient(application(Settings(root=root)), base_url=ADDRESS)
    shown = next(r["name"] for r in client.get("/api/runs").json()["runs"] if r["id"] == name)
    words = client.get("/api/compare", params=[("run", name), ("run", "good")]).json()
    refused = client.get("/api/run/live", params={"id": name + "x"}).json()["error"]["message"]
    for text in (shown, words["subtitle"], refused):
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in text)
    watch = RunWatch(root / name, electricity("WORLD"))
    watch.advance()
    assert not any(c in watch.events[0]["text"] for c in "\x1b\u202e")


def test_the_counts_in_the_docs_are_these():
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    counts = " ".join(page.partition("## The page and its API")[2].partition("|")[0].split())
    for number, words in (
        (len(ESCAPES), "names that lead out"),
        (len(STATIC), "addresses of static files"),
        (len(LINKS), "+ 3 links"),
        (len(HOSTS), "forged hosts"),
        (len(SITES), "kinds of requests by other sites"),
        (len(WRONG_TOKENS), "wrong tokens"),
        (len(JUNK), "junk bodies"),
        (len(JUNK_LOGS), "junk logs"),
        (len(HOSTILE_NAMES), "names with HTML or terminal escapes"),
    ):
        assert f" {number} {words}" in f" {counts}", words


def test_junk_requests_are_answered_in_a_sentence(client):
    for body in JUNK:
        answer = client.post("/v1/completions", content=body)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"]


def test_an_outsider_cannot_stop_or_resume_a_run(client):
    for action in ("stop", "resume", "delete"):
        answer = client.post(f"/api/run/{action}?id=good")
        assert answer.status_code == 422
        assert "--control" in answer.json()["error"]["hint"]


def test_control_signals_nobody_but_the_runs_own_process(root):
    client = TestClient(application(Settings(root=root, control=True)), base_url=ADDRESS)
    (root / "good" / "run.json").write_text(
        json.dumps({"state": "running", "pid": os.getpid(), "host": socket.gethostname()})
    )
    answer = client.post("/api/run/stop?id=good")  # nobody holds its lock: it is dead
    assert answer.status_code == 422
    record = RunRecord(root / "good")
    record.claim()
    try:
        for pid in (os.getpid(), 1, os.getppid(), -1, 0):
            (root / "good" / "run.json").write_text(
                json.dumps({"state": "running", "pid": pid, "host": socket.gethostname()})
            )
            assert client.post("/api/run/stop?id=good").status_code == 422
    finally:
        record.release()
