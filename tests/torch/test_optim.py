"""The schedule as a pure function, decay where it belongs, optimizer memory by name."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config import RunConfig
from onecard.model.gpt2 import GPT
from onecard.train.optim import decayed, lr_at, make_optimizer, optimizer_tensors, restore_optimizer
from onecard.train.run.step import clip

SMALL = RunConfig(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=32, bias=True)


def nanogpt_lr(c, it):
    """nanoGPT's get_lr, line by line."""
    if it < c.warmup_iters:
        return c.learning_rate * (it + 1) / (c.warmup_iters + 1)
    if it > c.lr_decay_iters:
        return c.min_lr
    ratio = (it - c.warmup_iters) / (c.lr_decay_iters - c.warmup_iters)
    return c.min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (c.learning_rate - c.min_lr)


def test_cosine_is_nanogpts():
    config = RunConfig(warmup_iters=20, lr_decay_iters=200, max_iters=250)
    for step in range(250):
        assert lr_at(config, step) == pytest.approx(nanogpt_lr(config, step), rel=1e-12)


@given(
    schedule=st.sampled_from(["cosine", "linear", "wsd"]),
    warmup=st.integers(0, 50),
    decay=st.integers(1, 100),
    position=st.floats(0, 200),
    fraction=st.floats(0.01, 1.0),
)
@settings(max_examples=300, deadline=None)
def test_every_schedule_stays_between_its_ends(schedule, warmup, decay, position, fraction):
    # warm-up as long as or longer than the decay is where nanoGPT divides by zero
    config = RunConfig(
        schedule=schedule,
        warmup_iters=warmup,
        lr_decay_iters=decay,
        max_iters=100,
        decay_fraction=fraction,
    )
    lr = lr_at(config, position)
    assert 0 < lr <= config.learning_rate
    if position >= warmup:
        assert lr >= config.min_lr * (1 - 1e-12)
    if position >= max(warmup, decay):
        assert lr == config.min_lr


def test_warmup_stable_decay_has_its_plateau():
    config = RunConfig(
        schedule="wsd", warmup_iters=10, lr_decay_iters=100, max_iters=100, decay_fraction=0.2
    )
    assert [lr_at(config, step) for step in (10, 50, 80)] == [config.learning_rate] * 3
    assert lr_at(config, 90) == pytest.approx((config.learning_rate + config.min_lr) / 2)


def test_no_decay_keeps_the_rate():
    assert lr_at(RunConfig(decay_lr=False), 10**6) == RunConfig.learning_rate


@pytest.mark.parametrize("rule", ["matrices", "nanogpt"])
def test_decay_is_on_the_matrices_that_the_rule_names(rule):
    model = GPT(SMALL)
    names = {name for name, p in model.named_parameters() if decayed(name, p, rule)}
    assert ("transformer.wte.weight" in names) == (rule == "nanogpt")
    assert ("transformer.wpe.weight" in names) == (rule == "nanogpt")
    assert "transformer.h.0.mlp.c_fc.weight" in names
    assert not any(name.endswith(".bias") or ".ln_" in name for name in names)
    groups = make_optimizer(SMALL.replace(weight_decay_on=rule), model).param_groups
    decays = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decays == {id(p) for name, p in model.named_parameters() if name in names}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_optimizer_memory_round_trips():
    def stepped(model, optimizer):
        model(torch.zeros(1, 8, dtype=torch.long), torch.ones(1, 8, dtype=torch.long))[1].backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = make_optimizer(SMALL, model)
    stepped(model, optimizer)
    other = GPT(SMALL)
    other.load_state_dict(model.state_dict())
    restored = make_optimizer(SMALL, other)
    restore_optimizer(other, restored, optimizer_tensors(model, optimizer))
    stepped(model, optimizer)
    stepped(other, restored)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("most", [0.0, 0.1, 1.0, 1e6])
def test_clipping_is_torch_s_to_the_last_bit(most):
    torch.manual_seed(3)
    ours = [torch.randn(shape) for shape in ((7, 5), (64,), (33, 128), (1,))]
    parameters = [torch.nn.Parameter(torch.zeros_like(grad)) for grad in ours]
    for parameter, grad in zip(parameters, ours, strict=True):
        parameter.grad = grad.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, most or math.inf)
    assert torch.equal(clip(ours, most), norm)
    assert all(
        torch.equal(grad, parameter.grad) for grad, parameter in zip(ours, parameters, strict=True)
    )
