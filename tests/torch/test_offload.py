"""Optimizer state, fp32 weights and layer inputs in the computer's memory: the same training, resumed exactly."""

from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, losses

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model.checkpoint import OPTIMIZER, checkpoints, read_state, read_tensors
from onecard.train.run.loop import train
from onecard.train.run.preflight import check_host

CHOICES = [("adamw", "float32"), ("adamw", "8bit"), ("muon", "8bit")]


@pytest.fixture
def wide(config):
    return config.replace(n_embd=64, max_iters=8, lr_decay_iters=8, dtype="bfloat16")


@pytest.mark.parametrize(("optimizer", "state"), CHOICES)
def test_where_moments_are_kept_changes_nothing(wide, tmp_path, optimizer, state):
    wide = wide.replace(optimizer=optimizer, optimizer_state=state, gradients="bfloat16")
    away = wide.replace(offload_optimizer=True, out_dir=str(tmp_path / "away"))
    train(wide)
    train(away)
    assert losses(wide.out_dir) == losses(away.out_dir)
    assert_same_weights(wide.out_dir, away.out_dir)


@pytest.mark.parametrize(("optimizer", "state"), CHOICES)
def test_bf16_weights_have_exact_ones_on_the_host(wide, tmp_path, optimizer, state):
    """Nothing is rounded away but what the forward pass sees: nearer to fp32 than by chance alone."""
    wide = wide.replace(optimizer=optimizer, optimizer_state=state)
    away = wide.replace(
        weights="bfloat16", offload_optimizer=True, out_dir=str(tmp_path / "straight")
    )
    train(wide)
    train(away)
    found, wanted = losses(away.out_dir), losses(wide.out_dir)
    assert all(abs(found[step] - wanted[step]) < 0.05 for step in wanted)
    again = away.replace(out_dir=str(tmp_path / "again"))
    train(again.replace(max_iters=5))
    train(again, resume=True, change=["max_iters"])
    assert losses(again.out_dir) == found
    assert_same_weights(again.out_dir, away.out_dir)
    newest = checkpoints(Path(again.out_dir))[-1]
    kept = read_tensors(newest, OPTIMIZER, read_state(newest))
    exact = kept["transformer.h.0.mlp.c_fc.weight/master"]
    assert exact.dtype == torch.float32
    assert not torch.equal(exact, exact.bfloat16().float())


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_where_layer_inputs_are_kept_changes_nothing(config, tmp_path, recipe):
    config = config.replace(recipe=recipe, recompute="block", max_iters=3, lr_decay_iters=3)
    away = config.replace(offload_activations=True, out_dir=str(tmp_path / "away"))
    train(config)
    train(away)
    assert losses(config.out_dir) == losses(away.out_dir)


def test_a_computer_with_too_little_memory(config, tmp_path):
    from onecard.facts.here import cpu

    huge = config.replace(n_layer=1000, n_embd=20_000, n_head=100, offload_optimizer=True)
    assert 8 * 12 * huge.n_layer * huge.n_embd**2 > cpu().memory_bytes
    with pytest.raises(UserError, match="are to be kept in the computer's memory, and it has"):
        check_host(huge, "bfloat16")


def test_only_layer_inputs_can_be_kept_there():
    with pytest.raises(UserError, match="offload_activations keeps layer inputs"):
        RunConfig(offload_activations=True)
