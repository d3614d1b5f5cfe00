"""Golden losses: a refactoring gives the same numbers, for both recipes and every precision."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("golden_losses", ROOT / "tools" / "golden_losses.py")
golden_losses = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden_losses)


@pytest.mark.parametrize("name", golden_losses.RUNS)
def test_the_numbers_are_as_pinned(name, tmp_path):
    pinned = json.loads(golden_losses.FILE.read_text(encoding="utf-8"))[name]
    found = golden_losses.golden_run(name, tmp_path)
    assert len(found["loss"]) == golden_losses.RUNS[name].max_iters
    tolerance = golden_losses.TOLERANCE.get(name, golden_losses.HALF_TOLERANCE)
    assert found["loss"] == pytest.approx(pinned["loss"], rel=tolerance)
    assert found["val_loss"] == pytest.approx(pinned["val_loss"], rel=tolerance)
    assert found["grad_norm"] == pytest.approx(pinned["grad_norm"], rel=10 * tolerance)
