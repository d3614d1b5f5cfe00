"""Calibrations: kept and read back, never believed blindly, used for this very device alone."""

import dataclasses
import json

import pytest
from calibrations import HINTS, SMALL, TRUE, calibration
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from onecard.cli.probe import _rates_table
from onecard.facts.gpus import find_gpu
from onecard.facts.here import cpu
from onecard.planner import calibration_file, plan
from onecard.planner.calibration import RATES, refine
from onecard.planner.calibration_file import (
    calibrations_folder,
    known_calibration,
    load_calibration,
    write_calibration,
)
from onecard.planner.calibration_json import from_json, to_json
from onecard.planner.step_time import step_time, workload_time
from onecard.planner.step_work import PART_OF, mode, predicted, work
from onecard.planner.workload import Workload


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration_file, "torch_version", lambda: "2.13.0")


def test_what_was_measured_is_shown_in_its_units(capsys):
    device, rates = find_gpu("RTX 4070"), dict.fromkeys(RATES, 20e12)
    rates |= {"copy": 250e9, "triad": 400e9, "fresh": 12.34e9, "operation_seconds": 6.5e-6}
    shown = _rates_table(calibration(device, rates=rates, dtype="bfloat16"), device)
    Console(width=100).print(shown)
    lines = capsys.readouterr().out.splitlines()
    found = {line.split("  ")[0].strip(" │┃"): line for line in lines}
    assert "20,000 GFLOPS" in found["large matmul"]
    assert f"{20e12 / device.peak_flops('bfloat16'):.0%}" in found["large matmul"]
    assert "250 GB/s" in found["copy"]
    assert f"{250e9 / device.bandwidth:.0%}" in found["copy"]
    assert "12.3 GB/s" in found["memory new to the process"]
    assert "6.5 µs" in found["tiny operation"]


def test_round_trip():
    kept = calibration(runs=(("eager", 1.1),))
    assert from_json(json.loads(json.dumps(to_json(kept)))) == kept
    path = write_calibration(kept)
    assert path.parent == calibrations_folder()
    assert load_calibration(cpu()) == kept
    newer = dataclasses.replace(kept, date="2027-01-01T00:00:00+00:00", runs=())
    (path.parent / "other-name.json").write_text(json.dumps(to_json(newer)), encoding="utf-8")
    assert load_calibration(cpu()) == newer
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []


def test_a_plan_uses_it_says_so_and_narrows():
    before = plan(SMALL, "cpu")
    write_calibration(calibration())
    after = plan(SMALL, "cpu")
    assert (before.time.basis, after.time.basis) == ("class", "measured")
    real = predicted(Workload.of(SMALL, "float32"), TRUE)
    assert after.time.step_seconds.mid == pytest.approx(real, rel=0.03)
    assert sum(after.time.parts.values()) == pytest.approx(after.time.step_seconds.mid)

    def width(p):
        return p.time.step_seconds.high / p.time.step_seconds.low

    assert 1.08 <= width(after) < width(before)
    untried = plan(SMALL.replace(dropout=0.1), "cpu")
    assert untried.time.basis == "measured"
    assert width(untried) > width(after)


def test_a_search_uses_what_was_measured_meanwhile():
    device = cpu()
    known_calibration.cache_clear()
    assert known_calibration(device) is None
    write_calibration(calibration())
    assert known_calibration(device) is not None
    known_calibration.cache_clear()


def test_other_devices_and_circumstances_are_left_alone(monkeypatch):
    table = find_gpu("RTX 4070")
    mine = dataclasses.replace(table, taken_bytes=0, power_limit_watts=200.0)
    write_calibration(calibration(mine, dtype="bfloat16", observations=()))
    write_calibration(calibration())
    assert load_calibration(mine) is not None
    assert load_calibration(table) is None  # somebody's RTX 4070, not this one
    for other in (
        {"power_limit_watts": 160.0},
        {"usable_bytes": 16 * 2**30},
        {"name": "RTX 4070 Ti"},
    ):
        assert load_calibration(dataclasses.replace(mine, **other)) is None
    assert plan(SMALL, "RTX 4070").time.basis == "fitted"
    assert (
        step_time(SMALL, mine, "float16", 1, load_calibration(mine)).basis == "fitted"
    )  # a dtype never measured
    monkeypatch.setattr(calibration_file, "torch_version", lambda: "2.14.0")
    assert load_calibration(mine) is None


@given(
    st.sampled_from(
        [
            "n_layer",
            "n_embd",
            "batch_size",
            "vocab_size",
            "block_size",
            "gradient_accumulation_steps",
        ]
    ),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(1, 16),
    st.integers(2, 60_000),
    st.booleans(),
)
def test_everything_still_grows(key, layers, heads, batch, vocabulary, compiled):
    config = SMALL.replace(
        n_layer=layers,
        n_head=heads,
        n_embd=32 * heads,
        batch_size=batch,
        vocab_size=vocabulary * 8,
        compile=compiled,
    )
    more = config.replace(**{key: getattr(config, key) * 2})
    known, device = calibration(), cpu()
    small, large = (
        workload_time(Workload.of(each, "float32"), device, known).seconds
        for each in (config, more)
    )
    assert small.mid < large.mid
    assert small.low < small.mid < small.high


def test_a_finished_run_moves_the_prediction_toward_it():
    known, device = calibration(), cpu()

    def guess(c):
        return step_time(SMALL, device, "float32", 1, c).seconds.mid

    before = guess(known)
    once = refine(known, SMALL, 1.3 * before)
    assert before < guess(once) < 1.3 * before
    often = once
    for _ in range(60):
        often = refine(often, SMALL, 1.3 * before)
    assert guess(once) < guess(often) < 1.3 * before
    assert len(often.runs) == 50
    for odd in (100 * before, before / 100, 0.0, float("nan")):
        assert refine(known, SMALL, odd) == known
    assert refine(known, SMALL.replace(dtype="bfloat16"), before) == known
    assert [mode for mode, _ in refine(known, SMALL.replace(compile=True), before).runs] in (
        ["compiled"],
        [],
    )


def test_every_kind_of_work_is_a_part_of_the_step():
    w = Workload.of(SMALL, "float32")
    assert work(w).keys() == PART_OF.keys()
    assert min(work(w).values()) >= 0
    assert mode(w) == "eager"


def test_a_card_that_waits_for_the_host_waits_in_every_micro_batch():
    slow_host = calibration(host_seconds=1.0, costs={"eager": dict.fromkeys(HINTS, 0.0)})
    once, eight = (
        slow_host.parts(
            Workload.of(SMALL.replace(gradient_accumulation_steps=n), "float32"), cpu()
        )["launch"]
        for n in (1, 8)
    )
    assert eight == pytest.approx(8 * once)
