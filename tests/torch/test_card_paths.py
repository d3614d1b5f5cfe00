"""What only a card would run, by its twin on the CPU: whole steps on fake devices, and their arithmetic."""

import os

import pytest
import torch
from runs_in_tests import MODELS

from onecard.model import chunked_loss, gpt2, lean
from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train import profile, verify
from onecard.train.optim import make_optimizer, muon, optimizer_tensors, state_tensors
from onecard.train.optim.muon import orthogonal
from onecard.train.run import trial
from onecard.train.run.row_marks import RowMarks

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAIN = Precision("float32", False, "")


@pytest.mark.parametrize("kind", MODELS)
def test_a_step_mixes_no_devices(monkeypatch, kind):
    """torch's meta device computes nothing but places everything: what is left on the CPU is an error, as on a card."""
    config = MODELS[kind].replace(mask_documents=True)
    model = make_model(config).to("meta")
    rows = torch.zeros(4, config.block_size + 1, dtype=torch.long, device="meta")
    model(rows[:, :-1], rows[:, 1:], RowMarks(0).documents(rows[:, :-1]))[1].backward()
    assert {p.grad.device.type for p in model.parameters()} == {"meta"}
    optimizer = make_optimizer(config, model)
    if kind == "modern":
        monkeypatch.setattr(muon, "FUSED", (*muon.FUSED, "meta"))
        monkeypatch.setattr(muon, "adamw", lambda *args, fused, **more: 1 / fused)
    optimizer.step()
    held = optimizer_tensors(model, optimizer)
    if kind == "modern":  # Muon's own counter, which fused kernels read where the parameter is
        assert {name.rpartition("/")[2] for name in held} == {
            "momentum",
            "exp_avg",
            "exp_avg_sq",
            "step",
        }
        assert {tensor.device.type for tensor in held.values()} == {"meta"}


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adamw8bit"])
def test_the_trial_holds_what_the_optimizer_will(optimizer):
    config = MODELS["modern" if optimizer == "muon" else "gpt2"].replace(
        optimizer=optimizer, n_embd=256, n_head=2
    )
    model = make_model(config)
    held = sum(t.numel() * t.element_size() for t in state_tensors(config, model))
    rows = torch.zeros(2, config.block_size + 1, dtype=torch.long)
    model(rows[:, :-1], rows[:, 1:])[1].backward()
    real = make_optimizer(config, model)
    real.step()
    found = sum(t.numel() * t.element_size() for t in optimizer_tensors(model, real).values())
    assert held == pytest.approx(found, rel=0.05)


def test_on_a_card_the_trial_adds_up_gradients_beside_the_optimizer(monkeypatch):
    config, calls = MODELS["gpt2"], []
    real, zeros = trial.state_tensors, torch.zeros
    monkeypatch.setattr(trial, "state_tensors", lambda *args: calls.append("state") or real(*args))
    monkeypatch.setattr(
        torch, "zeros", lambda *args, **more: zeros(*args, **{**more, "device": CPU})
    )
    model = make_model(config)

    def forward(*args):
        calls.append(next(p.grad is not None for p in model.parameters()))
        return model(*args)

    trial.trial(forward, model, config, CUDA, PLAIN, 4)
    assert calls == ["state", False, True]  # the second pass beside the first one's gradients
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore")  # torch's own, about its insides
@pytest.mark.parametrize(("kind", "unit"), [("gpt2", "model"), ("modern", "block")])
def test_the_chunked_loss_is_compiled_for_a_card(monkeypatch, kind, unit):
    """Slice by slice, outside the model's graph: this processor's compiler stands in for a card's."""
    monkeypatch.setattr(lean, "on_cpu", lambda x: False)
    calls = []

    def noted(logits, targets, soft_cap):
        calls.append((torch.compiler.is_compiling(), len(logits)))
        return chunked_loss.weigh_at_once(logits, targets, soft_cap)

    monkeypatch.setattr(gpt2, "weigh_at_once", noted)
    config = MODELS[kind].replace(chunked_loss=True, chunk_rows=16, compile_unit=unit)
    rows = torch.randint(config.vocab_size, (4, config.block_size + 1))
    answers = []
    for compile in (False, True):
        torch.manual_seed(1)
        model = make_model(config)
        forward = trial._compiled(model, config, PLAIN, None) if compile else model
        _, loss = forward(rows[:, :-1], rows[:, 1:])
        loss.backward()
        answers.append([loss.detach(), *(p.grad for p in model.parameters())])
    for plain, compiled in zip(*answers, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)
    assert calls == [(True, 16)] * 4  # each slice; the plain model does without


@pytest.mark.filterwarnings("ignore")
def test_where_compiling_fails_the_chunked_loss_is_plain_again(monkeypatch):
    monkeypatch.setattr(lean, "on_cpu", lambda x: False)
    config = MODELS["gpt2"].replace(chunked_loss=True, compile=True)
    model, weighed = make_model(config), []

    def fails(*args):
        weighed.append(model._chunked_loss)
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(trial, "trial", fails)
    flight = trial.Preflight()
    assert trial.compiled_forward(model, config, CPU, PLAIN, flight) is model
    assert weighed != [model._chunked_loss]
    assert model._chunked_loss.keywords == {"weigh": None}


@pytest.mark.parametrize("kind", MODELS)
def test_logits_beside_a_loss_that_trains_are_gpt2s_alone(kind):
    """Of a compiled graph they would have a gradient of zeros; evaluations read them."""
    model, ids = make_model(MODELS[kind]), torch.zeros(2, 8, dtype=torch.long)
    assert (model(ids, ids)[0] is None) == (kind == "modern")
    with torch.no_grad():
        assert model(ids, ids)[0] is not None
    assert model(ids)[0] is not None


@pytest.mark.parametrize("scale", [1.0, 1e-8])
def test_muon_in_fp16_is_muon(scale):
    """Cards without bf16; gradients of 1e-8 are below fp16's smallest number."""
    torch.manual_seed(1)
    matrices = scale * torch.randn(2, 24, 48)
    wanted = orthogonal(matrices, torch.float32)
    found = orthogonal(matrices, torch.float16)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_the_proof_of_resume_runs_deterministic_kernels(monkeypatch, config):
    seen = []
    real = verify.train

    def noted(*args, **more):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return real(*args, **more)

    monkeypatch.setattr(verify, "train", noted)
    assert verify.verify_resume(config, steps=4).exact
    assert seen == [True, True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_profile_uses_tf32_as_a_run_does(monkeypatch, config):
    def chosen(*args):
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError("seen")

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(profile, "choose_device", chosen)
    try:
        with pytest.raises(KeyError, match="seen"):
            profile.profile_run(config)
    finally:
        torch.set_float32_matmul_precision(before)
