"""The compiler with a spy for a back end: what is compiled, for which shapes, and where it is not tried."""

import importlib.util
import subprocess
import sys

import pytest
import torch
from runs_in_tests import MODELS

from fake_driver import FakeCard, fake_cuda
from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train.run import trial
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent
from onecard.train.run.preflight import Preflight
from onecard.train.run.row_marks import RowMarks

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAIN = Precision("float32", False, "")


@pytest.fixture
def graphs(monkeypatch):
    """torch.compile as onecard calls it, with a back end that only keeps the graphs and what goes into them."""
    found = []
    compile_ = torch.compile

    def spy(graph, inputs):
        found.append((graph, inputs))
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda model, options, **more: compile_(model, backend=spy, **more)
    )
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def test_every_shape_is_compiled_for_itself(graphs):
    config = MODELS["gpt2"]
    forward = trial.compiled_forward(
        make_model(config), config.replace(compile=True), CPU, PLAIN, Preflight()
    )
    assert len(graphs) == 1
    for size in (4, 2, 3):  # halved after running out; a rank's share; an evaluation's last
        rows = torch.zeros(size, config.block_size + 1, dtype=torch.long)
        forward(rows[:, :-1], rows[:, 1:], None)
    assert len(graphs) == len({config.batch_size, 4, 2, 3})
    assert not any(isinstance(each, torch.SymInt) for _, inputs in graphs for each in inputs)


@pytest.mark.parametrize("eval_iters", [1, 3])
def test_the_evaluation_is_compiled_before_the_first_step(graphs, config, eval_iters):
    class Watching(Silent):
        def __init__(self):
            self.graphs = []

        def step(self, fields):
            self.graphs.append(len(graphs))

    view = Watching()
    train(config.replace(compile=True, eval_iters=eval_iters, max_iters=4), view=view)
    assert view.graphs[0] > 1
    assert len(graphs) == view.graphs[0]


@pytest.mark.parametrize("masked", [False, True])
def test_the_run_does_not_compile_what_the_trial_compiled(graphs, masked):
    config = MODELS["gpt2"].replace(mask_documents=masked, compile=True)
    model = make_model(config)
    forward = trial.compiled_forward(model, config, CPU, PLAIN, Preflight())
    before = len(graphs)
    rows = torch.randint(0, 64, (3 * config.batch_size, config.block_size + 1))
    for part in rows.split(config.batch_size):
        inputs = part[:, :-1]
        forward(inputs, part[:, 1:], RowMarks(7 if masked else None).documents(inputs))[
            1
        ].backward()
    assert len(graphs) == before == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_chunked_loss_stays_out_of_the_graphs(graphs, chunked):
    """Compiled with the rest, all its slices of logits would be there at once."""
    config = MODELS["gpt2"].replace(chunked_loss=chunked, vocab_size=192, compile=True)
    trial.compiled_forward(make_model(config), config, CPU, PLAIN, Preflight())
    made = [node.meta.get("example_value") for graph, _ in graphs for node in graph.graph.nodes]
    widths = {each.shape[-1] for each in made if isinstance(each, torch.Tensor) and each.dim() > 1}
    assert config.n_embd in widths
    assert (192 in widths) == (not chunked)


def test_no_compiler_is_imported_where_nothing_is_compiled():
    code = "import sys, onecard.model.opening, onecard.train.run.loop; sys.exit('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_running_out_inside_the_compiler_does_not_make_the_run_eager(monkeypatch, graphs):
    from torch._inductor.exc import InductorError

    def wrapped(*args):
        raise InductorError(
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), None
        )

    config = MODELS["gpt2"].replace(compile=True)
    model, flight = make_model(config), Preflight()
    monkeypatch.setattr(trial, "trial", wrapped)
    assert trial.compiled_forward(model, config, CPU, PLAIN, flight) is not model
    assert flight.lines == []

    monkeypatch.setattr(trial, "trial", lambda *args: 1 / 0)
    assert trial.compiled_forward(model, config, CPU, PLAIN, flight) is model
    assert "division by zero" in flight.lines[0]


def test_apples_gpus_run_eager():
    assert "prototype" in trial.cannot_compile(torch.device("mps"))


def test_no_triton(monkeypatch):
    fake_cuda(monkeypatch, [FakeCard()])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert trial.cannot_compile(CUDA) == "triton is not installed"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert trial.cannot_compile(CUDA) is None
    fake_cuda(monkeypatch, [FakeCard(capability=(6, 1))])
    assert "7.0 or newer" in trial.cannot_compile(CUDA)
