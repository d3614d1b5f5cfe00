"""The simulated memory of 200 steps, to the byte: what a trace has confirmed changes only on purpose (tools/golden_memory.py)."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("golden_memory", ROOT / "tools/golden_memory.py")
assert _SPEC is not None
assert _SPEC.loader is not None
golden_memory = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(golden_memory)
KNOWN = json.loads(golden_memory.FILE.read_text())


@pytest.mark.parametrize("quarter", range(4))
def test_steps_take_what_they_took(quarter: int) -> None:
    works = golden_memory.drawn()[quarter::4]
    assert len(works) == 50
    assert [golden_memory.figures(work) for work in works] == KNOWN[quarter::4]
