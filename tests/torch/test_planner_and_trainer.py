"""What the planner assumes and the trainer does, compared through a real run."""

import pickle

import numpy as np
import pytest
from launch_oracle import LIBRARY, Counting, step_work
from memory_oracle import traced
from traced_settings import SMALL

from onecard import RunConfig, load, plan
from onecard.planner.step_counts import logits_bytes, micro_kernels
from onecard.planner.workload import Workload
from onecard.runs.log import read_log
from onecard.train.run.loop import train

SLICED = {"chunked_loss": True, "chunk_rows": 512}


@pytest.fixture
def words(tmp_path):
    """A folder as nanoGPT prepares it, with 1,003 different tokens."""
    folder = tmp_path / "words"
    folder.mkdir()
    for name, count in (("train", 3000), ("val", 300)):
        (np.arange(count) * 7 % 1003).astype("<u2").tofile(folder / f"{name}.bin")
    names = [chr(0x4E00 + number) for number in range(1003)]
    meta = {"vocab_size": 1003, "itos": dict(enumerate(names))}
    meta["stoi"] = {name: number for number, name in enumerate(names)}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


def test_vocabulary_and_evaluations_are_those_of_the_plan(config, words, tmp_path):
    length = {"max_iters": 6, "lr_decay_iters": 6, "gradient_accumulation_steps": 1}
    config = config.replace(dataset=str(words), vocab_size=None, **length)
    config = config.replace(eval_interval=2, eval_iters=1)
    answer = plan(config, "cpu")
    train(config)
    lines = list(read_log(tmp_path / "run" / "log.jsonl"))
    evaluated = [line["step"] for line in lines if line["kind"] == "eval"]
    assert evaluated == [2, 4, 6]
    seconds = answer.time.total_seconds.mid - answer.time.compile_seconds
    assert seconds / answer.time.step_seconds.mid == pytest.approx(6 + len(evaluated) / 3)
    trained = load(tmp_path / "run" / "config.toml")
    assert answer.config.vocab_size == 1024  # 1,003 padded to a multiple of 64
    assert trained.vocab_size == answer.config.vocab_size


@pytest.mark.parametrize(
    ("recipe", "compiled", "loss"),
    [
        ("gpt2", False, {}),
        ("modern", False, {}),
        ("gpt2", True, {}),
        pytest.param("modern", True, {}, marks=pytest.mark.long),
        ("modern", False, SLICED),
        ("gpt2", True, SLICED),
    ],
)
def test_kernels_are_counted_as_they_are_launched(recipe, compiled, loss):
    config = SMALL.replace(recipe=recipe, compile=compiled, **loss)
    traced_kernels = traced(config, "bfloat16").kernels / 2  # two micro-batches
    flash_backward = 2 * config.n_layer  # one operation in the trace, three kernels on a card
    counted = micro_kernels(Workload.of(config, "bfloat16"))
    assert counted == pytest.approx(traced_kernels + flash_backward, rel=0.05)


@pytest.mark.parametrize("rows", [512, 2048])
def test_the_loss_in_slices_moves_what_was_planned(rows):
    """It was planned as if slices cost nothing."""
    config = SMALL.replace(n_layer=1, compile=True, vocab_size=50304, gradient_accumulation_steps=1)
    config = config.replace(chunked_loss=True, chunk_rows=rows)
    live = Counting()
    step_work(config, "bfloat16", live)
    parts = [
        work for (part, name), work in live.counts.items() if part == "loss" and name not in LIBRARY
    ]
    moved = sum(work.moved_bytes for work in parts) / 2  # two micro-batches
    assert logits_bytes(Workload.of(config, "bfloat16")) == pytest.approx(moved, rel=0.1)


def test_a_modern_layer_takes_hardly_more_kernels_than_gpt2s():
    """Compiled for a card; that these are the kernels of a trace is the test before this one's."""
    layer = {}
    for recipe in ("gpt2", "modern"):
        deep, flat = (
            micro_kernels(Workload.of(RunConfig(recipe=recipe, n_layer=layers), "bfloat16"))
            for layers in (3, 2)
        )
        layer[recipe] = deep - flat
    assert layer["modern"] <= 1.1 * layer["gpt2"]
