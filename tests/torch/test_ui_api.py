"""The OpenAI-compatible API: greedy text is `onecard sample`'s, streams, queues, bounds; OpenAI's own client works."""

import json
import os
import pickle
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from runs_in_tests import TINY
from starlette.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
from ui_server import connect, running

from onecard.cli import main
from onecard.config import load
from onecard.train.run.loop import train
from onecard.ui.app import application
from onecard.ui.settings import Limits, Settings
from run_folders import new_folder

PROMPT = "0123"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with one trained run, `run`, whose letters are those of a dialogue and some more."""
    place = tmp_path_factory.mktemp("trained")
    ids = np.random.default_rng(7).integers(0, 60, 4000).astype("<u2")
    (place / "letters").mkdir()
    for name in ("train", "val"):
        ids.tofile(place / "letters" / f"{name}.bin")
    letters = sorted(set("User:Assistant\n 0123"))
    letters += [c for c in map(chr, range(33, 127)) if c not in letters][: 64 - len(letters)]
    numbered = dict(enumerate(letters))
    meta = {"vocab_size": 64, "itos": numbered, "stoi": {c: i for i, c in numbered.items()}}
    (place / "letters" / "meta.pkl").write_bytes(pickle.dumps(meta))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        train(TINY.replace(dataset="letters", out_dir="run"))
    return place


@pytest.fixture
def root(trained, tmp_path, monkeypatch):
    """A copy of it, where the test is."""
    place = tmp_path / "here"
    shutil.copytree(trained, place)
    monkeypatch.chdir(place)
    return place.resolve()


@pytest.fixture
def app(root):
    return application(Settings(root=root, device="cpu", limits=Limits(queue=2)))


@pytest.fixture
def client(app):
    return TestClient(app, base_url="http://localhost")


def sampled(capsys, *words) -> list[str]:
    capsys.readouterr()
    command = ["sample", "run", PROMPT, "--tokens", "30", "--device", "cpu", "--json", *words]
    assert main(command) == 0
    return json.loads(capsys.readouterr().out)["texts"]


def lines(answer) -> list[dict]:
    return [
        json.loads(line[6:])
        for line in answer.text.split("\n\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]


def test_greedy_text_is_that_of_the_command_streamed_or_not(client, capsys):
    asked = {"model": "run", "prompt": PROMPT, "max_tokens": 30, "temperature": 0}
    whole = client.post("/v1/completions", json=asked).json()
    (wanted,) = sampled(capsys, "--temperature", "0")
    assert whole["choices"][0]["text"] == wanted
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 30
    pieces = lines(client.post("/v1/completions", json={**asked, "stream": True}))
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == wanted


def test_seeds_choices_and_stops_are_the_commands(client, capsys):
    asked = {
        "model": "run",
        "prompt": PROMPT,
        "max_tokens": 30,
        "temperature": 0.9,
        "seed": 5,
        "n": 3,
    }
    texts = [c["text"] for c in client.post("/v1/completions", json=asked).json()["choices"]]
    assert texts == sampled(capsys, "--temperature", "0.9", "--seed", "5", "--n", "3")
    stop = texts[0][4]
    stopped = client.post("/v1/completions", json={**asked, "n": 1, "stop": stop}).json()[
        "choices"
    ][0]
    assert stopped["text"] == texts[0].partition(stop)[0]
    assert stopped["finish_reason"] == "stop"


def test_two_at_once_get_their_own_texts(root, client):
    from concurrent.futures import ThreadPoolExecutor

    asked = [
        {"model": "run", "prompt": p, "max_tokens": 60, "temperature": 0.9, "seed": 3}
        for p in "0123"
    ]
    alone = [
        client.post("/v1/completions", json=each).json()["choices"][0]["text"] for each in asked
    ]
    with running(Settings(root=root, device="cpu")) as port, ThreadPoolExecutor(4) as pool:
        import urllib.request

        def post(body):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["choices"][0]["text"]

        assert list(pool.map(post, asked)) == alone


def test_the_real_openai_client(root):
    openai = pytest.importorskip("openai")
    with (
        running(Settings(root=root, device="cpu", token="a-token-of-some-length")) as port,
        openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="a-token-of-some-length"
        ) as client,
    ):
        assert [model.id for model in client.models.list()] == ["run"]
        asked = {"model": "run", "prompt": PROMPT, "max_tokens": 20, "temperature": 0}
        whole = client.completions.create(**asked).choices[0].text
        streamed = client.completions.create(**asked, stream=True)
        assert "".join(piece.choices[0].text for piece in streamed) == whole != ""
        talk = client.chat.completions.create(
            model="run", messages=[{"role": "user", "content": "00"}], max_tokens=8, stream=True
        )
        assert [piece.choices[0].finish_reason for piece in talk][-1] == "length"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(**{**asked, "model": "nowhere"})


def test_a_disconnected_client_stops_its_generation(root):
    settings = Settings(root=root, device="cpu", limits=Limits(tokens=1_000_000))
    body = json.dumps(
        {"model": "run", "prompt": "0", "max_tokens": 1_000_000, "stream": True}
    ).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    for streaming in (True, False):
        sent = body if streaming else body.replace(b"true", b"null")
        with running(settings) as port:
            with connect(port, 60) as line:
                line.sendall(head.encode() + sent)
                if streaming:
                    assert b"200 OK" in line.recv(4096)
                time.sleep(0.5)
            # the one place is free again: another request is answered long before a million tokens are drawn
            with connect(port, 60) as line:
                short = json.dumps({"model": "run", "prompt": "0", "max_tokens": 2}).encode()
                line.sendall(head.replace(str(len(body)), str(len(short))).encode() + short)
                assert b"200 OK" in line.recv(4096)


def test_a_full_queue_is_said(app, client):
    import asyncio

    from onecard.ui.generations import Busy, Generations, Job

    async def fill():
        generations = Generations(None, most_waiting=2)
        generations._thread = object()  # nobody works
        for _ in range(2):
            generations.submit(Job("run", ["0"], {}, 1))
        with pytest.raises(Busy):
            generations.submit(Job("run", ["0"], {}, 1))

    asyncio.run(fill())


WRONG = (
    {"max_tokens": 0},
    {"max_tokens": 10**9},
    {"max_tokens": "many"},
    {"n": 1000},
    {"temperature": -1},
    {"temperature": "hot"},
    {"top_p": 0},
    {"top_k": 1.5},
    {"stop": ["x"] * 100},
    {"stop": [5]},
    {"prompt": [1, 2]},
    {"prompt": "x" * 300_000},
    {"prompt": []},
    {"seed": 10**30},
)


def test_requests_out_of_bounds_are_refused(client):
    for wrong in WRONG:
        answer = client.post("/v1/completions", json={"model": "run", "prompt": "0", **wrong})
        assert answer.status_code == 400, wrong
        assert answer.json()["error"]["message"]


def test_an_export_of_the_modern_recipe_talks_without_its_python(root, capsys):
    modern = TINY.replace(
        recipe="modern",
        optimizer="muon",
        tied=False,
        dataset="letters",
        out_dir="modern",
    )
    train(modern)
    assert main(["export", "modern", "--to", "hf", "--out", "exported"]) == 0
    for file in Path("exported").glob("*.py"):
        file.write_text("raise SystemExit('executed')")
    client = TestClient(application(Settings(root=root, device="cpu")), base_url="http://localhost")
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["exported", "modern", "run"]
    asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0}
    texts = [
        client.post("/v1/completions", json={**asked, "model": name}).json()["choices"][0]["text"]
        for name in ("exported", "modern")
    ]
    assert texts[0] == texts[1] != ""


@pytest.fixture
def bare(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "secret").mkdir()
    root = (tmp_path / "runs").resolve()
    return root, TestClient(application(Settings(root=root)), base_url="http://localhost")


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_with_a_link_that_leads_out_is_not_opened(bare, file):
    root, client = bare
    folder = root / "exported"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / file).unlink()
    (root.parent / "secret" / file).write_text("{}")
    (folder / file).symlink_to(root.parent / "secret" / file)
    answer = client.post("/v1/completions", json={"model": "exported", "prompt": "x"})
    assert answer.status_code == 400
    assert "leads out" in answer.json()["error"]["message"]


def test_a_model_whose_run_names_data_elsewhere_is_not_opened(bare, monkeypatch):
    root, client = bare
    monkeypatch.chdir(root)
    config = load("gpt2", ["dataset=/etc"])
    new_folder(root / "far", config)
    (root / "far" / "log.jsonl").write_text("")
    (root / "far" / "checkpoints" / "step_00000001").mkdir()
    answer = client.post("/v1/completions", json={"model": "far", "prompt": "x"})
    assert answer.status_code == 400
    assert "outside" in answer.json()["error"]["message"]
