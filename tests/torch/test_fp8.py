"""fp8 matmuls (model/fp8.py), computed on the CPU by the same torch._scaled_mm that cards run."""

import warnings

import pytest
import torch
from memory_oracle import traced
from runs_in_tests import MODELS
from shard_oracle import one_of
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from traced_settings import SMALL

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.model import machine
from onecard.model.build import make_model
from onecard.model.fp8 import Fp8Linear
from onecard.model.machine import Precision
from onecard.planner.memory import step_memory
from onecard.planner.step_time import step_time
from onecard.planner.workload import Workload
from onecard.train.probe import start
from onecard.train.run.sharding import Sharding

GPT2 = MODELS["gpt2"].replace(block_size=32)


@pytest.mark.parametrize("mixed", [False, True])
def test_products_and_gradients_are_near_those_of_a_plain_layer(mixed):
    """e4m3 keeps 3 bits after the leading one and e5m2 two: a few per cent, and not more."""
    torch.manual_seed(0)
    plain = nn.Linear(64, 48)
    eighth = Fp8Linear(64, 48)
    eighth.load_state_dict(plain.state_dict())
    found = []
    for layer in (plain, eighth):
        x = torch.linspace(-2, 2, 4 * 32 * 64).sin().view(4, 32, 64).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            y = layer(x)
        y.float().pow(2).sum().backward()
        found.append((y.float(), x.grad, layer.weight.grad, layer.bias.grad))
        assert y.dtype == (torch.bfloat16 if mixed else torch.float32)
        assert layer.weight.grad.dtype == torch.float32
    for exact, rounded in zip(*found, strict=True):
        off = (rounded - exact).norm() / exact.norm()
        assert 0 < off < 0.12
    with torch.no_grad():
        assert torch.equal(eighth(x), plain(x))  # what is read without gradients is not rounded


def test_a_run_learns_the_same_over_its_first_steps():
    losses = {}
    for fp8 in (False, True):
        turn = start(torch.device("cpu"), GPT2.replace(fp8=fp8))
        turn.steps(8)
        losses[fp8] = turn.losses
    assert losses[True] != losses[False]
    assert losses[True] == pytest.approx(losses[False], abs=0.02)


def test_the_exchanges_of_a_sharded_model_are_noted_with_a_row_that_a_card_takes(monkeypatch):
    """A card multiplies in fp8 only what has sides in multiples of 16; a CPU takes any."""
    sides, product = set(), torch._scaled_mm

    def noted(a, b, *scales, **more):
        sides.update((*a.shape, *b.shape))
        return product(a, b, *scales, **more)

    monkeypatch.setattr(torch, "_scaled_mm", noted)
    config = GPT2.replace(fp8=True, shard="full", n_embd=64)
    with one_of(2) as (workers, mesh), warnings.catch_warnings(), FakeTensorMode():
        warnings.simplefilter("ignore")
        Sharding(make_model(config), config, Precision("bfloat16", False, ""), workers, mesh)
    assert sides
    assert not [side for side in sides if side % 16]


def test_weights_pass_between_runs_with_and_without_it():
    torch.manual_seed(0)
    plain = make_model(GPT2)
    other = make_model(GPT2.replace(fp8=True))
    other.load_state_dict(plain.state_dict())
    rows = torch.arange(33).repeat(2, 1)
    with torch.no_grad():
        assert torch.equal(plain(rows[:, :-1])[0], other(rows[:, :-1])[0])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"dtype": "float16"}, "dtype"),
        ({"n_embd": 40}, "n_embd"),
        ({"block_size": 40}, "block_size"),
    ],
)
def test_what_fp8_cannot_do_is_said(changes, what):
    with pytest.raises(UserError, match=what):
        GPT2.replace(fp8=True, **changes)


def test_older_cards_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(UserError, match="Ada"):
        machine.require_fp8(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    machine.require_fp8(torch.device("cuda"))


FP8 = SMALL.replace(vocab_size=1024, fp8=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_plan_knows_its_memory_and_speed(compiled):
    config = FP8.replace(compile=compiled, n_layer=1 if compiled else 2)
    card = find_gpu("RTX 4090")
    assert memory_ratio(config) == pytest.approx(1, rel=0.02)
    large = RunConfig(n_embd=1600, n_head=25, n_layer=24, batch_size=8, compile=compiled)
    small = RunConfig(n_embd=128, n_head=2, n_layer=4, batch_size=1, compile=compiled)
    gains = [
        step_time(c, card, "bfloat16").seconds.mid
        / step_time(c.replace(fp8=True), card, "bfloat16").seconds.mid
        for c in (large, small)
    ]
    assert 1.1 < gains[0] < 2
    assert gains[1] < 1  # small models lose by it


@pytest.mark.long
def test_the_plan_knows_its_memory_with_the_other_savers():
    config = FP8.replace(n_layer=3, recipe="modern", recompute="block", compile=True)
    config = config.replace(chunked_loss=True)
    assert memory_ratio(config) == pytest.approx(1, rel=0.02)


def memory_ratio(config):
    """Planned over traced."""
    planned = step_memory(Workload.of(config, "bfloat16"), find_gpu("RTX 4090")).peak.bytes
    return planned / traced(config, "bfloat16").bytes
