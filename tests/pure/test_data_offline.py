"""Estimates, named sets and no network."""

import io
import threading
import time
from pathlib import Path

import pytest
from data_texts import corpus, documents, write_jsonl, write_parquet

from onecard.cli import main
from onecard.data import (
    open_dataset,
    prepare,
)
from onecard.data.read.shard_files import header
from onecard.errors import RunFailure, UserError


def test_the_estimate_of_a_parquet_and_its_bar(tmp_path: Path) -> None:
    from onecard.data.preparation.pipeline import sized

    texts = [text * 3 for text in documents(3000, 1, 200)]
    source = write_parquet(tmp_path / "x.parquet", texts, notes=["n" * 50] * 3000)
    size, _ = sized([str(source)], tokenizer="bytes")
    events = []
    made = prepare(
        [str(source)], tmp_path / "a", workers=1, tokenizer="bytes", progress=events.append
    )
    assert size.tokens == pytest.approx(made.tokens, rel=0.05)
    half = made.tokens // 2
    prepare(
        [str(source)], tmp_path / "b", half, workers=1, tokenizer="gpt2", progress=events.append
    )
    for event in events:
        assert event.done <= event.total
    whole = [event for event in events if event.stage == "tokenising" and event.done]
    assert (
        min(event.done / event.total for event in whole) < 0.9
    )  # the rest is counted from the first
    assert whole[-1].done == pytest.approx(whole[-1].total, rel=0.05)
    lines = write_jsonl(tmp_path / "y.jsonl", texts[:500], padding="p" * 2000)
    size, _ = sized([str(lines)], tokenizer="bytes")
    made = prepare([str(lines)], tmp_path / "c", workers=1, tokenizer="bytes")
    assert size.tokens == pytest.approx(made.tokens, rel=0.1)


def test_prose_is_estimated_within_a_tenth() -> None:
    from onecard.data.preparation.pipeline import sized

    size, _ = sized([str(corpus("prose.parquet"))])
    assert size.tokens == pytest.approx(5_470_000, rel=0.1)


def test_shakespeare_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("To be, or not to be\n" * 100)
    assert main(["data", "shakespeare_char=input.txt", "--workers", "1"]) == 0
    data = open_dataset("shakespeare_char")
    assert data.layout.tokenizer is not None
    assert (data.layout.tokenizer["name"], data.eot) == ("chars", None)
    assert data.splits["train"].tokens == 1800
    assert main(["data", "shakespeare_char=nothing.txt"]) == 2


def test_shakespeare_from_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded once, checked, kept: then no network is needed."""
    import http.server

    from onecard.facts import datasets

    text = corpus("tinyshakespeare.txt").read_bytes()
    sent = [text[:-1] + b"?", text]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = sent.pop(0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    facts = datasets.find_dataset("shakespeare_char")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/input.txt"
        named = datasets.DatasetFacts(**{**facts.__dict__, "url": url})
        monkeypatch.setattr(datasets, "all_datasets", lambda: (named,))
        with pytest.raises(RunFailure, match="is not shakespeare_char's text"):
            prepare(["shakespeare_char"], workers=1)
        made = prepare(["shakespeare_char"], workers=1)
        server.shutdown()
    assert [made.splits[name]["tokens"] for name in ("train", "val")] == [1_003_854, 111_540]
    assert prepare(["shakespeare_char"], tmp_path / "again", workers=1).tokens == made.tokens


@pytest.mark.parametrize("words", [["fineweb-edu"], ["fineweb-edu", "--dry-run"], ["hf:me/set"]])
def test_without_a_network_it_fails_at_once_and_leaves_nothing(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "HF_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    began = time.monotonic()
    assert main(["data", *words]) == 1
    assert time.monotonic() - began < 15
    message = capsys.readouterr().err
    assert "127.0.0.1 cannot be reached" in message
    assert "kept" not in message
    assert not list(tmp_path.glob("data/*"))


def test_failed_folders_are_not_listed_as_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("failed", "unfinished", "whole"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "unfinished" / ".work").mkdir()
    (tmp_path / "data" / "unfinished" / "x_train_000001.bin").write_bytes(header(1) + b"\0\0")
    (tmp_path / "data" / "whole" / "train.bin").write_bytes(b"\0\0")
    with pytest.raises(UserError) as caught:
        open_dataset("other")
    assert caught.value.hint == "prepared here: whole"


def test_a_server_that_accepts_and_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onecard.data.sources import network

    monkeypatch.setattr(network, "_CONNECT_SECONDS", 0.2)
    answer = threading.Event()
    monkeypatch.setattr(
        network.socket, "create_connection", lambda *_: answer.wait(60) and io.BytesIO()
    )
    with pytest.raises(RunFailure, match="no answer within"):
        network.check_reachable("https://hub.example")
    answer.set()


@pytest.mark.parametrize(
    ("url", "proxies", "address"),
    [
        ("https://hub.example/sets", {}, ("hub.example", 443)),
        ("http://hub.example", {}, ("hub.example", 80)),
        ("http://hub.example:8080", {}, ("hub.example", 8080)),
        (
            "https://hub.example",
            {"https_proxy": "http://gate.example:3128"},
            ("gate.example", 3128),
        ),
        ("https://hub.example", {"ALL_PROXY": "gate.example"}, ("gate.example", 80)),
    ],
)
def test_the_address_that_is_asked_first(url: str, proxies: dict, address: tuple) -> None:
    from onecard.data.sources import network

    assert network._address(url, proxies) == address
