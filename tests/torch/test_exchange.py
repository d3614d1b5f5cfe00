"""Several processes on cards that are not there: a faked NCCL, processes that are gone, cards that differ."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from fake_driver import FakeCard, fake_cuda
from onecard.errors import UserError
from onecard.model.machine import Precision
from onecard.train.io.loader import to_device
from onecard.train.run import setup, validation, workers
from onecard.train.run.energy import EnergyMeter
from onecard.train.run.workers import WorkerLostError, Workers, exchange_backends

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
PLAIN = Precision("float32", False, "")


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
    assert EnergyMeter(lambda: 100.0, crew).read_all()[0] == 100.0
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
