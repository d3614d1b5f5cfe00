"""`onecard tune` as people run it: stopped and resumed, several processes, what it says before and after."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from conversations import CHAT, dialogue, write_lines
from runs_in_tests import TINY, events, losses

from onecard.cli import main
from onecard.data import open_dataset
from onecard.model.build import make_model
from onecard.model.opening import open_model
from onecard.runs.log import read_log
from onecard.train.run import loop
from onecard.train.run.loop import train
from onecard.tune.formats import UnreadableError, read_conversations


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run on bytes, and a file of conversations: answers are words reversed."""
    place = tmp_path_factory.mktemp("made")
    generator = np.random.default_rng(1)
    words = ["".join(generator.choice(list("abcdef"), 3)) for _ in range(400)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        (place / "text.txt").write_text(" ".join(words * 8))
        assert main(["data", "text.txt", "--tokenizer", "bytes", "--out", "data/toy"]) == 0
        train(TINY.replace(vocab_size=None, dataset="toy", out_dir="base", block_size=32))
    write_lines(place / "talks.jsonl", [dialogue(w, w[::-1]) for w in words])
    return place


@pytest.fixture
def base(made, tmp_path, monkeypatch):
    """The same, in a folder of its own."""
    place = tmp_path / "place"
    shutil.copytree(made, place)
    monkeypatch.chdir(place)
    return place


QUICK = ["--learning_rate=1e-3", "--quiet"]


def test_a_stopped_tuning_goes_on_to_the_same_weights(base, capsys, monkeypatch):
    assert main(["tune", "base", "talks.jsonl", "--max_iters=12", *QUICK]) == 0
    words = ["talks.jsonl", "--max_iters=12", "--eval_interval=4", "--out", "halves", *QUICK]
    straight = losses("base-chat")
    real = loop.write_sample
    seen = []

    def stop_once(session, model, step):
        if not seen:
            seen.append(step)
            os.kill(os.getpid(), signal.SIGINT)
        real(session, model, step)

    monkeypatch.setattr(loop, "write_sample", stop_once)
    assert main(["tune", "base", *words]) == 130
    assert max(losses("halves")) < 12
    assert main(["tune", "halves", "--resume", "--quiet"]) == 0
    assert losses("halves") == straight


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo under torchrun is not set up there")
def test_two_processes_tune_as_one_does(base, capsys):
    """The same packing, the windows of each step shared out, the mean over all tokens that count."""
    words = ["tune", "base", "talks.jsonl", "--max_iters=6", "--batch_size=3", *QUICK]
    words += ["--gradient_accumulation_steps=3"]  # 9 rows: 4 and 5
    assert main([*words, "--out", "one"]) == 0
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    quiet = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    env = {**os.environ, **quiet}
    command = [*start, "-m", "onecard", *words, "--out", "two"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert list(losses("two").values()) == pytest.approx(list(losses("one").values()), rel=1e-5)
    one, two = (open_dataset(f"{out}/conversations").splits["train"] for out in ("one", "two"))
    assert np.array_equal(one.read(0, one.tokens), two.read(0, two.tokens))


def test_the_log_shows_what_was_forgotten_of_the_bases_text(base, capsys):
    """Before the first step the loss on the base's text is the base's own, to rounding."""
    assert main(["tune", "base", "talks.jsonl", "--keep-base", "20%", *QUICK]) == 0
    evaluations = [line for line in read_log("base-chat/log.jsonl") if line["kind"] == "eval"]
    assert evaluations[0]["step"] == 0
    known = [line for line in read_log("base/log.jsonl") if line["kind"] == "eval"][-1]
    full = open_dataset("base-chat/conversations").splits["base"].tokens // 32
    assert full * 32 >= known["eval_tokens"]
    assert evaluations[0]["base_val_loss"] == pytest.approx(known["val_loss"], rel=0.1)
    assert all("base_val_loss" in line for line in evaluations)
    data = open_dataset("base-chat/conversations")
    rows = data.splits["train"].read(0, data.splits["train"].tokens - 1).reshape(-1, 32)
    of_text = (rows != CHAT.special["<|user|>"]).all(axis=1).mean()
    assert of_text == pytest.approx(0.2, abs=0.02)
    assert {e["event"] for e in events("base-chat")} == {"preflight"}
    capsys.readouterr()
    assert main(["explain", "base-chat", "--json"]) == 0
    rules = [finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert {"forgotten", "forgotten-much", "not-forgotten"} & set(rules)
    assert main(["compare", "base", "base-chat"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "base's own validation text" in shown
    assert "base-chat was tuned from base" in shown
    before, after = (evaluations[place]["base_val_loss"] for place in (0, -1))
    assert f"{before:.4f} → {after:.4f}" in shown
    assert "changed together" not in shown
    assert main(["compare", "base", "base-chat", "--full"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "counts the assistant's words alone" in shown


def test_it_says_beforehand_what_there_is(base, capsys):
    write_lines(base / "copies.jsonl", [dialogue(f"q{n % 14}", f"a{n % 14}") for n in range(1000)])
    assert main(["tune", "base", "copies.jsonl", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "1,000 conversations, 14 distinct",
        "learned from",
        "form of an answer",
        "Memory",
    ):
        assert words in shown
    assert not (base / "base-chat").exists()
    assert main(["tune", "base", "copies.jsonl", "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["conversations"], answer["distinct"]) == (1000, 14)
    assert 0 < answer["learned_tokens"] < answer["tokens"]
    assert main(["tune", "base", "copies.jsonl", "--dry-run", "--explain"]) == 0
    assert "a tenth of" in capsys.readouterr().out


def test_shares_of_several_files_are_shares_of_tokens(base, capsys):
    write_lines(base / "more.jsonl", [dialogue("x" * (n % 9 + 1), "y") for n in range(300)])
    files = ["talks.jsonl=75%", "more.jsonl=25%"]
    assert main(["tune", "base", *files, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [f["share"] for f in answer["files"]] == pytest.approx([0.75, 0.25], abs=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no file of conversations"),
        (["missing.jsonl"], "there is no file"),
        (["broken.jsonl"], "no conversation that can be learned from"),
        (["empty.jsonl"], "holds no conversation"),
        (["talks.jsonl=-5%", "more.jsonl=105%"], "share of -5%"),
        (["talks.jsonl=100%", "broken.jsonl=100%", "empty.jsonl=100%"], "add up to 300%"),
        (["talks.jsonl", "--keep-base", "-1%"], "--keep-base"),
        (["talks.jsonl", "--keep-base", "95%"], "leaves nothing"),
        (["talks.jsonl", "--epochs", "0"], "--epochs"),
        (["talks.jsonl", "--n_layer=3"], "follows from the base"),
        (["talks.jsonl", "--base-data", "nowhere"], "no data set"),
    ],
)
def test_bad_wishes_get_one_sentence(base, capsys, words, message):
    (base / "broken.jsonl").write_text('{"messages": [\n{oops\n')
    (base / "empty.jsonl").write_text("\n")
    assert main(["tune", "base", *words]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors
    assert not (base / "base-chat").exists()
    found = [error for _, error in read_conversations(base / "broken.jsonl")]
    assert all(isinstance(error, UnreadableError) for error in found)


def test_released_weights_and_nanogpts_checkpoint_are_tuned_too(tmp_path, monkeypatch, capsys):
    """A table of 50,257 rows grows to 50,304; nanoGPT's has the room. The new rows are the mean before the first step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    monkeypatch.chdir(tmp_path)
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 16}
    theirs = GPT2LMHeadModel(GPT2Config(n_positions=64, **shape))
    theirs.save_pretrained(tmp_path / "released")
    args = {**shape, "block_size": 64, "bias": False, "vocab_size": 50304}
    model = make_model(TINY.replace(**args, dropout=0.0))
    (tmp_path / "nano").mkdir()
    torch.save({"model": model.state_dict(), "model_args": args}, tmp_path / "nano" / "ckpt.pt")
    write_lines(
        tmp_path / "t.jsonl", [dialogue("Hello there", "General"), dialogue("One", "Two")] * 4
    )
    for source, out in (("released", "released-chat"), ("nano/ckpt.pt", "nano-chat")):
        words = ["--max_iters=1", "--learning_rate=1e-12", "--compile=False", "--quiet"]
        assert main(["tune", source, "t.jsonl", *words]) == 0
        tuned = open_model(out, "cpu")
        table = tuned.model.transformer.wte.weight
        assert table.shape[0] == 50304
        assert tuned.tokenizer.special["<|system|>"] == 50257
        mean = table[:50257].mean(dim=0)
        assert torch.allclose(table[50257:50261], mean.expand(4, -1), atol=1e-6)
