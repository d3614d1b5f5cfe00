"""A training and a model in a real browser: stopped, resumed, talked to."""

import io
import json
import os
import pickle
import random
import signal
import sys

import pytest
from ui_server import make_run

from forked import start_onecard
from onecard.cli import main
from onecard.config import load, to_toml
from onecard.runs.record import RunRecord


def small_data(folder):
    """Ids that repeat, in nanoGPT's format: enough to train on for a moment."""
    folder.mkdir()
    ids = [random.Random(5).randrange(60) for _ in range(4000)]
    content = b"".join(i.to_bytes(2, "little") for i in ids)
    for name in ("train", "val"):
        (folder / f"{name}.bin").write_bytes(content)
    letters = [chr(ord("0") + i) for i in range(64)]
    meta = {"vocab_size": 64, "itos": dict(enumerate(letters))}
    meta["stoi"] = {letter: i for i, letter in enumerate(letters)}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


# fifty steps a second: the page is what is watched
PACED = """
import time
from onecard.train.run import loop
loop.lr_at = lambda *given, real=loop.lr_at, pause=time.sleep: pause(0.02) or real(*given)
"""
STEP = "+document.querySelector('#facts [data-key=step]').textContent.replace(/\\D/g, '')"


def trained_pid(run) -> int:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))["pid"]


@pytest.fixture
def training(root, monkeypatch):
    """`onecard train` of a tiny model, which continues until it is stopped; the run's folder."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # the server is in this process, and its model tiny
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    small_data(root / "letters")
    values = (
        "n_layer=1 n_head=2 n_embd=32 block_size=32 vocab_size=64 batch_size=2 eval_interval=100 "
        "gradient_accumulation_steps=1 max_iters=1000000 eval_iters=1 compile=False device=cpu"
    )
    config = load(None, values.split()).replace(dataset=str(root / "letters"), out_dir="live")
    (root / "live.toml").write_text(to_toml(config))
    process = start_onecard("train", "live.toml", "--quiet", cwd=root, first=PACED)
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    run = RunRecord(root / "live")
    if run.state == "running":  # the one that the page resumed, after a failure of the test
        os.kill(trained_pid(run.path), signal.SIGKILL)


def test_a_real_training_arrives_is_stopped_resumed_and_talked_to(port, root, training, open_page):
    watched = open_page(port)
    page = watched.page
    watched.open("/runs")
    page.wait_for_selector('#runs [data-run="live"] .badge.running', timeout=90_000)
    page.click("#runs a")
    page.wait_for_selector("#facts [data-key=step]")
    seen = [page.evaluate(STEP)]
    while len(seen) < 4:
        page.wait_for_function(f"() => {STEP} > {seen[-1]}", timeout=60_000)
        seen.append(page.evaluate(STEP))
    page.wait_for_function(f"() => {STEP} > 110", timeout=90_000)  # a checkpoint is there
    page.wait_for_selector('#loss [data-series="train"]')
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#stop-run")
    page.wait_for_selector(".badge.stopped", timeout=60_000)
    assert training.wait(60) in (0, 130)

    # resumed, it is another process that continues from the very step
    page.wait_for_function(f"() => {STEP} > 110")
    stopped_at, first_pid = page.evaluate(STEP), trained_pid(root / "live")
    page.click("#resume-run")
    page.wait_for_selector(".badge.running", timeout=90_000)
    page.wait_for_function(f"() => {STEP} > {stopped_at}", timeout=90_000)
    assert trained_pid(root / "live") != first_pid
    page.click("#stop-run")
    page.wait_for_selector(".badge.stopped", timeout=60_000)
    log = (root / "live" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [line["step"] for line in map(json.loads, log) if line.get("kind") == "step"]
    assert steps == list(range(1, len(steps) + 1))  # nothing lost, nothing done twice
    assert "Traceback" not in (root / "live" / "resumed.txt").read_text(encoding="utf-8")

    watched.open("/talk?model=live&with=live")
    page.wait_for_function("() => document.querySelector('#model-one')?.value === 'live'")
    page.fill("#prompt", "0123")
    page.fill("#temperature", "0")
    page.fill("#max_tokens", "40")
    page.click("#generate")
    page.wait_for_function(
        "() => ['text-0', 'text-1'].every((id) => document.getElementById(id)?.textContent.length === 44)",
        timeout=60_000,
    )
    texts = [page.inner_text(f"#text-{i}") for i in (0, 1)]
    assert texts[0] == texts[1]
    watched.check()


@pytest.mark.long
def test_a_run_that_cannot_be_resumed_says_why_on_the_page(port, root, open_page):
    pytest.importorskip("torch")
    make_run(root / "empty")  # no checkpoint to continue from, and no data
    RunRecord(root / "empty").end("stopped")
    watched = open_page(port)
    page = watched.page
    watched.open("/runs?id=empty")
    page.click("#resume-run")
    page.wait_for_selector("#toast.shown", timeout=60_000)
    assert "the run did not start: " in page.inner_text("#toast")
    assert RunRecord(root / "empty").state == "stopped"


@pytest.mark.long
def test_a_chat_with_a_tuned_model_is_that_of_the_command(
    port, root, open_page, monkeypatch, capsys
):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    (root / "text.txt").write_text("a step of tokens and a loss " * 200)
    (root / "talks.jsonl").write_text('{"prompt": "a step", "completion": "of tokens"}\n' * 20)
    shape = "n_layer=1 n_head=2 n_embd=32 block_size=64 batch_size=4 gradient_accumulation_steps=1"
    short = "max_iters=20 warmup_iters=0 lr_decay_iters=20 eval_iters=1 compile=False device=cpu"
    words = [f"--{word}" for word in f"{shape} {short} dataset=toy out_dir=base".split()]
    assert main(["data", "text.txt", "--tokenizer", "bytes", "--out", "data/toy"]) == 0
    assert main(["train", *words, "--quiet"]) == 0
    assert main(["tune", "base", "talks.jsonl", "--max_iters=20", "--quiet"]) == 0
    questions = ["a step", "and"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{q}\n" for q in questions)))
    capsys.readouterr()
    wanted = ["--temperature", "0.9", "--seed", "5", "--tokens", "20", "--device", "cpu"]
    assert main(["chat", "base-chat", "--turns", "--json", *wanted]) == 0
    answers = [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]
    assert all(answers)

    watched = open_page(port)
    page = watched.page
    watched.open("/talk?model=base-chat&chat=1")
    page.wait_for_function("() => document.querySelector('#model-one')?.value === 'base-chat'")
    for key, value in (("temperature", "0.9"), ("seed", "5"), ("max_tokens", "20")):
        page.fill(f"#{key}", value)
    for number, question in enumerate(questions):
        page.fill("#prompt", question)
        page.click("#generate")
        page.wait_for_function("() => document.querySelector('#stop').disabled", timeout=60_000)
        turns = page.eval_on_selector_all("#text-0 .turn", "t => t.map((e) => e.textContent)")
        assert turns[-2] == question
        assert turns[-1].strip() == answers[number]
    watched.check()
