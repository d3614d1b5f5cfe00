"""What only a card would run, by its twin on the CPU: fake devices, a faked NCCL, the compiler with a spy for a back end."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from runs_in_tests import TINY
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_driver import FakeCard, fake_cuda
from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train import profile, verify
from onecard.train.io.loader import to_device
from onecard.train.optim import make_optimizer, muon, optimizer_tensors, state_tensors
from onecard.train.optim.muon import orthogonal
from onecard.train.run import setup, trial, validation, workers
from onecard.train.run.energy import EnergyMeter
from onecard.train.run.preflight import Preflight
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.workers import WorkerLostError, Workers, exchange_backends

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAIN = Precision("float32", False, "")
MODELS = {
    "gpt2": TINY.replace(dropout=0.0, vocab_size=64),
    "modern": RunConfig(
        recipe="modern",
        optimizer="muon",
        n_layer=2,
        n_head=2,
        n_embd=32,
        block_size=16,
        batch_size=4,
        vocab_size=64,
    ),
}


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "device", "has_nccl", "backends"),
    [
        ("auto", "cuda", True, "cpu:gloo,cuda:nccl"),
        ("nccl", "cuda", True, "cpu:gloo,cuda:nccl"),
        ("auto", "cuda", False, "gloo"),  # Windows
        ("gloo", "cuda", True, "gloo"),
        ("auto", "mps", False, "gloo"),
        ("auto", "cpu", True, "gloo"),
    ],
)
def test_back_ends_of_the_exchange(monkeypatch, asked, device, has_nccl, backends):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
    assert exchange_backends(asked, device) == backends


def test_nccl_where_there_is_none(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UserError, match="no NCCL"):
        exchange_backends("nccl", "cuda")
    with pytest.raises(UserError, match="needs CUDA cards"):
        exchange_backends("nccl", "cpu")


@pytest.fixture
def two(monkeypatch):
    """Two workers on CUDA cards as this one sees them; what it exchanges is recorded by device."""

    def make(has_nccl: bool) -> tuple[Workers, list[str]]:
        seen: list[str] = []
        fake_cuda(monkeypatch, [FakeCard(), FakeCard()])
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.append(f"set {device}"))
        monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)
        monkeypatch.setattr(
            dist, "init_process_group", lambda backends, **more: seen.append(backends)
        )
        monkeypatch.setattr(dist, "all_gather_object", lambda found, mine: None)
        monkeypatch.setattr(
            dist, "all_reduce", lambda tensor, group=None: seen.append(tensor.device.type)
        )
        monkeypatch.setattr(
            dist, "broadcast", lambda tensor, source: seen.append(tensor.device.type)
        )
        return Workers("auto", torch.device("cuda", 1)), seen

    return make


def test_flags_go_between_cpus_and_gradients_between_cards(two):
    crew, seen = two(has_nccl=True)
    assert seen == ["set cuda:1", "cpu:gloo,cuda:nccl"]
    seen.clear()
    assert crew.any(True, False) == [True, False]
    assert crew.from_first(2.5) == 2.5
    assert seen == ["cpu", "cpu"]
    with FakeTensorMode():
        crew.add(torch.ones(3, device="cuda"))
    assert seen[2:] == ["cuda"]


def test_a_process_that_is_gone_leaves_no_card_waiting_outside_the_exchange(two):
    """Energy and the evaluation's loss are added up between CPUs, where a lost process is an error, not a wait."""
    crew, seen = two(has_nccl=True)
    seen.clear()
    assert EnergyMeter(lambda: 100.0, crew).in_all()[0] == 100.0
    with FakeTensorMode():
        validation._over_processes(torch.ones((), device="cuda"), crew)
    assert seen == ["cpu", "cpu"]


def test_nccl_that_finds_no_memory_is_not_taken_for_a_lost_process(two, monkeypatch):
    crew, _ = two(has_nccl=True)

    def full(tensor, group=None):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(dist, "all_reduce", full)
    with pytest.raises(torch.OutOfMemoryError):
        crew.any(True)


@pytest.mark.parametrize(("kind", "waits"), [("cuda", False), ("mps", True), ("cpu", True)])
def test_only_cuda_copies_while_the_host_goes_on(kind, waits):
    """Its rows are pinned, and kept until the copy is done. Metal's would be freed under the copy."""
    asked = []

    class Rows:
        def to(self, device, non_blocking):
            asked.append((device.type, non_blocking))
            return self

    to_device(Rows(), torch.device(kind))
    assert asked == [(kind, not waits)]


def test_without_nccl_the_gradients_go_through_the_host(two):
    crew, seen = two(has_nccl=False)

    class OnTheCard:
        device = CUDA
        value = torch.ones(3)

        def cpu(self):
            return self.value.clone()

        def copy_(self, other):
            self.value = other

    there = OnTheCard()
    dist.all_reduce = lambda tensor, group=None: (seen.append(tensor.device.type), tensor.mul_(2))
    assert crew.add(there) is there
    assert seen[-1] == "cpu"
    assert there.value.tolist() == [2.0, 2.0, 2.0]


def test_a_process_that_dies_during_the_exchange_is_noticed(two, monkeypatch):
    crew, _ = two(has_nccl=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    crew._pids = [(workers.socket.gethostname(), pid) for pid in (gone.pid, os.getpid())]
    looks = []

    class Event:
        """Of a stream that waits for a card whose process is no more."""

        def record(self):
            pass

        def query(self):
            looks.append(1)
            return len(looks) > 500  # or the test would hang without the look at the others

    aborted = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(workers, "_PATIENCE", 0.005)
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: aborted.append(True))
    with pytest.raises(WorkerLostError, match="process 0 is gone"):
        crew.read(torch.ones(2))
    assert aborted == [True]  # or copying the weights would wait for the exchange too
    crew._pids = [(workers.socket.gethostname(), os.getpid())] * 2
    assert crew.read(torch.ones(2)) == [1.0, 1.0]


def test_the_others_are_looked_at_now_and_then(two, monkeypatch):
    """Half a second passes at each look at the clock."""
    crew, _ = two(has_nccl=True)
    queries, looks, clock = itertools.count(), [], itertools.count()

    class Event:
        def record(self):
            pass

        def query(self):
            return next(queries) > 40

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(workers.time, "monotonic", lambda: next(clock) / 2)
    monkeypatch.setattr(workers.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(crew, "_check_others", lambda: looks.append(1))
    crew.read(torch.ones(2))
    assert len(looks) == 8  # every two seconds and a half


def test_what_the_first_process_does_alone_is_waited_for_without_an_exchange(two, monkeypatch):
    """A benchmark may take longer than any exchange waits; but the end of that process is noticed."""
    crew, seen = two(has_nccl=False)
    seen.clear()
    crew.rank, kept, looks = 1, set(), []

    class Store:
        def set(self, key, value):
            kept.add(key)

        def check(self, keys):
            looks.append(keys[0])
            if len(looks) == 3:
                kept.add(keys[0])
            return keys[0] in kept

    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", Store)
    monkeypatch.setattr(workers, "_PATIENCE", 0.01)
    crew._pids = [(workers.socket.gethostname(), os.getpid())] * 2
    crew.wait_for_first()
    assert len(looks) == 3
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    crew._pids[0] = (workers.socket.gethostname(), gone.pid)
    with pytest.raises(WorkerLostError, match="process 0 is gone"):
        crew.wait_for_first()
    crew.rank = 0
    crew.wait_for_first()
    assert len(kept) == 2  # each wait by a name of its own
    assert seen == []


@pytest.mark.parametrize(
    ("own", "other", "common"),
    [
        ("bfloat16", "float16", "float16"),  # an RTX 4090 beside an RTX 2070
        ("float16", "bfloat16", "float16"),
        ("float16", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
    ],
)
def test_mixed_cards_agree_on_one_dtype(two, monkeypatch, own, other, common):
    """Each would choose its own, and gradients scaled for float16 be added to others that are not."""
    crew, _ = two(has_nccl=True)
    theirs = torch.tensor([other == each for each in ("float32", "float16", "bfloat16")])
    monkeypatch.setattr(
        dist, "all_reduce", lambda tensor, group=None: tensor.add_(theirs.to(tensor.dtype))
    )
    found = setup.agreed_precision(Precision(own, own == "float16", "own"), crew)
    assert (found.dtype, found.scaled) == (common, common == "float16")


def test_mfu_is_of_all_cards_peaks(two, monkeypatch):
    crew, _ = two(has_nccl=True)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group=None: tensor.add_(3e13))
    assert setup._peak_of_all(1e14, crew) == 1.3e14


def test_one_process_on_another_card_sets_it(monkeypatch):
    chosen = []
    fake_cuda(monkeypatch, [FakeCard(), FakeCard()])
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    Workers("auto", torch.device("cuda", 1))
    assert chosen == [torch.device("cuda", 1)]


def test_windows_is_not_asked_by_a_signal(monkeypatch):
    monkeypatch.setattr(workers.sys, "platform", "win32")
    monkeypatch.setattr(workers.os, "kill", lambda *args: pytest.fail("Ctrl-C was sent"))
    asked = []
    monkeypatch.setattr(workers, "_runs_on_windows", lambda pid: not asked.append(pid))
    assert workers._runs(1234)
    assert asked == [1234]


# --- whole steps on devices that are not there -----------------------------------------------------------------------


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


# --- the compiler ----------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """torch.compile as onecard calls it, with a back end that only notes whether sizes were left open."""
    found: list[bool] = []
    compile_ = torch.compile

    def spy(graph, inputs):
        found.append(any(isinstance(each, torch.SymInt) for each in inputs))
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
    assert graphs == [False] * len({config.batch_size, 4, 2, 3})


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
    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: None)
    assert trial.cannot_compile(CUDA) == "triton is not installed"
    monkeypatch.setattr(trial.importlib.util, "find_spec", lambda name: object())
    assert trial.cannot_compile(CUDA) is None
    fake_cuda(monkeypatch, [FakeCard(capability=(6, 1))])
    assert "7.0 or newer" in trial.cannot_compile(CUDA)


# --- arithmetic ------------------------------------------------------------------------------------------------------


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
