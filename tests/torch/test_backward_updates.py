"""Gradients applied and freed within the backward pass: the same training, and a bad step goes back to a checkpoint."""

from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, events, losses

from onecard.config import RunConfig
from onecard.errors import InternalError, RunFailure, UserError
from onecard.model import checkpoint
from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train.optim.sliced import SlicedOptimizer
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.run.trial import trial


@pytest.fixture
def plain(config):
    return config.replace(n_embd=64, max_iters=8, lr_decay_iters=8, grad_clip=0.0, dtype="bfloat16")


LEAN = {"weights": "bfloat16", "gradients": "bfloat16", "optimizer_state": "8bit"}


@pytest.mark.parametrize(
    ("change", "accumulation"),
    [
        (LEAN, 1),
        (LEAN, 3),
        ({**LEAN, "offload_optimizer": True, "recompute": "block"}, 3),
        ({"offload_optimizer": True, "optimizer": "muon", "recipe": "modern"}, 1),
    ],
)
def test_it_is_the_same_training_and_resumed_exactly(plain, tmp_path, change, accumulation):
    plain = plain.replace(**change, gradient_accumulation_steps=accumulation, dropout=0.0)
    within = plain.replace(update_in_backward=True, out_dir=str(tmp_path / "within"))
    train(plain)
    train(within.replace(max_iters=5))
    train(within, resume=True, change=["max_iters"])
    assert losses(within.out_dir) == losses(plain.out_dir)
    assert_same_weights(within.out_dir, plain.out_dir)


def test_gradients_are_never_there_together(plain, monkeypatch):
    """As many as one layer has at most, where all would be sixteen."""
    most = []

    def counted(self, parameter, own=SlicedOptimizer.update):
        own(self, parameter)
        most.append(sum(p.grad is not None for p in self._groups))

    monkeypatch.setattr(SlicedOptimizer, "update", counted)
    plain = plain.replace(**LEAN, gradient_accumulation_steps=1, max_iters=2, lr_decay_iters=2)
    train(plain)
    assert max(most) > 8
    most.clear()
    train(plain.replace(update_in_backward=True, out_dir=plain.out_dir + "-within"))
    assert max(most) == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_bad_step_goes_back_to_the_checkpoint(plain, tmp_path, times):
    within = plain.replace(update_in_backward=True, always_save_checkpoint=True, eval_interval=2)
    within = within.replace(gradient_accumulation_steps=1)
    calm = within.replace(out_dir=str(tmp_path / "calm"))
    train(calm)
    faults = Faults([("nan", 5)] * times)
    if times == 2:
        with pytest.raises(RunFailure, match="step 6: the loss is nan, and was applied; there is"):
            train(within, faults=faults)
        return
    train(within, faults=faults)
    assert losses(within.out_dir) == losses(calm.out_dir)
    assert_same_weights(within.out_dir, calm.out_dir)
    (event,) = [e for e in events(within.out_dir) if e.get("action") == "rollback"]
    assert "the loss is nan, and was applied; back to the checkpoint of step 4" in event["text"]


def test_memory_that_runs_out_when_some_are_applied(plain, tmp_path, monkeypatch):
    """Half of an update is in the weights: back to the checkpoint, and on with half the micro-batch."""
    within = plain.replace(
        update_in_backward=True, always_save_checkpoint=True, eval_interval=2, batch_size=4
    )
    calls = []

    def failing(self, parameter, own=SlicedOptimizer.update):
        calls.append(1)
        if len(calls) == 100:
            raise torch.OutOfMemoryError("planted")
        own(self, parameter)

    monkeypatch.setattr(SlicedOptimizer, "update", failing)
    assert train(within).step == 8
    found = [event["event"] for event in events(within.out_dir)]
    assert "oom" in found
    assert "bad_step" in found


def test_an_error_when_some_are_applied_leaves_the_checkpoint_and_an_exact_resume(
    plain, tmp_path, monkeypatch
):
    within = plain.replace(update_in_backward=True, always_save_checkpoint=True, eval_interval=2)
    calm = within.replace(out_dir=str(tmp_path / "calm"))
    train(calm)
    calls = []

    def failing(self, parameter, own=SlicedOptimizer.update):
        calls.append(1)
        if len(calls) == 100:
            raise RuntimeError("planted")
        own(self, parameter)

    with monkeypatch.context() as patch:
        patch.setattr(SlicedOptimizer, "update", failing)
        with pytest.raises(
            InternalError, match=r"RuntimeError: planted; step (\d+) could not be saved"
        ):
            train(within)
    saved = checkpoint.step_of(checkpoint.checkpoints(Path(within.out_dir))[-1])
    assert saved % 2 == 0
    train(within, resume=True)
    assert losses(within.out_dir) == losses(calm.out_dir)
    assert_same_weights(within.out_dir, calm.out_dir)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_trial_before_a_run_keeps_as_many_gradients_as_a_step(plain, accumulation):
    config = plain.replace(update_in_backward=True, gradient_accumulation_steps=accumulation)
    model = make_model(config)
    most = []

    def count(parameter):
        most.append(sum(p.grad is not None for p in model.parameters()))

    hooks = [p.register_post_accumulate_grad_hook(count) for p in model.parameters()]
    precision = Precision("float32", False, "")
    trial(model, model, config, torch.device("cpu"), precision, config.batch_size)
    assert (max(most) == 1) == (accumulation == 1)
    for hook in hooks:
        hook.remove()
    model(torch.zeros(1, 16, dtype=torch.long))[0].sum().backward()
    assert all(p.grad is not None for p in model.parameters())  # nothing takes them away any more


def test_it_cannot_be_clipped():
    with pytest.raises(UserError, match="update_in_backward applies gradients before the norm"):
        RunConfig(update_in_backward=True)
    with pytest.raises(UserError, match="float16's range"):
        RunConfig(update_in_backward=True, grad_clip=0.0, dtype="float16")
