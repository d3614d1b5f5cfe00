"""Whole machines that are not there: what the doctor finds is what the next `train` does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from good_card import BUSY

from fake_driver import FakeCard, FakeLibrary, fake_cuda
from onecard.cli import main
from onecard.cli import train as train_command
from onecard.config import RunConfig
from onecard.facts.nvml import Nvml
from onecard.model import machine
from onecard.train.doctor import compute
from onecard.train.doctor import diagnose as diagnosing
from onecard.train.doctor.answers import Answers, Check
from onecard.train.doctor.diagnose import diagnose
from onecard.train.doctor.kept import keep

pytestmark = pytest.mark.usefixtures("home")


def test_the_first_train_on_a_new_card_checks_it_and_takes_the_fall_backs(
    monkeypatch, card, capsys
):
    fake_cuda(monkeypatch, [FakeCard()])
    monkeypatch.setattr("onecard.train.doctor.answers.ask", lambda device: card)
    checked = []

    def quick(device, quick, answers):
        checked.append(quick)
        rows = [Check("compiler", "fall-back", "no triton", settings=(("compile", False),))]
        keep(answers, rows)
        return rows

    monkeypatch.setattr(diagnosing, "diagnose", quick)
    for _ in range(2):
        config = train_command._as_this_device_can(RunConfig(), prints=True)
        assert config.compile is False
    assert checked == [True]  # the second time it is known
    assert "no triton" in capsys.readouterr().out

    monkeypatch.setattr("onecard.train.doctor.answers.ask", lambda device: 1 / 0)
    assert train_command._as_this_device_can(RunConfig(), prints=True).compile  # the run continues
    assert "the run continues" in capsys.readouterr().err


@pytest.fixture
def played(monkeypatch, card):
    """A card that answers as `card` does and computes on the CPU; `train` asks the same one."""
    fake_cuda(monkeypatch, [FakeCard()])
    here = replace(card, device=torch.device("cpu"), facts=None)
    monkeypatch.setattr(Answers, "kind", property(lambda self: "cuda"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *args: None)

    def play(**changed) -> tuple[dict[str, Check], RunConfig]:
        machine_there = replace(here, **changed)
        monkeypatch.setattr("onecard.train.doctor.answers.ask", lambda device: machine_there)
        rows = diagnose(here.device, True, answers=machine_there, folder=Path.cwd())
        config = train_command._as_this_device_can(RunConfig(), prints=False)
        return {row.check: row for row in rows}, config

    return play


def test_a_good_card_changes_nothing(played):
    rows, config = played()
    assert {row.status for row in rows.values()} == {"ok"}
    assert config == RunConfig()


@pytest.mark.parametrize(
    ("changed", "check", "key", "value"),
    [
        ({"has_triton": False}, "compiler", "compile", False),
        ({"cache": Path("/proc/nowhere")}, "compiler", "compile", False),
    ],
    ids=["no triton", "a cache that cannot be written"],
)
def test_train_takes_what_the_doctor_chose(played, changed, check, key, value):
    rows, config = played(**changed)
    assert rows[check].status == "fall-back"
    assert config == RunConfig().replace(**{key: value})


def test_train_leaves_a_dtype_that_computes_wrong(played, monkeypatch):
    monkeypatch.setitem(compute._MOST_ERROR, "bfloat16", -1.0)
    rows, config = played()
    assert rows["precision"].status == "fall-back"
    assert config == RunConfig(dtype="float16")


def test_a_card_with_fp16_alone_is_used_in_fp16(played):
    rows, config = played(capability=(7, 5), name="NVIDIA GeForce RTX 2070")
    assert rows["precision"].status == "ok"
    assert rows["precision"].detail.startswith("float16 is used")
    assert config.dtype == "auto"  # which is float16 there: test_cards


def test_train_leaves_attention_that_fails(played, monkeypatch):
    monkeypatch.setattr(
        compute.F, "scaled_dot_product_attention", lambda *args, **more: 1 / torch.ones(0).item()
    )
    rows, config = played()
    assert rows["attention"].status == "fall-back"
    assert config.attention == "math"


def test_a_throttled_card_is_named_and_trains_all_the_same(played):
    slow = replace(BUSY, sm_mhz=900, celsius=92, held_back_by=("temperature",))
    rows, config = played(reading=lambda: slow)
    assert rows["clocks"].status == "action"
    assert config == RunConfig()


def test_too_little_disk_is_named_and_changes_no_setting(played):
    rows, config = played(free_disk=lambda folder: 10 << 20)
    assert (rows["disk"].status, config) == ("action", RunConfig())


@pytest.mark.parametrize("index", [0, 1])
def test_mixed_cards_keep_their_own_fall_backs(played, index):
    """torch counts the fastest first, the driver by its bus: what one card cannot do is not compared with the other."""
    names = ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060")
    played(name=names[1 - index], seen=names, has_triton=False)
    rows, config = played(name=names[index], seen=names)
    assert rows["device"].detail.startswith(names[index])
    assert f"torch counts {', '.join(names)}" in rows["device"].detail
    assert config.compile


@pytest.mark.parametrize(
    ("cuda", "driver", "words"),
    [
        ("13.0", "550.54.14", "driver 550.54.14 is too old for CUDA 13.0: install 580 or newer"),
        (None, "580.95.05", "it is built without CUDA; install torch"),
    ],
)
def test_a_card_that_torch_cannot_use_is_named_and_the_cpu_trains(
    monkeypatch, capsys, tmp_path, cuda, driver, words
):
    """What an old driver looks like: torch finds no card at all, and the driver shows one."""
    monkeypatch.chdir(tmp_path)
    library = Nvml(FakeLibrary([FakeCard()], driver=driver))
    monkeypatch.setattr("onecard.facts.nvml.open_nvml", lambda: library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(machine.sys, "platform", "linux")
    assert main(["doctor", "--quick", "--json"]) == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["driver"]["status"] == "action"
    assert words in rows["driver"]["detail"]
    assert "RTX 4070" in rows["driver"]["detail"]
    assert rows["step"]["status"] == "ok"  # on the CPU, which trains
    assert words in machine.unseen_card(machine.choose_device("auto"), "auto")
