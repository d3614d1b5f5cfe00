"""The examples in the docstrings of the rooms that need no torch, and on the page of formulas."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import onecard

ROOT = Path(__file__).parents[2]
NEED_TORCH = {
    "model",
    "train",
    "tune",
    "evals",
    "export",
}  # tests/torch/test_doctests.py has theirs
ROOMS = sorted(info.name for info in pkgutil.iter_modules(onecard.__path__))
pytestmark = pytest.mark.usefixtures("tuned_once")


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in {*NEED_TORCH, "__main__"}])
def test_examples_are_true(room):
    top = importlib.import_module(f"onecard.{room}")
    inside = pkgutil.walk_packages(getattr(top, "__path__", []), f"onecard.{room}.")
    for name in (f"onecard.{room}", *(info.name for info in inside)):
        if "preset_files" not in name:
            assert doctest.testmod(importlib.import_module(name)).failed == 0, name


def test_examples_of_the_package_and_the_formulas_are_true():
    assert doctest.testmod(onecard).failed == 0
    assert doctest.testfile(str(ROOT / "docs" / "maths.md"), module_relative=False).failed == 0
