"""No test sees what the person at this machine has calibrated, nor adds to it."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(tmp_path_factory.mktemp("home")))
        yield
