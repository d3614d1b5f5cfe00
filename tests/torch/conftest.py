"""Small data in nanoGPT's own format, and runs short enough to repeat by the dozen."""

import functools
import pickle
import random

import numpy as np
import pytest
import torch
from exports import TEXT
from good_card import good_card
from process_group import Processes
from runs_in_tests import TINY

from onecard.config import RunConfig, load
from onecard.data import prepare
from onecard.runs import record
from onecard.train.doctor.answers import Answers
from onecard.train.run import loop

torch.set_num_threads(1)  # the models are tiny, and test workers share the cores


@pytest.fixture(scope="session", autouse=True)
def short_samples():
    """With 64 tokens at every evaluation, a tiny run would spend half its time on its samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "write_sample", functools.partial(loop.write_sample, count=8))
        yield


look_at_git = functools.cache(record.git_state)


@pytest.fixture(scope="module", autouse=True)  # tests of other folders look for themselves
def one_look_at_git():
    """Every run writes down the commit, and whether a file differs from it: a tenth of a tiny run's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "git_state", lambda folder: look_at_git(folder.absolute()))
        yield


@pytest.fixture(scope="session")
def several():
    """Processes for runs of several, kept for the next test: importing torch takes longer than most of these runs."""
    with Processes() as processes:
        yield processes


@pytest.fixture
def data(tmp_path):
    """A folder with train.bin and val.bin: bytes of a made-up language, easy to learn a little of."""
    folder = tmp_path / "data"
    folder.mkdir()
    generator = np.random.default_rng(7)
    words = [generator.integers(0, 60, size=generator.integers(2, 6)) for _ in range(40)]
    for name, count in (("train", 3000), ("val", 300)):
        stream = np.concatenate([words[i] for i in generator.zipf(1.5, count) % 40]).astype("<u2")
        stream.tofile(folder / f"{name}.bin")
    letters = [chr(ord("0") + i) for i in range(64)]
    meta = {
        "vocab_size": 64,
        "itos": dict(enumerate(letters)),
        "stoi": {c: i for i, c in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))  # as nanoGPT's prepare.py does
    return folder


@pytest.fixture
def config(tmp_path, data) -> RunConfig:
    return TINY.replace(dataset=str(data), out_dir=str(tmp_path / "run"))


@pytest.fixture(scope="session")
def text_data(tmp_path_factory):
    """The same small text under each tokeniser."""
    place = tmp_path_factory.mktemp("texts")
    source = place / "text.txt"
    words = TEXT.split(" ")
    generator = random.Random(1)
    source.write_text(" ".join(generator.choice(words) for _ in range(6000)), encoding="utf-8")

    def of(tokenizer):
        folder = place / tokenizer.replace(":", "_")
        if not folder.exists():
            prepare([str(source)], out=folder, tokenizer=tokenizer, val_fraction=0.1, workers=1)
        return folder

    return of


@pytest.fixture(scope="session")
def run_of(tmp_path_factory, text_data):
    """A run of a few steps: run_of("bpe:300", recipe="modern")."""
    place = tmp_path_factory.mktemp("runs")
    made = {}

    def of(tokenizer="bpe:300", recipe="gpt2", **keys):
        name = "-".join([tokenizer.replace(":", "_"), recipe, *map(str, keys.values())])
        if name not in made:
            base = TINY.replace(vocab_size=None, dropout=0.0, max_iters=4, lr_decay_iters=4)
            if recipe == "modern":
                base = load(None, ["recipe=modern", "max_iters=4"]).replace(
                    n_layer=2,
                    n_head=2,
                    n_embd=32,
                    block_size=16,
                    batch_size=4,
                    device="cpu",
                    compile=False,
                    eval_interval=4,
                    eval_iters=2,
                    gradient_accumulation_steps=1,
                )
            config = base.replace(
                dataset=str(text_data(tokenizer)), out_dir=str(place / name), **keys
            )
            loop.train(config)
            made[name] = place / name
        return made[name]

    return of


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of the test's own: nothing is known of any device yet."""
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))


@pytest.fixture
def card(tmp_path) -> Answers:
    return good_card(tmp_path / "cache")
