"""A small run for a real card. Everything in this folder is skipped where torch finds none."""

import os

# read by the first product of a process
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy as np
import pytest

from onecard.config import RunConfig


@pytest.fixture
def config(tmp_path) -> RunConfig:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train", "val"):  # some ids far more often: there is something to learn
        ids = np.random.default_rng(7).zipf(1.5, 200_000) % 512
        ids.astype("<u2").tofile(folder / f"{name}.bin")
    return RunConfig(
        dataset=str(folder),
        out_dir=str(tmp_path / "out"),
        n_layer=4,
        n_head=4,
        n_embd=256,
        block_size=256,
        batch_size=8,
        gradient_accumulation_steps=2,
        max_iters=20,
        lr_decay_iters=20,
        warmup_iters=2,
        eval_interval=10,
        eval_iters=2,
        compile=False,
        device="cuda",
    )
