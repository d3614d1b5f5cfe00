"""Moments in 8 and 4 bits: the bytes the plan counts, losses near AdamW's and Muon's, and a resume that changes nothing."""

from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, losses

from onecard.config import RunConfig
from onecard.config.model_rules import STATE_BLOCK
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.checkpoint import OPTIMIZER, checkpoints, read_state, read_tensors
from onecard.planner.memory import step as planned
from onecard.planner.memory.sizes import Sizes
from onecard.planner.workload import Workload
from onecard.train.optim import make_optimizer, optimizer_tensors
from onecard.train.optim.low_bit import LowBit
from onecard.train.optim.rounding import key_of, random_bits, uniform
from onecard.train.run.loop import train

CPU = torch.device("cpu")
STATES = [("adamw", "8bit"), ("adamw", "4bit"), ("muon", "8bit"), ("muon", "4bit")]


@pytest.fixture
def wide(config):
    """Tensors below 4,096 numbers stay in fp32; these matrices are above."""
    return config.replace(n_embd=64, max_iters=8, lr_decay_iters=8)


# --- random numbers --------------------------------------------------------------------------------------------------


def test_random_numbers_are_a_function_of_the_element_alone():
    key = key_of(1337, 5, "transformer.wte.weight")
    whole = random_bits(10_000, 0, key, CPU)
    assert torch.equal(whole[7000:7100], random_bits(100, 7000, key, CPU))
    others = [
        key_of(1338, 5, "transformer.wte.weight"),
        key_of(1337, 6, "transformer.wte.weight"),
        key_of(1337, 5, "transformer.wpe.weight"),
        key_of(1337, 5, "transformer.wte.weight", use=1),
    ]
    for other in others:
        same = (random_bits(10_000, 0, other, CPU) == whole).sum()
        assert same < 3


def test_random_numbers_are_pinned():
    """A run resumed by a later version must draw what this one does."""
    # by hand: Wellons' lowbias32 in whole numbers of any length, of (key + element · (mix(key) | 1)) mod 2^32
    wanted = [-1004701996, 693807459, -1696939768, -72569078]
    assert random_bits(4, 0, key_of(1, 2, "w"), CPU).tolist() == wanted


def test_random_numbers_are_even_and_independent():
    first, second = (uniform(2**18, 0, key_of(1, step, "w"), CPU) for step in (1, 2))
    assert first.mean().item() == pytest.approx(0.5, abs=0.003)
    assert torch.histc(first, 16, 0, 1).div(2**14).sub(1).abs().max() < 0.05
    for a, b in ((first, second), (first[:-1], first[1:])):
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.01


# --- numbers in few bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("signed", [True, False])
def test_the_mean_of_what_is_kept_is_right(bits, signed):
    torch.manual_seed(1)
    values = torch.randn(1000) if signed else torch.rand(1000) * 0.9 + 0.1
    low = LowBit.zeros(1000, bits, signed, CPU)
    total = torch.zeros(1000)
    for step in range(400):
        low.write(values.clone(), 0, key_of(1, step, "w"))
        total += low.read(0, 1000)
    assert (total / 400 - values).abs().max() < (0.15 if bits == 4 else 0.01)
    assert (total / 400 - values).mean().abs() < 0.005


def test_a_second_moment_is_never_zero():
    low = LowBit.zeros(128, 4, False, CPU)
    low.write(torch.full((128,), 1e-12).index_fill_(0, torch.tensor([3]), 1.0), 0, 1)
    assert low.read(0, 128).min() > 1e-3  # the update is divided by its root


@pytest.mark.parametrize("bits", [8, 4])
def test_slices_are_the_whole(bits):
    values = torch.randn(1000)
    whole, parts = (LowBit.zeros(1000, bits, True, CPU) for _ in range(2))
    whole.write(values.clone(), 0, 9)
    cut = 2 * STATE_BLOCK[bits]
    parts.write(values[:cut].clone(), 0, 9)
    parts.write(values[cut:].clone(), cut, 9)
    assert torch.equal(whole.codes, parts.codes)
    assert torch.equal(parts.read(cut, 1000 - cut), whole.read(0, 1000)[cut:])


def test_an_average_moves_although_a_level_is_wider_than_a_step():
    """Rounded to the nearest, 0.5 % a step of a 4-bit number would stay where it is for ever."""
    low = LowBit.zeros(512, 4, True, CPU)
    low.write(torch.linspace(0.2, 1, 512), 0, 1)
    for step in range(600):
        low.write(
            low.read(0, 512).lerp_(torch.linspace(1, 0.2, 512), 0.005), 0, key_of(1, step, "w")
        )
    assert (low.read(0, 512) - torch.linspace(1, 0.2, 512)).mean().abs() < 0.03
    assert low.read(0, 512)[:128].mean() > 0.8


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "state"), STATES)
def test_losses_are_near_full_precisions_and_moments_are_small(wide, tmp_path, optimizer, state):
    low = wide.replace(optimizer=optimizer, optimizer_state=state)
    train(low)
    train(wide.replace(optimizer=optimizer, out_dir=str(tmp_path / "plain")))
    found, plain = losses(low.out_dir), losses(tmp_path / "plain")
    assert found.keys() == plain.keys()
    assert all(abs(found[step] - plain[step]) < 0.1 for step in plain)
    assert found != plain
    newest = checkpoints(Path(low.out_dir))[-1]
    kept = read_tensors(newest, OPTIMIZER, read_state(newest))
    name = "momentum" if optimizer == "muon" else "exp_avg"
    codes = kept[f"transformer.h.0.mlp.c_fc.weight/{name}"]
    assert codes.dtype == torch.uint8
    assert codes.numel() == 64 * 256 // (1 if state == "8bit" else 2)


@pytest.mark.parametrize(("optimizer", "state"), STATES)
def test_resume_is_exact(wide, tmp_path, optimizer, state):
    wide = wide.replace(optimizer=optimizer, optimizer_state=state)
    straight = wide.replace(out_dir=str(tmp_path / "straight"))
    train(straight)
    train(wide.replace(max_iters=5))
    train(wide, resume=True, change=["max_iters"])
    assert losses(wide.out_dir) == losses(straight.out_dir)
    assert_same_weights(wide.out_dir, straight.out_dir)


def test_adamw8bit_is_another_name(wide, tmp_path):
    train(wide.replace(optimizer="adamw8bit"))
    other = wide.replace(optimizer_state="8bit", out_dir=str(tmp_path / "other"))
    train(other)
    assert losses(wide.out_dir) == losses(other.out_dir)


def test_moments_of_other_bits_are_not_taken_for_these(wide):
    train(wide.replace(optimizer_state="8bit", max_iters=5))
    with pytest.raises(UserError, match="started with optimizer_state = '8bit'"):
        train(
            wide.replace(optimizer_state="4bit"),
            resume=True,
            change=["max_iters", "optimizer_state"],
        )


@pytest.mark.parametrize(("optimizer", "state"), STATES)
def test_the_plan_counts_its_bytes(optimizer, state):
    config = RunConfig(
        n_layer=2,
        n_head=4,
        n_embd=256,
        block_size=128,
        vocab_size=2048,
        optimizer=optimizer,
        optimizer_state=state,
        bias=True,
    )
    model = make_model(config)
    made = make_optimizer(config, model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    made.step()
    held = sum(
        t.numel() * t.element_size() for t in optimizer_tensors(model, made).values() if t.dim()
    )
    found = planned.optimizer_state(Sizes(Workload.of(config, "float32")))
    assert found == pytest.approx(held, rel=0.001)
