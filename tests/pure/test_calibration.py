"""Calibrations: kept and read back, never believed blindly, used for this very device alone."""

import contextlib
import copy
import dataclasses
import io
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from onecard.cli import main
from onecard.cli.probe import _rates_table
from onecard.config import RunConfig
from onecard.facts.gpus import find_gpu
from onecard.facts.here import cpu
from onecard.planner import calibration_file, plan
from onecard.planner.calibration import RATES, Calibration, Observation, refine
from onecard.planner.calibration_file import (
    calibrations_folder,
    known_calibration,
    load_calibration,
    read_calibrations,
    write_calibration,
)
from onecard.planner.calibration_fit import fit_costs, spread_of
from onecard.planner.calibration_json import from_json, to_json
from onecard.planner.least_squares import non_negative_least_squares
from onecard.planner.step_time import step_time, workload_time
from onecard.planner.step_work import PART_OF, mode, predicted, work
from onecard.planner.workload import Workload

SMALL = RunConfig(
    n_layer=2,
    n_head=4,
    n_embd=128,
    block_size=128,
    batch_size=4,
    gradient_accumulation_steps=1,
    vocab_size=512,
    compile=False,
)
HINTS = {
    "blocks": 1e-11,
    "head": 1e-11,
    "attention": 3e-11,
    "layers": 2e-10,
    "logits": 2e-10,
    "fresh": 2e-10,
    "weights": 2e-10,
    "kernels": 5e-6,
    "update": 2e-10,
    "step": 1e-4,
}
# What a made-up machine takes; the fit must find it from steps alone.
TRUE = {
    "blocks": 7e-12,
    "head": 1.3e-11,
    "attention": 2e-11,
    "layers": 3e-10,
    "logits": 1e-10,
    "fresh": 4e-10,
    "weights": 1e-10,
    "kernels": 4e-6,
    "update": 3e-10,
    "step": 3e-4,
}


def workloads():
    shapes = [
        (2, 64, 64, 4, 1, 256),
        (6, 128, 128, 4, 1, 256),
        (2, 128, 128, 16, 1, 2048),
        (2, 256, 512, 2, 1, 256),
        (4, 256, 128, 8, 1, 512),
        (3, 192, 64, 8, 2, 8192),
        (2, 384, 128, 8, 1, 2048),
        (6, 384, 64, 4, 1, 256),
        (3, 512, 64, 4, 3, 512),
        (2, 128, 128, 4, 1, 50304),
        (4, 256, 64, 4, 1, 50304),
        (2, 384, 128, 4, 1, 50304),
    ]
    for layers, width, context, batch, accumulation, vocabulary in shapes:
        config = SMALL.replace(
            n_layer=layers,
            n_embd=width,
            block_size=context,
            batch_size=batch,
            gradient_accumulation_steps=accumulation,
            vocab_size=vocabulary,
        )
        yield Workload.of(config, "float32")


OBSERVED = [Observation(w, predicted(w, TRUE)) for w in workloads()]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration_file, "torch_version", lambda: "2.13.0")


def calibration(device=None, **changes) -> Calibration:
    device = device or cpu()
    made = Calibration(
        device=device.name,
        memory_bytes=device.usable_bytes,
        torch="2.13.0",
        power_limit_watts=device.power_limit_watts,
        date="2026-03-01T12:00:00+00:00",
        dtype="tf32",
        rates=dict.fromkeys(RATES, 1e10),
        host_seconds=0.0,
        costs={"eager": fit_costs(OBSERVED, HINTS)},
        spread={"eager": 0.05},
        observations=tuple(OBSERVED),
    )
    return dataclasses.replace(made, **changes)


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


def test_the_fit_finds_the_machine_from_its_steps():
    costs = fit_costs(OBSERVED, HINTS)
    unseen = [
        SMALL.replace(n_layer=3, n_embd=160, batch_size=6),
        SMALL.replace(n_embd=320, vocab_size=50304, batch_size=6),
        SMALL.replace(n_layer=5, n_embd=320, block_size=256, vocab_size=4096),
    ]
    for config in unseen:
        w = Workload.of(config, "float32")
        assert predicted(w, costs) == pytest.approx(predicted(w, TRUE), rel=0.03)
    assert all(cost >= 0 for cost in costs.values())
    assert 0.04 <= spread_of(OBSERVED, HINTS) < 0.1


def test_one_disturbed_step_moves_little():
    disturbed = [
        *OBSERVED[:4],
        dataclasses.replace(OBSERVED[4], seconds=1.3 * OBSERVED[4].seconds),
        *OBSERVED[5:],
    ]
    w = Workload.of(SMALL.replace(n_layer=3, n_embd=320), "float32")
    assert predicted(w, fit_costs(disturbed, HINTS)) == pytest.approx(predicted(w, TRUE), rel=0.12)


def disturbed_by(factors):
    return [
        dataclasses.replace(o, seconds=f * o.seconds)
        for o, f in zip(OBSERVED[: len(factors)], factors, strict=True)
    ]


def test_a_disturbed_probe_is_admitted(capsys):
    noise = disturbed_by([1.0, 2.5, 0.6, 1.0, 2.2, 1.0, 0.5, 3.0, 1.0, 0.4, 1.0, 2.0])
    costs, spread = fit_costs(noise, HINTS), spread_of(noise, HINTS)
    known = calibration(costs={"eager": costs}, spread={"eager": spread}, observations=tuple(noise))
    wide = 1.000001 * (1 + spread)
    inside = [1 / wide <= o.seconds / predicted(o.work, costs) <= wide for o in noise]
    assert spread > 0.25
    assert sum(inside) >= 0.8 * len(noise)
    assert known.disturbed == pytest.approx(spread)
    write_calibration(known)
    planned = plan(SMALL, "cpu")
    (note,) = [note for note in planned.warnings if note.code == "calibration-disturbed"]
    assert "busy or throttled" in str(note)
    assert planned.time.step_seconds.high / planned.time.step_seconds.mid >= 0.999999 * (1 + spread)
    assert not [
        note for note in plan(SMALL, "RTX 4070").warnings if note.code == "calibration-disturbed"
    ]
    assert main(["probe", "--show", "--device", "cpu"]) == 0
    assert "busy or throttled" in capsys.readouterr().err


def test_a_quiet_probe_is_not_called_disturbed():
    for factors in (
        [1.0] * 12,
        [1.05, 0.95] * 6,
        [1.0, 1.0, 1.9, 1.0, 1.0, 1.0],
    ):  # one odd step is no news
        noise = disturbed_by(factors)
        known = calibration(costs={"eager": fit_costs(noise, HINTS)}, observations=tuple(noise))
        assert known.disturbed is None
        assert spread_of(noise, HINTS) <= 0.25
    write_calibration(calibration())
    assert not [note for note in plan(SMALL, "cpu").warnings if note.code.startswith("calibration")]


@given(st.lists(st.floats(1e-4, 10), min_size=len(OBSERVED), max_size=len(OBSERVED)))
def test_no_work_is_free_however_a_probe_came_out(seconds):
    noise = [dataclasses.replace(o, seconds=s) for o, s in zip(OBSERVED, seconds, strict=True)]
    assert min(fit_costs(noise, HINTS)[kind] / hint for kind, hint in HINTS.items()) > 0.049


@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=4, max_size=8), st.data()
)
def test_non_negative_least_squares_is_the_least(rows, data):
    rows = [
        *rows,
        [0.1, 0, 0],
        [0, 0.1, 0],
        [0, 0, 0.1],
    ]  # as the fit's hints do: never without a unique answer
    wanted = data.draw(st.lists(st.floats(-5, 5), min_size=len(rows), max_size=len(rows)))

    def miss(x):
        return sum(
            (sum(a * b for a, b in zip(row, x, strict=True)) - y) ** 2
            for row, y in zip(rows, wanted, strict=True)
        )

    found = non_negative_least_squares(rows, wanted)
    assert min(found) >= 0
    for place in range(3):
        for move in (-1e-2, 1e-2):
            near = [max(0.0, x + move * (i == place)) for i, x in enumerate(found)]
            assert miss(found) <= miss(near) + 1e-9


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


FOREIGN = {
    "device": ("CPU, 96 cores", "CPU, 96 cores"),
    "torch": ("2.12.0", "torch 2.12.0"),
    "power_limit_watts": (65.0, "65 W"),
    "memory_bytes": (2**50, "1024.00 TiB"),
}


@pytest.mark.parametrize("key", FOREIGN)
def test_a_foreign_one_is_ignored_with_a_warning(key):
    value, words = FOREIGN[key]
    path = write_calibration(dataclasses.replace(calibration(), **{key: value}))
    planned = plan(SMALL, "cpu")
    assert planned.time.basis == "class"
    (note,) = [note for note in planned.warnings if note.code == "calibration-ignored"]
    assert path.name in str(note)
    assert words in str(note)
    assert not [
        note for note in plan(SMALL, "RTX 4070").warnings if note.code == "calibration-ignored"
    ]
    write_calibration(calibration())  # beside a good one it is no news
    assert not [note for note in plan(SMALL, "cpu").warnings if note.code == "calibration-ignored"]


def damaged():
    good = to_json(calibration())

    def observed(**changes):
        return {
            "observations": [
                {"workload": {**good["observations"][0]["workload"], **changes}, "seconds": 1.0}
            ]
        }

    yield "not JSON", b"\x00\xff{"
    yield "empty", b""
    yield "a list", b"[]"
    yield "deep", b"[" * 100_000
    yield "cut", json.dumps(good).encode()[:500]
    yield "foreign", b'{"schema": "somebody.else/1"}'
    for name, changes in {
        "NaN": {"costs": {"eager": {**good["costs"]["eager"], "head": float("nan")}}},
        "negative": {"costs": {"eager": dict.fromkeys(PART_OF, -1.0)}},
        "nothing": {"costs": {"eager": dict.fromkeys(PART_OF, 0.0)}},
        "no eager": {"costs": {}, "spread": {}},
        "other kinds": {"costs": {"eager": {"speed": 1.0}}},
        "text": {"spread": {"eager": "wide"}},
        "a step of no shape": {"observations": [{"workload": {}, "seconds": 1.0}]},
        "an unknown setting": {"observations": [{"workload": {"colour": 1}, "seconds": 1.0}]},
        "ratio": {"runs": [{"mode": "eager", "ratio": 0}]},
        "a ratio of nothing": {"runs": [{"mode": "eager", "ratio": 1e-300}]},
        "memory": {"memory_bytes": None},
        "more memory than a float holds": {"memory_bytes": 10**400},
        "no rates": {"rates": {}},
        "a dtype of no matmul": {"dtype": "zzz"},
        "no time": {"date": "\ud800"},
        "a step without heads": observed(n_head=0),
        "a step of nothing": observed(batch_size=0),
        "a step of half a layer": observed(n_layer=2.5),
        "a step of no dtype": observed(dtype="zzz"),
        "a step of no number": observed(dropout=float("nan")),
        "a step in no time": {"observations": [{**good["observations"][0], "seconds": 0}]},
        "almost free": {"costs": {"eager": dict.fromkeys(PART_OF, 1e-320)}},
    }.items():
        yield name, json.dumps({**good, **changes}).encode()


@pytest.mark.parametrize(
    ("name", "content"), list(damaged()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_no_calibration_is_ignored_with_a_warning(name, content):
    calibrations_folder().mkdir(parents=True)
    (calibrations_folder() / "bad.json").write_bytes(content)
    planned = plan(SMALL, "cpu")
    assert planned.time.basis == "class"
    (note,) = [note for note in planned.warnings if note.code == "calibration-ignored"]
    assert "bad.json" in str(note)
    assert not [
        note for note in plan(SMALL, "RTX 4070").warnings if note.code == "calibration-ignored"
    ]
    write_calibration(calibration())  # a good one beside it is used all the same
    assert plan(SMALL, "cpu").time.basis == "measured"
    assert len(read_calibrations()) == 1


def places(content, path=()):
    """Every place in a JSON document."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


GOOD = to_json(calibration(observations=tuple(OBSERVED[:2]), runs=(("eager", 1.1),)))
HOSTILE = st.one_of(
    st.sampled_from(
        [
            0,
            -1,
            1,
            0.0,
            1e-320,
            1e-300,
            1e-18,
            1e18,
            1e300,
            10**400,
            float("nan"),
            float("inf"),
            True,
            None,
        ]
    ),
    st.sampled_from(
        ["", "zzz", "\ud800", "\x1b[31m", "[/]", "none", "float16", [], [{}], {}, {"eager": 1}]
    ),
    st.floats(),
    st.integers(),
    st.text(max_size=5),
)
# what an observation may say beside its shape, for those that differ from their defaults alone are kept
SETTINGS = [field.name for field in dataclasses.fields(Workload)]


@pytest.mark.timeout(3600)
@settings(max_examples=2_000 if os.environ.get("ONECARD_RANDOM") else 60, deadline=None)
@given(st.data())
def test_no_file_brings_a_plan_down(data):
    content = copy.deepcopy(GOOD)
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(content))))
        around = content
        for key in path[:-1]:
            around = around[key]
        if path[-1] == "workload" and isinstance(around["workload"], dict):
            around["workload"][data.draw(st.sampled_from(SETTINGS))] = data.draw(HOSTILE)
        elif isinstance(around, dict) and data.draw(st.integers(0, 5)) == 0:
            del around[path[-1]]
        else:
            around[path[-1]] = data.draw(HOSTILE)
    calibrations_folder().mkdir(parents=True, exist_ok=True)
    (calibrations_folder() / "hostile.json").write_text(json.dumps(content), encoding="utf-8")
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        assert main(["plan", "--gpu", "cpu", "--compile=False"]) == 0, err.getvalue()
        assert main(["probe", "--show", "--device", "cpu"]) in (0, 2), err.getvalue()
        planned = plan(SMALL, "cpu")
    assert "nan" not in out.getvalue().lower().split()
    ignored = any(note.code == "calibration-ignored" for note in planned.warnings)
    assert (
        ignored == (planned.time.basis != "measured") or content["dtype"] != "tf32"
    )  # of a dtype not planned for


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
