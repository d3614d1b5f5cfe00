"""8-bit AdamW, the real library on the CPU: a byte a moment, losses near AdamW's, and a resume that changes nothing."""

from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, losses

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.checkpoint import OPTIMIZER, checkpoints, read_state, read_tensors
from onecard.planner.memory.sizes import Sizes
from onecard.planner.memory.step import optimizer_state
from onecard.planner.workload import Workload
from onecard.train.optim import eight_bit, make_optimizer, optimizer_tensors
from onecard.train.run.loop import train

pytest.importorskip("bitsandbytes")


@pytest.fixture
def wide(config):
    """bitsandbytes keeps tensors below 4,096 numbers in 32 bits; these matrices are above."""
    return config.replace(n_embd=64, optimizer="adamw8bit", max_iters=8, lr_decay_iters=8)


def test_moments_take_a_byte_and_losses_are_adamws(wide, tmp_path):
    train(wide)
    train(wide.replace(optimizer="adamw", out_dir=str(tmp_path / "plain")))
    eight, plain = losses(wide.out_dir), losses(tmp_path / "plain")
    assert eight.keys() == plain.keys()
    assert all(abs(eight[step] - plain[step]) < 0.02 for step in plain)
    assert eight != plain
    newest = checkpoints(Path(wide.out_dir))[-1]
    kept = read_tensors(newest, OPTIMIZER, read_state(newest))
    assert kept["transformer.h.0.mlp.c_fc.weight/state1"].dtype == torch.uint8


def test_resume_is_exact(wide, tmp_path):
    straight = wide.replace(out_dir=str(tmp_path / "straight"))
    train(straight)
    train(wide.replace(max_iters=5))
    train(wide, resume=True, change=["max_iters"])
    assert losses(wide.out_dir) == losses(straight.out_dir)
    assert_same_weights(wide.out_dir, straight.out_dir)


def test_the_plan_counts_its_bytes():
    config = RunConfig(
        n_layer=2,
        n_head=4,
        n_embd=256,
        block_size=128,
        vocab_size=2048,
        optimizer="adamw8bit",
        bias=True,
    )
    model = make_model(config)
    optimizer = make_optimizer(config, model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = optimizer_tensors(model, optimizer)  # the table of the 256 values is one for all
    held = sum(
        t.numel() * t.element_size() for name, t in kept.items() if "/qmap" not in name and t.dim()
    )
    assert optimizer_state(Sizes(Workload.of(config, "float32"))) == pytest.approx(held, rel=0.001)


def test_other_devices_are_told():
    with pytest.raises(UserError, match="cuda and cpu"):
        eight_bit("mps")
