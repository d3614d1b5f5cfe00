"""No test sees what the person at this machine has calibrated, nor adds to it."""

import os
import signal

import pytest
from hypothesis import Phase, settings

# The ordinary run draws the same cases every time, so that it fails for a change and not by luck;
# ONECARD_RANDOM=1 (as `make test-long` sets it) draws new ones. No deadlines: other programs share the machine.
# tools/mutants.py asks for the first failure alone, without a search for the smallest one.
FIRST_FAILURE = (Phase.explicit, Phase.generate)
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("first_failure", derandomize=True, deadline=None, phases=FIRST_FAILURE)
if not os.environ.get("ONECARD_RANDOM"):
    settings.load_profile(os.environ.get("ONECARD_PROFILE", "repeatable"))

# `nohup pytest` and `pytest &` begin with these ignored, and so would every run that a test starts.
for name, usual in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    number = getattr(signal, name, None)
    if number is not None and signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(tmp_path_factory.mktemp("home")))
        yield
