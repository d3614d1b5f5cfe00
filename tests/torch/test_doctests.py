"""The examples in the docstrings of the rooms that need torch."""

import doctest
import importlib
import pkgutil

import pytest


@pytest.mark.parametrize("room", ["model", "train", "tune", "evals", "export"])
def test_examples_are_true(room):
    package = importlib.import_module(f"onecard.{room}")
    names = [info.name for info in pkgutil.walk_packages(package.__path__, f"onecard.{room}.")]
    tried = 0
    for name in names:
        if "hub_code" not in name:  # read as text; it is exported with the model
            found = doctest.testmod(importlib.import_module(name))
            assert found.failed == 0, name
            tried += found.attempted
    assert tried or room == "export"
