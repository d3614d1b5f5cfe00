"""Small data in nanoGPT's own format, and runs short enough to repeat by the dozen."""

import pickle
import signal

import numpy as np
import pytest
import torch
from runs_in_tests import TINY

from onecard.config import RunConfig

torch.set_num_threads(1)  # the models are tiny, and test workers share the cores


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_terminal():
    """A shell starts what runs in the background, or under nohup, with some of them ignored, and a run would too."""
    before = {}
    for name, handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
        if hasattr(signal, name):
            before[getattr(signal, name)] = signal.signal(getattr(signal, name), handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
