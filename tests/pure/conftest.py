"""What tests of advice share."""

import functools

import pytest

from onecard.advise import search
from onecard.advise.savers import fastest
from onecard.planner import memory


@functools.cache
def _tuned(config, device, dtype, batches, computer_bytes):
    return fastest(config, device, dtype, batches)


def _tuned_once(config, device, dtype, batches):
    return _tuned(config, device, dtype, tuple(batches), memory.computer_bytes())


@pytest.fixture(scope="module")
def tuned_once():
    """The shapes of a search are tuned to a card once for all tests, which is nine tenths of a recommendation's time. What was
    tuned follows from the arguments and this computer's memory alone; calibrations are of cards that nobody names here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "fastest", _tuned_once)
        yield
