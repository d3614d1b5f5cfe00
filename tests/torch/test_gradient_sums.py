"""Gradients added up in bf16, and layers compiled one by one: the same training, to rounding."""

import pytest
import torch
from runs_in_tests import TINY, assert_same_weights, events, losses

from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train.optim.rounding import beginning, key_of
from onecard.train.run.gradient_sums import _GRADIENT, GradientSums, _added, add_rounded
from onecard.train.run.loop import train
from onecard.train.run.preflight import Preflight
from onecard.train.run.trial import compiled_forward

CPU = torch.device("cpu")
# the compiler warns of its own insides
pytestmark = pytest.mark.filterwarnings("ignore")


def test_small_gradients_are_not_lost_beside_their_sum():
    """Rounded to the nearest, 300 times 1e-3 beside 1 would be nothing at all."""
    total, small = torch.ones(5000).bfloat16(), torch.full((5000,), 1e-3).bfloat16()
    for count in range(300):
        add_rounded(total, small, key_of(1, 0, "w", count))
    assert total.float().mean().item() == pytest.approx(1.3, abs=0.01)


def test_what_is_not_a_number_does_not_get_lost():
    """With the bits that a card gives it, of which the rounding once made a zero."""
    key = key_of(1, 0, "w")
    factor, offset = torch.tensor(beginning(key), dtype=torch.int32)
    for bits in (0x7FFFFFFF, -1):
        new = torch.full((3000,), bits, dtype=torch.int32).view(torch.float32)
        by_hand, at_once = torch.ones(2, 3000).bfloat16()
        add_rounded(by_hand, new, key)
        _added(at_once, new, factor, offset)
        assert by_hand.isnan().all()
        assert at_once.isnan().all()


def test_compiled_it_is_the_same_to_the_bit():
    torch.manual_seed(1)
    model = torch.nn.Linear(50, 70, bias=False)
    model.weight.data = model.weight.data.bfloat16()
    names, grads = ["weight"], [torch.randn(70, 50).bfloat16() for _ in range(3)]
    found = []
    for compiled in (False, True):
        sums = GradientSums(model, 7, compiled)
        sums.begin(3)
        for grad in grads:
            model.weight.grad = grad.clone()
            sums._take(names[0], model.weight)
        sums.hand_over()
        found.append(model.weight.grad)
        model.weight.grad = None
    assert torch.equal(*found)
    by_hand = grads[0].clone()
    for count, grad in enumerate(grads[1:], 1):
        add_rounded(by_hand, grad, key_of(7, 3, "weight", _GRADIENT + count))
    assert torch.equal(by_hand, found[0])


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_losses_are_near_fp32s_and_a_resume_is_exact(config, tmp_path, weights):
    config = config.replace(
        max_iters=8, lr_decay_iters=8, weights=weights, dtype="bfloat16", dropout=0.0
    )
    config = config.replace(gradient_accumulation_steps=4)
    half = config.replace(gradients="bfloat16", out_dir=str(tmp_path / "half"))
    train(config)
    train(half)
    wanted, found = losses(config.out_dir), losses(half.out_dir)
    assert wanted != found
    assert all(abs(wanted[step] - found[step]) < 0.05 for step in wanted)
    again = half.replace(out_dir=str(tmp_path / "again"))
    train(again.replace(max_iters=5))
    train(again, resume=True, change=["max_iters"])
    assert losses(again.out_dir) == found
    assert_same_weights(again.out_dir, half.out_dir)


@pytest.mark.parametrize(
    ("recipe", "recompute", "backend"),
    [
        ("gpt2", "block", "aot_eager"),  # the same graphs, without machine code
        *(
            pytest.param(recipe, recompute, "inductor", marks=pytest.mark.long)
            for recipe in ("gpt2", "modern")
            for recompute in ("none", "block")
        ),
    ],
)
def test_layers_compiled_one_by_one_give_the_same_gradients(
    monkeypatch, recipe, recompute, backend
):
    compile_ = torch.compile
    if backend != "inductor":
        monkeypatch.setattr(
            torch,
            "compile",
            lambda run, options=None, **more: compile_(run, backend=backend, **more),
        )
    config = TINY.replace(
        n_layer=3, recipe=recipe, recompute=recompute, dropout=0.0, compile_unit="block"
    )
    torch.manual_seed(1)
    model = make_model(config)
    for parameter in model.parameters():  # the modern recipe begins at zero
        torch.nn.init.normal_(parameter, std=0.1)
    rows = torch.randint(0, 64, (2, 17))

    def gradients(forward):
        model.zero_grad()
        loss = forward(rows[:, :-1], rows[:, 1:].contiguous(), None)[1]
        loss.backward()
        return loss.item(), [p.grad.clone() for p in model.parameters()]

    wanted = gradients(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    flight, precision = Preflight(), Precision("float32", False, "")
    forward = compiled_forward(model, config.replace(compile=True), CPU, precision, flight)
    assert not flight.lines
    found = gradients(forward)
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    for one, other in zip(found[1], wanted[1], strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    # one graph for all layers; with and without gradients where they are computed again
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs <= (4 if recompute == "block" else 2)


@pytest.mark.long
def test_a_run_compiled_layer_by_layer(config, tmp_path):
    config = config.replace(compile=True, dropout=0.0)
    block = config.replace(compile_unit="block", recompute="block", out_dir=str(tmp_path / "b"))
    train(config)
    train(block)
    wanted, found = losses(config.out_dir), losses(block.out_dir)
    assert all(found[step] == pytest.approx(wanted[step], abs=2e-4) for step in wanted)
    assert not any("compile: off" in event["text"] for event in events(block.out_dir))
