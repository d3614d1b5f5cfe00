"""Optimizer state, fp32 weights and layer inputs in the computer's memory: the same training, resumed exactly."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, losses

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model import host
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


def test_what_streams_are_given_and_wait_for(monkeypatch):
    """Streams that only note what they are asked: on a real card tests/gpu compares the weights."""
    noted = []

    class Stream:
        def __init__(self, device=None, name=None):
            self.name = name or f"lane {sum(1 for each in noted if each == 'made')}"
            noted.append("made")

        def wait_stream(self, other):
            noted.append((self.name, "waits for", other.name))

        def wait_event(self, event):
            noted.append((self.name, "waits for", event))

        def record_event(self):
            return f"turn of {self.name}"

    main = Stream(name="main")
    noted.clear()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(noted.append(stream.name)))
    monkeypatch.setattr(host, "HELD_BYTES", 100)
    lanes = host.Lanes(torch.device("cuda"))
    noted.clear()
    small, large = torch.zeros(10), torch.zeros(20)  # 40 and 80 bytes
    for gradient in (small, small, large):
        with lanes.turn(gradient):
            noted.append("update")
    each = [[(f"lane {n}", "waits for", "main"), f"lane {n}", "update"] for n in range(3)]
    # 160 bytes are too many: nothing goes on before the first two are done with
    waits = [("main", "waits for", f"turn of lane {n}") for n in range(2)]
    assert noted == [*each[0], *each[1], *each[2], *waits]
    assert [held for _, held in lanes._held] == [(large,)]
    lanes.join()
    assert noted[-3:] == [("main", "waits for", f"lane {n}") for n in range(3)]
    assert not lanes._held


def test_host_memory_is_little_more_than_its_tensors(monkeypatch):
    """torch rounds pinned memory up to powers of two: a block is one, and what a tensor leaves is used by the next."""
    monkeypatch.setattr(host, "_LEAST_BLOCK", 2**18)
    room, sizes = host.HostRoom(torch.device("cpu")), [80_000] * 3
    sizes += [10_240, 2_560, 7_680, 10_240, 100] * 48  # the proportions of GPT-2 XL
    tensors = [room.take((size,), torch.float32) for size in sizes]
    taken = sum(tensor.nbytes for tensor in tensors)
    blocks = {block.data_ptr(): block.nbytes for block, _ in room._blocks}
    assert all(size & (size - 1) == 0 for size in blocks.values())
    assert taken <= room.bytes < 1.05 * taken
    tensors[0].fill_(1)
    assert not any(tensor.any() for tensor in tensors[1:])


def test_a_computer_with_too_little_memory(config, tmp_path):
    from onecard.facts.here import cpu

    huge = config.replace(n_layer=1000, n_embd=20_000, n_head=100, offload_optimizer=True)
    assert 8 * 12 * huge.n_layer * huge.n_embd**2 > cpu().memory_bytes
    with pytest.raises(UserError, match="are to be kept in the computer's memory, and it has"):
        check_host(huge, processes=1)


def test_only_layer_inputs_can_be_kept_there():
    with pytest.raises(UserError, match="offload_activations keeps layer inputs"):
        RunConfig(offload_activations=True)
