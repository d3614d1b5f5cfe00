"""`onecard export --push` and models and items by their hub names, against a local hub server."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from runs_in_tests import TINY

from forked import start_onecard

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
from hub_server import Hub

from onecard.data import prepare
from onecard.train.run.loop import train

ITEMS = Path(__file__).parents[1] / "items"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    words = ["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", "on", "the", "log"]
    text = " ".join(random.Random(1).choice(words) for _ in range(4000))
    (place / "text.txt").write_text(text)
    prepare(
        [str(place / "text.txt")],
        out=place / "data",
        tokenizer="bpe:300",
        val_fraction=0.1,
        workers=1,
    )
    base = TINY.replace(vocab_size=None, dropout=0.0, max_iters=2, lr_decay_iters=2)
    train(base.replace(dataset=str(place / "data"), out_dir=str(place / "out")))
    return place / "out"


OFFLINE = None


def onecard(url, home, *words):
    environment = {
        **os.environ,
        **({"HF_ENDPOINT": url} if url is not OFFLINE else {"HF_HUB_OFFLINE": "1"}),
        "HF_HOME": str(home),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_ETAG_TIMEOUT": "2",
    }
    process = start_onecard(*words, env=environment, cwd=home)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def push(hub, run, target, name, *more):
    words = ("export", run, "--to", "hf", "--out", target, "--push", name, *more)
    return onecard(hub.url, target.parent, *words)


def test_a_pushed_model_is_private_and_serves_with_items_of_the_hub_offline_too(run, tmp_path):
    words = ("eval", "me/tiny", "--text", run.parent / "text.txt", "--bytes", "1k")
    words = (*words, "--lambada", "--device=cpu", "--again")
    with Hub() as hub:
        done = push(hub, run, tmp_path / "m", "me/tiny")
        assert done.returncode == 0, done.stderr
        assert hub.private == {"me/tiny": True}
        sent = hub.commits["me/tiny", hub.main["me/tiny"]]
        for name in ("model.safetensors", "config.json", "README.md", "tokenizer.json"):
            assert sent[name] == (tmp_path / "m" / name).read_bytes()
        assert any(path.startswith("PUT /lfs/") for path in hub.asked)
        lines = (ITEMS / "lambada.jsonl").read_bytes().splitlines(keepends=True)[:4]
        hub.commit("EleutherAI/lambada_openai", {"data/lambada_test_en.jsonl": b"".join(lines)})
        online = onecard(hub.url, tmp_path, *words)
        assert online.returncode == 0, online.stderr
        assert "4 of 5,153 items" in online.stdout
    offline = onecard(OFFLINE, tmp_path, *words)
    assert offline.returncode == 0, offline.stderr
    assert offline.stdout == online.stdout
    gone = onecard(OFFLINE, tmp_path, "eval", run, "--hellaswag")
    assert gone.returncode == 2
    assert "the items of hellaswag are not here" in gone.stderr


@pytest.mark.long
def test_a_model_is_public_only_on_request_and_a_refusal_keeps_the_folder(run, tmp_path):
    with Hub() as hub:
        assert push(hub, run, tmp_path / "n", "me/p", "--public").returncode == 0
        assert hub.private == {"me/p": False}
        hub.uploads_refused = True
        refused = push(hub, run, tmp_path / "o", "me/q")
        assert refused.returncode == 2
        assert "the hub refused" in refused.stderr
        assert (tmp_path / "o" / "config.json").is_file()  # written, to be sent later
    gone = onecard(OFFLINE, tmp_path, "eval", "me/other", "--text", run.parent / "text.txt")
    assert gone.returncode == 2
    assert "the hub did not give one" in gone.stderr
    nobody = "http://127.0.0.1:9"
    gone = onecard(nobody, tmp_path, "eval", "gpt2", "--text", run.parent / "text.txt")
    assert gone.returncode == 2
    assert len(gone.stderr.splitlines()) == 2, gone.stderr  # a sentence and a hint, no retries
