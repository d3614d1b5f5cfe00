"""Precision by card, device by name, and the watch over the loss."""

import dataclasses
import math
import sys

import pytest
import torch

from onecard.errors import UserError
from onecard.model.machine import (
    choose_device,
    choose_precision,
    keep_freed_memory,
    measured_peak_flops,
)
from onecard.train.run.loss_watch import LossWatch
from onecard.train.run.progress import random_seed


@pytest.mark.parametrize(
    ("device", "capability", "dtype", "scaled"),
    [
        ("cuda", (12, 0), "bfloat16", False),  # Blackwell
        ("cuda", (8, 9), "bfloat16", False),  # Ada
        ("cuda", (8, 0), "bfloat16", False),  # A100
        ("cuda", (7, 5), "float16", True),  # Turing: torch would emulate bf16, slowly
        ("cuda", (7, 0), "float16", True),  # Volta
        ("cuda", (6, 1), "float16", True),  # Pascal
        ("cpu", None, "float32", False),
        ("mps", None, "float32", False),
    ],
)
def test_precision_follows_the_card(device, capability, dtype, scaled):
    found = choose_precision("auto", device, capability)
    assert (found.dtype, found.scaled) == (dtype, scaled)


def test_precision_asked_for_is_given():
    assert choose_precision("float16", "cuda", (8, 9)).scaled
    assert choose_precision("float32", "cuda", (8, 9)).dtype == "float32"


def test_device_by_name():
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="is not one that"):
        choose_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA card"):
            choose_device("cuda:1")
        assert choose_device("auto").type in ("cpu", "mps")


def test_the_peak_is_a_rate_of_this_century():
    assert 1e8 < measured_peak_flops(torch.device("cpu"), "float32") < 1e14


def test_the_watch_knows_a_spike_from_scatter():
    watch = LossWatch()
    for step in range(300):
        loss = 3 + 2 * math.exp(-step / 30) + 0.1 * math.sin(step * 12.9898)
        assert watch.verdict(loss, 1.0) is None, step
        watch = watch.learn(loss)
    assert watch.verdict(3.4, 1.0) is None
    assert "jumped to 9.000" in watch.verdict(9.0, 1.0)
    assert "norm is inf" in watch.verdict(3.0, math.inf)
    again = LossWatch(**dataclasses.asdict(watch))
    assert again.verdict(9.0, 1.0) == watch.verdict(9.0, 1.0)


def test_random_seeds_do_not_repeat():
    seeds = {
        random_seed(seed, step, rank)
        for seed in range(5)
        for step in range(200)
        for rank in range(4)
    }
    assert len(seeds) == 5 * 200 * 4
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's settings")
def test_freed_pages_are_used_again():
    import resource

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [torch.ones(2**20) for _ in range(40)]  # 4 MiB each: 40,960 pages, then free
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory(torch.device("cpu"))
    faults()
    assert faults() + faults() < 20_000
