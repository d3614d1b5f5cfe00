"""torch.compile's modes in the trainer. A CUDA graph is played by a stand-in that hands out the same memory at every replay."""

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import list_mode_options

from onecard.config import RunConfig, choices
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.model.build import gradient_dtype
from onecard.model.machine import Precision
from onecard.planner.step_time import step_time
from onecard.train.probe import start
from onecard.train.run import trial
from onecard.train.run.trial import MODES, Replayed, compile_options

SMALL = RunConfig(
    n_layer=1,
    n_head=2,
    n_embd=16,
    block_size=16,
    batch_size=2,
    gradient_accumulation_steps=4,  # a fourth of a loss costs its gradients no digits
    vocab_size=64,
    compile=True,
    compile_mode="reduce-overhead",
    device="cpu",
)


class Graph(nn.Module):
    """What a CUDA graph does to its callers: loss and gradients always lie in the same memory."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._orig_mod = model
        self.parts = list(model.parameters())
        self.memory = [torch.zeros_like(p, dtype=gradient_dtype(p)) for p in self.parts]

    def forward(self, *inputs):
        if not torch.is_grad_enabled():
            return self._orig_mod(*inputs)
        return None, _Replay.apply(self, inputs, *self.parts)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, graph, inputs, *parts: Tensor):
        ctx.graph = graph
        with torch.enable_grad():
            loss = graph._orig_mod(*inputs)[1]
            ctx.grads = torch.autograd.grad(loss, graph.parts)
        return loss.detach()

    @staticmethod
    def backward(ctx, grad):
        for memory, found in zip(ctx.graph.memory, ctx.grads, strict=True):
            memory.copy_(found * grad)
        # tensors that nobody else refers to, as a replay gives them out: autograd keeps such a gradient as it is
        return None, None, *(memory.detach() for memory in ctx.graph.memory)


def gradients(monkeypatch, config: RunConfig, wrapped) -> list[Tensor]:
    monkeypatch.setattr(trial, "cannot_compile", lambda device: None)
    monkeypatch.setattr(trial, "static_compile", lambda model, options: Graph(model))
    monkeypatch.setattr(trial, "Replayed", wrapped)
    turn = start(torch.device("cpu"), config)
    for step in range(2):  # the second step's: the first one's memory must not matter
        turn.stepper.gradients(turn.rows, step, seed=0)
    return [p.grad.clone() for p in turn.stepper.model.parameters()]


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_gradients_of_replayed_graphs_add_up(monkeypatch, weights):
    small, begun = SMALL.replace(weights=weights, dtype=weights), []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))
    eager = start(torch.device("cpu"), small.replace(compile=False, compile_mode="default"))
    eager.stepper.gradients(eager.rows, 0, seed=0)
    expected = [p.grad for p in eager.stepper.model.parameters()]
    found = gradients(monkeypatch, small, Replayed)
    assert len(begun) >= 2 * small.gradient_accumulation_steps
    torch.testing.assert_close(found, expected)
    # without it the graph's own memory is what the step adds up, and the sum is wrong: the stand-in shows the danger
    wrong = gradients(monkeypatch, small, lambda compiled: compiled)
    assert any(not torch.allclose(a, b) for a, b in zip(wrong, expected, strict=True))


def test_modes_are_torchs_own():
    assert set(MODES) == set(choices("compile_mode"))
    for name, options in MODES.items():
        assert options == list_mode_options(name)
    precision = Precision("bfloat16", False, "")
    again = SMALL.replace(recompute="block")
    both = compile_options(again, precision)
    assert both["triton.cudagraphs"]
    activation = 2 * SMALL.n_embd * SMALL.block_size * SMALL.batch_size
    assert both["score_fusion_memory_threshold"] == activation // 2
    narrow = again.replace(attention="math", block_size=64 * SMALL.block_size, batch_size=1)
    mask = narrow.block_size**2
    assert compile_options(narrow, precision)["score_fusion_memory_threshold"] == 2 * mask
    assert compile_options(SMALL.replace(compile_mode="default"), precision) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"compile_unit": "block"},
        {"gradients": "bfloat16"},
        {"recompute": "block", "offload_activations": True},
    ],
)
def test_what_takes_a_graphs_outputs_over_is_refused(changes):
    with pytest.raises(UserError, match="reduce-overhead"):
        SMALL.replace(**changes)


def test_a_plan_knows_that_the_host_launches_less():
    tiny = RunConfig(n_layer=6, n_head=6, n_embd=384, batch_size=1, block_size=256)
    card = find_gpu("RTX 4090")
    times = {
        mode: step_time(tiny.replace(compile_mode=mode), card, "bfloat16").parts["launch"]
        for mode in ("default", "reduce-overhead")
    }
    assert times["reduce-overhead"] < times["default"]


@pytest.mark.long
@pytest.mark.parametrize("mode", list(MODES))
def test_compiled_steps_in_every_mode_are_the_eager_ones(mode):
    """On a CPU Inductor skips the graphs; the rest of the path is the card's."""
    losses = []
    for config in (SMALL.replace(compile=False), SMALL.replace(compile_mode=mode)):
        turn = start(torch.device("cpu"), config)
        assert turn is not None
        turn.steps(3)
        losses.append(turn.losses)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
