"""No test sees what the person at this machine has calibrated, nor adds to it."""

import os

import pytest
from hypothesis import settings

# The ordinary run draws the same cases every time, so that it fails for a change and not by luck;
# ONECARD_RANDOM=1 (as `make test-long` sets it) draws new ones.
settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("ONECARD_RANDOM"):
    settings.load_profile("repeatable")


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(tmp_path_factory.mktemp("home")))
        yield
