"""Losses booked to the source each token comes from; runs lengthened from before their decay."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from onecard.config import RunConfig, load
from onecard.config.model_rules import decay_start
from onecard.config.recipes import recipe_values
from onecard.data import open_dataset, prepare
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.checkpoint import checkpoints, read_state, step_of
from onecard.report import shortened, show
from onecard.report.compare_view import compare_document, explain_document
from onecard.runs.compare import compare
from onecard.runs.explain import explain, explained
from onecard.runs.figures import figures
from onecard.runs.folder import read_folder
from onecard.train.optim import lr_at
from onecard.train.run.branch import branch
from onecard.train.run.loop import train


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    """Two sources of unlike bytes: capitals and digits."""
    folder = tmp_path_factory.mktemp("mix")
    rng = np.random.default_rng(0)
    for name, alphabet in (("letters", "ABCDE"), ("digits", "0123456789")):
        (folder / name).mkdir()
        for index in range(80):
            text = "".join(rng.choice(list(alphabet), rng.integers(20, 90)))
            (folder / name / f"{index:03d}.txt").write_text(text)
    words = [f"{folder / 'letters'}=70%", f"{folder / 'digits'}=30%"]
    prepare(words, folder / "data", workers=1, tokenizer="bytes", val_fraction=0.3)
    return folder / "data"


def tiny(out: Path, data: Path, **keys) -> RunConfig:
    values = {
        "out_dir": str(out),
        "dataset": str(data),
        "n_layer": 1,
        "n_head": 1,
        "n_embd": 16,
        "block_size": 16,
        "batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_iters": 20,
        "lr_decay_iters": 20,
        "warmup_iters": 2,
        "learning_rate": 1e-2,
        "min_lr": 0.0,
        "eval_interval": 5,
        "eval_iters": 4,
        "compile": False,
        "device": "cpu",
        "dtype": "float32",
        **keys,
    }
    return RunConfig.from_values(values)


def evals(out: Path) -> list[dict]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "eval"]


@pytest.mark.parametrize("chunked", [False, True])
def test_each_token_is_booked_to_its_source(mix, tmp_path, chunked):
    config = tiny(tmp_path / "run", mix, chunked_loss=chunked)
    train(config)
    logged = evals(tmp_path / "run")[-1]
    # the same from the shard alone: a document's first byte says whose it is
    data = open_dataset(mix)
    split = data.splits["val"]
    ids = split.read(0, split.tokens).astype(np.int64)
    starts = np.flatnonzero(ids == data.eot).tolist()
    whose = np.empty(len(ids), dtype=object)
    for low, high in zip(starts, [*starts[1:], len(ids)], strict=True):
        whose[low:high] = "letters" if ids[low + 1] >= ord("A") else "digits"
    model = make_model(config.for_vocabulary(data.vocab_size))
    from onecard.model.checkpoint import newest_good

    saved = newest_good(tmp_path / "run", print)
    model.load_state_dict(saved.model, strict=False)
    model.eval()
    sums, counts = {"letters": 0.0, "digits": 0.0}, {"letters": 0, "digits": 0}
    there = (len(ids) - 1) // config.block_size
    windows = min(config.eval_iters * config.batch_size, there)
    with torch.no_grad():
        for window in range(windows):
            at = window * there // windows * config.block_size
            row = torch.from_numpy(ids[at : at + config.block_size + 1])
            logits = model.head(model.hidden(row[None, :-1]))[0].float()
            losses = functional.cross_entropy(logits, row[1:], reduction="none").tolist()
            for place, loss in enumerate(losses):
                sums[whose[at + 1 + place]] += loss
                counts[whose[at + 1 + place]] += 1
    assert min(counts.values()) > 20
    for name in sums:
        assert logged["sources"][name] == pytest.approx(sums[name] / counts[name], abs=2e-5)
    mean = sum(sums.values()) / sum(counts.values())
    assert logged["val_loss"] == pytest.approx(mean, abs=2e-5)


def test_compare_and_explain_name_the_sources(mix, tmp_path):
    for name, extra in (("a", {"max_iters": 10}), ("b", {"max_iters": 40})):
        steps = extra["max_iters"]
        train(tiny(tmp_path / name, mix, lr_decay_iters=steps, **extra))
    a, b = (figures(read_folder(tmp_path / name)) for name in "ab")
    rules = {finding.note.code: str(finding.note) for finding in explain(b)}
    logged = {e["step"]: e["sources"]["letters"] for e in evals(tmp_path / "b")}
    assert f"letters {logged[40]:.4f} ({logged[40] - logged[20]:+.3f})" in rules["source-changes"]
    assert "digits" in rules["source-changes"]
    both = {finding.note.code: str(finding.note) for finding in explained(compare([a, b])).findings}
    assert "letters (-" in both["sources-better"]
    last = [evals(tmp_path / name)[-1]["sources"]["digits"] for name in "ab"]
    for shown in (
        show(shortened(compare_document(explained(compare([a, b]))))),
        show(shortened(explain_document(b, explain(b)))),
    ):
        row = next(line for line in shown.splitlines() if line.startswith("│ loss of digits"))
        assert f"{last[1]:.4f}" in row


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_a_lengthened_run_branches_off_before_its_decay(mix, tmp_path, recipe):
    """Digit for digit the straight run: the flat part is the same, and the decay comes later."""
    flat = {**recipe_values(recipe), "recipe": recipe, "schedule": "wsd", "decay_fraction": 0.2}
    train(tiny(tmp_path / "straight", mix, max_iters=40, lr_decay_iters=40, **flat))
    train(tiny(tmp_path / "run", mix, **flat))
    assert [step_of(path) for path in checkpoints(tmp_path / "run" / "predecay")] == [16]
    longer = tiny(tmp_path / "run", mix, max_iters=40, lr_decay_iters=40, **flat)
    moved = longer.replace(dataset=str(tmp_path / "nowhere"))
    with pytest.raises(UserError):  # a mistake leaves the run as it was
        train(moved, resume=True, change=("max_iters", "lr_decay_iters"), branch=True)
    assert step_of(checkpoints(tmp_path / "run")[-1]) == 20
    train(longer, resume=True, change=("max_iters", "lr_decay_iters"), branch=True)
    assert evals(tmp_path / "run")[-1]["step"] == 40
    straight, branched = evals(tmp_path / "straight")[-1], evals(tmp_path / "run")[-1]
    assert branched["val_loss"] == straight["val_loss"]
    assert [step_of(path) for path in checkpoints(tmp_path / "run" / "decayed")][-1] == 20
    assert "rate-rewarmed" not in {
        f.note.code for f in explain(figures(read_folder(tmp_path / "run")))
    }


def test_without_a_flat_part_the_rise_is_forecast_and_recognised(mix, tmp_path):
    from onecard.train.run.branch import bump_forecast

    evaluated = {"eval_interval": 20, "eval_iters": 20}
    # a seed whose rise is 0.08: with others it is smaller, and rounding on another processor may take it away
    changed = {"schedule": "linear", "learning_rate": 0.1, "seed": 1}
    before = tiny(tmp_path / "run", mix, **changed, **evaluated)
    before = before.replace(max_iters=120, lr_decay_iters=120)
    train(before)
    assert not checkpoints(tmp_path / "run" / "predecay")
    longer = before.replace(max_iters=1200, lr_decay_iters=1200)
    text = bump_forecast(tmp_path / "run", before, longer)
    assert "the learning rate rises from" in text
    assert "nats" in text
    short = longer.replace(max_iters=180)
    train(short, resume=True, change=("max_iters", "lr_decay_iters"), branch=True)
    losses = {e["step"]: e["val_loss"] for e in evals(tmp_path / "run")}
    rise = max(losses[step] for step in losses if step > 120) - losses[120]
    assert rise > 0.02  # the bump is real
    found = {f.note.code: f for f in explain(figures(read_folder(tmp_path / "run")))}
    (named,) = found.keys() & {"rate-rewarmed", "rewarmed-back"}
    assert found[named].evidence["step"] == 120
    assert found[named].note.values["rise"] == pytest.approx(rise)


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_a_recipes_flat_part_by_one_key(recipe, tmp_path):
    """`schedule = "wsd"` alone: the modern recipe brings the share of its decay along."""
    path = tmp_path / "c.toml"
    path.write_text(f'recipe = "{recipe}"\nschedule = "wsd"\nmax_iters = 1000\n')
    config = load(path)
    assert decay_start(config) == (400 if recipe == "modern" else 800)
    assert config.keep_predecay


@pytest.mark.parametrize("stride", [7.0, 12.5])
def test_a_hurried_run_keeps_the_checkpoint_before_its_decay_too(
    mix, tmp_path, monkeypatch, stride
):
    """max_hours may take the schedule in strides that step over the end of its flat part."""
    monkeypatch.setattr("onecard.train.run.loop.advance", lambda *given: stride)
    config = tiny(tmp_path / "run", mix, schedule="wsd", max_iters=100, lr_decay_iters=100)
    train(config)
    (kept,) = checkpoints(tmp_path / "run" / "predecay")
    position = read_state(kept)["position"]
    assert decay_start(config) - stride < position <= decay_start(config)
    assert lr_at(config, position) == config.learning_rate


def test_what_a_branch_copies_is_on_the_disk(mix, tmp_path, monkeypatch):
    """The copy takes the place of later checkpoints: a power cut must not leave it empty."""
    train(tiny(tmp_path / "run", mix, schedule="wsd"))
    flushed = set()
    real = os.fsync

    def fsync(handle):
        flushed.add(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    branch(tmp_path / "run", 16)
    newest = checkpoints(tmp_path / "run")[-1]
    assert step_of(newest) == 16
    assert {path.stat().st_ino for path in newest.iterdir()} <= flushed


def test_keep_predecay_can_be_switched_off(mix, tmp_path):
    train(tiny(tmp_path / "run", mix, schedule="wsd", keep_predecay=False))
    assert not (tmp_path / "run" / "predecay").exists()
