"""Weights in bf16 without an fp32 copy: losses near full precision's, an exact resume, files that everything reads."""

import math
from pathlib import Path

import pytest
import torch
from runs_in_tests import MODELS, assert_same_weights, losses, weights

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.export.write import export
from onecard.model.build import lowered, make_model
from onecard.model.opening import load_run, open_model
from onecard.train.optim.rounding import key_of, stochastic_bf16
from onecard.train.run.loop import train

CHOICES = [("adamw", "float32"), ("adamw", "4bit"), ("muon", "float32"), ("muon", "8bit")]


@pytest.fixture
def half(config):
    return config.replace(n_embd=64, max_iters=8, lr_decay_iters=8, weights="bfloat16")


def test_rounding_is_to_a_neighbour_and_right_in_the_mean():
    torch.manual_seed(1)
    values = torch.randn(2000)
    down = (values.view(torch.int32) & -0x10000).view(torch.float32)
    total = torch.zeros(2000)
    for step in range(500):
        found = stochastic_bf16(values.clone(), 0, key_of(1, step, "w")).float()
        assert ((found - values).abs() <= values.abs() * 2**-7).all()
        assert torch.equal(found[found.abs() < values.abs()], down[found.abs() < values.abs()])
        total += found
    error = (total / 500 - values) / values.abs()
    assert error.abs().max() < 2**-7 * 0.1
    assert error.mean().abs() < 2**-7 * 0.002


def test_numbers_that_are_not_finite_stay_so():
    values = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    found = stochastic_bf16(values, 0, 7)
    assert found[:2].tolist() == [math.inf, -math.inf]
    assert found[2].isnan()
    assert found[3] == 0


@pytest.mark.parametrize("recipe", MODELS)
def test_the_gradient_of_a_token_that_is_everywhere_is_whole(recipe):
    """In bf16 a sum of thousands of numbers of a size stands still after a few hundred of them."""
    torch.manual_seed(1)
    exact = make_model(MODELS[recipe].replace(tied=False))
    half = MODELS[recipe].replace(tied=False, weights="bfloat16")
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16())
    kept = lowered(make_model(half), half)
    kept.load_state_dict(exact.state_dict())
    grads = []
    for model in (exact, kept):
        idx = torch.full((300, 16), 3)
        with torch.autocast("cpu", torch.bfloat16):
            model(idx, idx + 1)[1].backward()
        grads.append(model.transformer.wte.weight.grad[3].float())
    assert (grads[1] - grads[0]).norm() < 0.05 * grads[0].norm()


def test_steps_far_below_a_bf16_number_move_a_weight():
    """Rounded to the nearest, 1 - 1e-4 a step would stay at 1 for ever."""
    weight = torch.ones(4096)
    for step in range(200):
        weight = stochastic_bf16(weight * (1 - 1e-4), 0, key_of(1, step, "w")).float()
    assert weight.mean().item() == pytest.approx((1 - 1e-4) ** 200, abs=5e-4)


@pytest.mark.parametrize(
    ("optimizer", "state", "recipe"),
    [*((*each, "gpt2") for each in CHOICES), (*CHOICES[3], "modern")],
)
def test_losses_are_near_full_precisions(half, tmp_path, optimizer, state, recipe):
    half = half.replace(optimizer=optimizer, optimizer_state=state, recipe=recipe)
    plain = half.replace(
        weights="float32", dtype="bfloat16", optimizer_state="float32", out_dir=str(tmp_path / "p")
    )
    train(half)
    train(plain)
    found, wanted = losses(half.out_dir), losses(plain.out_dir)
    assert found.keys() == wanted.keys()
    assert all(abs(found[step] - wanted[step]) < 0.1 for step in wanted)
    kept = weights(half.out_dir)
    assert kept["transformer.wte.weight"].dtype == torch.bfloat16
    assert kept["transformer.h.0.mlp.c_fc.weight"].dtype == torch.bfloat16
    vectors = [t for name, t in kept.items() if t.dim() == 1 or name.endswith("taps")]
    assert vectors
    assert all(t.dtype == torch.float32 for t in vectors)


@pytest.mark.parametrize(("optimizer", "state"), CHOICES)
def test_resume_is_exact(half, tmp_path, optimizer, state):
    half = half.replace(optimizer=optimizer, optimizer_state=state)
    straight = half.replace(out_dir=str(tmp_path / "straight"))
    train(straight)
    train(half.replace(max_iters=5))
    train(half, resume=True, change=["max_iters"])
    assert losses(half.out_dir) == losses(straight.out_dir)
    assert_same_weights(half.out_dir, straight.out_dir)


def test_its_files_are_read_as_any_others(half, tmp_path):
    outcome = train(half)
    assert (Path(half.out_dir) / "samples" / "step_00000008.txt").read_text()
    sampler = load_run(Path(half.out_dir))
    assert sampler.model.lm_head.weight.dtype == torch.float32
    inputs = torch.arange(32).view(2, 16)
    logits = sampler.model(inputs)[0]
    for kind in ("hf", "nanogpt"):
        export(Path(half.out_dir), kind, tmp_path / kind)
        again = open_model(str(tmp_path / kind), "cpu", dataset=half.dataset)
        assert torch.allclose(again.model(inputs)[0], logits, atol=1e-5)
    assert outcome.val_loss is not None
    tuned = half.replace(init_from=half.out_dir, weights="float32", out_dir=str(tmp_path / "more"))
    train(tuned)
    assert losses(tuned.out_dir)[1] < losses(half.out_dir)[1]


def test_other_weights_are_another_run(half):
    train(half.replace(max_iters=5))
    with pytest.raises(UserError, match="started with weights = 'bfloat16'"):
        train(half.replace(weights="float32"), resume=True, change=["max_iters", "weights"])


def test_it_is_multiplied_in_bf16_alone():
    with pytest.raises(UserError, match="weights = 'bfloat16' cannot be multiplied in dtype"):
        RunConfig(weights="bfloat16", dtype="float16")
    assert RunConfig(weights="bfloat16").matmul_dtype == "bfloat16"
