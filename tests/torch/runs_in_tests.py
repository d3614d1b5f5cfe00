"""What the tests of the loop share: a tiny config, a run's losses from its log, its weights from its checkpoint."""

from pathlib import Path

import torch

from onecard.config import RunConfig
from onecard.model.checkpoint import MODEL, checkpoints, read_state, read_tensors
from onecard.runs.log import read_log

TINY = RunConfig(
    n_layer=2,
    n_head=2,
    n_embd=32,
    block_size=16,
    vocab_size=64,
    batch_size=4,
    gradient_accumulation_steps=2,
    dropout=0.1,
    max_iters=10,
    lr_decay_iters=10,
    warmup_iters=2,
    learning_rate=1e-2,
    min_lr=1e-3,
    eval_interval=4,
    eval_iters=2,
    compile=False,
    device="cpu",
)
MODELS = {
    "gpt2": TINY.replace(dropout=0.0),
    "modern": RunConfig(
        recipe="modern",
        optimizer="muon",
        n_layer=2,
        n_head=2,
        n_embd=32,
        block_size=16,
        batch_size=4,
        vocab_size=64,
    ),
}


def losses(folder) -> dict[int, float]:
    """Loss by step, as the log stands in the end."""
    return {
        line["step"]: line["loss"]
        for line in read_log(Path(folder) / "log.jsonl")
        if line["kind"] == "step"
    }


def events(folder) -> list[dict]:
    return [line for line in read_log(Path(folder) / "log.jsonl") if line["kind"] == "event"]


def weights(folder) -> dict[str, torch.Tensor]:
    newest = checkpoints(Path(folder))[-1]
    return read_tensors(newest, MODEL, read_state(newest))


def assert_same_weights(a, b) -> None:
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
