"""Calibrations: kept, found again, narrower than a guess; a corrupt or foreign file is ignored with a warning."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.config import RunConfig
from onecard.facts.gpus import find_gpu
from onecard.plan.calibration import WORK, Calibration, Mode, file_of, from_json, load_calibration, rate_at, to_json
from onecard.plan.speed import step_time

CARD = find_gpu("RTX 4070")
COSTS = dict(zip(WORK, (1.0, 1.1, 2e-14, 2e-12, 2e-12, 3e-6, 2e-12), strict=True))
MADE = Calibration(CARD.name, "2.13.0", None, "2026-01-01", 70.0, {"bfloat16": [(256.0, 3e13), (4096.0, 6e13)]}, 4.5e11, 3e-6,
                   {"bfloat16/compiled": Mode(COSTS, 0.02, 6)})  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    return tmp_path


def keep(text: str, torch: str = "2.13.0") -> Path:
    path = file_of(CARD.name, torch, None)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_it_is_found_for_its_card_and_torch_only():
    keep(to_json(MADE))
    assert load_calibration(CARD, "2.13.0") == MADE
    assert load_calibration(CARD, "2.14.0") is None
    assert load_calibration(find_gpu("RTX 4090"), "2.13.0") is None


def test_a_probed_card_gets_a_measured_and_narrower_answer():
    run = RunConfig()
    guess, measured = step_time(run, CARD, "bfloat16"), step_time(run, CARD, "bfloat16", calibration=MADE)
    assert measured.basis == "measured"
    assert measured.seconds.high / measured.seconds.low < guess.seconds.high / guess.seconds.low
    assert sum(measured.parts.values()) == pytest.approx(measured.seconds.mid)
    assert step_time(run.replace(n_layer=13), CARD, "bfloat16", calibration=MADE).seconds.mid > measured.seconds.mid
    eager = step_time(run.replace(compile=False), CARD, "bfloat16", calibration=MADE)
    assert eager.basis == "measured"  # from the other mode, and wider
    assert eager.seconds.mid > measured.seconds.mid
    assert step_time(run, CARD, "float32", calibration=MADE).basis == "fitted"  # that dtype was not probed


BAD = [
    "", "{", "[]", "null", '{"schema": "someone.else/1"}', '{"schema": "onecard.calibration/1"}',
    to_json(MADE).replace("450000000000.0", "-1"), to_json(MADE).replace("450000000000.0", "NaN"),
    to_json(MADE).replace("450000000000.0", '"fast"'), to_json(MADE).replace('"layers": 1.0', '"lawyers": 1.0'),
    to_json(MADE)[:-40], "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_ignored_with_a_warning(text: str):
    keep(text)
    with pytest.warns(UserWarning, match="ignored"):
        assert load_calibration(CARD, "2.13.0") is None


def test_a_file_of_another_card_is_ignored_with_a_warning():
    keep(to_json(MADE).replace("RTX 4070", "RTX 9999"))
    with pytest.warns(UserWarning, match="RTX 9999"):
        assert load_calibration(CARD, "2.13.0") is None


@given(
    st.lists(st.tuples(st.floats(1, 1e4), st.floats(1e9, 1e15)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.floats(1, 1e5),
)
def test_rates_between_measured_widths_stay_between_measured_rates(rates: list[tuple[float, float]], width: float):
    found = rate_at(sorted(rates), width)
    assert min(r for _, r in rates) * 0.999 <= found <= max(r for _, r in rates) * 1.001


def test_json_round_trip():
    assert from_json(json.loads(to_json(MADE))) == MADE
