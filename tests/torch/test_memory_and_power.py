"""Memory that runs out, distinguished from other errors on every kind of device; the tail of an evaluation; energy."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from runs_in_tests import losses

from onecard.model import machine
from onecard.model.build import make_model
from onecard.model.out_of_memory import is_out_of_memory
from onecard.model.power import PowerMeter
from onecard.runs.log import read_log
from onecard.train.run import loop, session
from onecard.train.run.energy import EnergyMeter
from onecard.train.run.loop import train
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.validation import evaluate
from onecard.train.run.workers import Workers

OUT_OF_MEMORY = [
    torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total ..."
    ),
    MemoryError(),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.03 GB, other allocations: 1 MB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("HIP error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
    RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 800 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: not enough memory: "
        "you tried to allocate 800 bytes."
    ),
    RuntimeError("std::bad_alloc"),
    OSError(12, "Cannot allocate memory"),
]
OTHER = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 5x6)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    OSError(28, "No space left on device"),
    KeyboardInterrupt("out of memory"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda e: str(e)[:40] or type(e).__name__)
def test_memory_that_ran_out_is_recognised_bare_and_wrapped(error):
    assert is_out_of_memory(error)
    compiler = RuntimeError("backend='inductor' raised:\nsomething")
    compiler.__cause__ = error
    assert is_out_of_memory(compiler)


@pytest.mark.parametrize("error", OTHER, ids=str)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)


def test_inductors_error_is_recognised():
    from torch._inductor.exc import InductorError

    inner = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    wrapped = InductorError(inner, None)
    assert is_out_of_memory(wrapped)
    assert is_out_of_memory(RuntimeError("InductorError: OutOfMemoryError: Tried to allocate"))


def test_the_cpu_allocators_own_error_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


class Row:
    """A split of made-up tokens."""

    tokens = 1000

    def read(self, start, count):
        return np.arange(start, start + count).astype(np.uint16) % 61


@pytest.mark.parametrize("change", [{}, {"chunked_loss": True}, {"recipe": "modern"}])
@pytest.mark.parametrize("micro_batch", [3, 4, 9])
def test_the_tail_of_an_evaluation_has_the_shape_of_the_rest(config, change, micro_batch):
    """A compiled model is not compiled again for it, and the loss is the mean over the real windows alone."""
    model = make_model(config.replace(dropout=0.0, **change))
    seen = set()

    class Watched(torch.nn.Module):
        def forward(self, inputs, targets, mask):
            seen.add(
                (inputs.shape, inputs.stride(), targets.shape, targets.stride(), mask.stride())
            )
            return model(inputs, targets, mask)

    workers = Workers("auto", torch.device("cpu"))
    precision = machine.precision_of("float32", workers.device)
    found = evaluate(Watched(), Row(), 16, 7, micro_batch, workers, precision, marks=RowMarks(5))
    one_by_one = [
        evaluate(model, _From(i * 62 // 7), 16, 1, 1, workers, precision, marks=RowMarks(5)).loss
        for i in range(7)
    ]
    assert found.loss == pytest.approx(sum(one_by_one) / 7, rel=1e-5)
    assert len(seen) == 1


class _From(Row):
    def __init__(self, window):
        self.first = 16 * window

    def read(self, start, count):
        return super().read(self.first + start, count)


def test_the_trial_compiles_for_the_masks_that_the_steps_have(config):
    from onecard.train.run.trial import trial

    config = config.replace(mask_documents=True, dropout=0.0)
    model, strides = make_model(config), []

    class Watched(torch.nn.Module):
        def forward(self, inputs, targets, mask):
            strides.append((inputs.stride(), targets.stride(), mask.stride(), mask.dtype))
            return model(inputs, targets, mask)

    device = torch.device("cpu")
    trial(Watched(), model, config, device, machine.precision_of("float32", device), 4)
    rows = torch.zeros(4, 17, dtype=torch.long)
    mask = RowMarks(5).documents(rows[:, :-1])
    assert strides == [(rows[:, :-1].stride(), rows[:, 1:].stride(), mask.stride(), mask.dtype)]


def test_energy_is_the_draw_over_all_the_time_between_readings():
    clock, draws = iter([0.0, 10.0, 10.5, 40.0, 50.0]), iter([100.0, 200.0, None])
    meter = EnergyMeter(
        lambda: next(draws), Workers("auto", torch.device("cpu")), lambda: next(clock)
    )
    assert meter.read_all() == (100.0, pytest.approx(1000 / 3.6e6))
    assert meter.read_all() == (100.0, pytest.approx(50 / 3.6e6))  # too soon to read again
    assert meter.read_all() == (200.0, pytest.approx(29.5 * 150 / 3.6e6))
    assert meter.read_all() == (None, 0.0)  # the reading failed


def test_a_runs_energy_counts_its_evaluations(config, monkeypatch):
    import time

    real = session.evaluate

    def slow(*args, **kwargs):
        time.sleep(0.3)
        return real(*args, **kwargs)

    monkeypatch.setattr(session, "evaluate", slow)
    monkeypatch.setattr(loop, "power_meter", lambda device, cards: PowerMeter([lambda: 360.0]))
    train(config.replace(eval_interval=1, max_iters=3))
    end = list(read_log(Path(config.out_dir) / "log.jsonl"))[-1]
    assert end["kwh"] * 3.6e6 / 360.0 > 3 * 0.3


@pytest.mark.timeout(120)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo under torchrun is not set up on Windows")
def test_energy_is_of_all_processes_cards(several):
    assert several.energy(2) == ["(300.0, 0.003)"] * 2


def test_the_peak_of_memory_is_the_runs_own(config, monkeypatch):
    """The preflight's trial is larger than a step, and its peak would stay in every line of the log."""
    began = []
    monkeypatch.setattr(
        machine, "forget_peak_memory", lambda device: began.append(losses_so_far(config))
    )
    train(config.replace(max_iters=2))
    assert began == [{}]  # once, before the first step
    reset = []
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    machine.forget_peak_memory(torch.device("cuda", 1))
    assert reset == [torch.device("cuda", 1)]


def losses_so_far(config):
    return losses(config.out_dir)


def test_an_evaluation_of_part_of_a_split_sees_all_of_it():
    """At equal distances: the first windows alone may all lie in one long document, as unlike the rest as can be."""
    seen = []

    class Watched(torch.nn.Module):
        def forward(self, inputs, targets, mask):
            seen.extend(inputs[:, 0].tolist())
            return None, torch.zeros(())

    class Counting(Row):
        def read(self, start, count):
            return np.full(count, start, dtype=np.int64)

    workers = Workers("auto", torch.device("cpu"))
    precision = machine.precision_of("float32", workers.device)
    evaluate(Watched(), Counting(), 16, 31, 1, workers, precision)
    assert seen == [32 * n for n in range(31)]  # every second of the 62 that there are
