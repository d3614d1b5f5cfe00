"""The fit of a calibration: it finds the machine from its steps, and a disturbed probe is admitted."""

import dataclasses

import pytest
from calibrations import HINTS, OBSERVED, SMALL, TRUE, calibration
from hypothesis import given
from hypothesis import strategies as st

from onecard.cli import main
from onecard.planner import calibration_file, plan
from onecard.planner.calibration_file import (
    write_calibration,
)
from onecard.planner.calibration_fit import fit_costs, spread_of
from onecard.planner.least_squares import non_negative_least_squares
from onecard.planner.step_work import predicted
from onecard.planner.workload import Workload


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calibration_file, "torch_version", lambda: "2.13.0")


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
