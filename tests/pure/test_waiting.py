"""How threads wait for each other is chosen before torch is imported."""

import os
import subprocess
import sys

import pytest

import onecard.cli as waiting


def test_passive_only_where_the_processor_is_busy(tmp_path, monkeypatch):
    pressure = tmp_path / "cpu"
    monkeypatch.setattr(waiting, "_PRESSURE", pressure)
    pressure.write_text("some avg10=73.10 avg60=1.00 avg300=0.00 total=1\n")
    environment: dict[str, str] = {}
    assert waiting.wait_passively_where_busy(environment)
    assert environment == {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
    pressure.write_text("some avg10=1.20 avg60=90.00 avg300=0.00 total=1\n")
    environment = {}
    assert not waiting.wait_passively_where_busy(environment)
    assert environment == {}


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "KMP_BLOCKTIME", "GOMP_SPINCOUNT"])
def test_what_the_user_set_stays(name):
    environment = {name: "7"}
    assert not waiting.wait_passively_where_busy(environment, busy=True)
    assert environment == {name: "7"}


def test_without_linux_the_load_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(waiting, "_PRESSURE", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for load, busy in ((4.5, True), (0.5, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0), raising=False)
        assert waiting.processor_is_busy() == busy


def test_the_command_line_decides_before_a_command_runs():
    """In a process of its own, for the variables stay set."""
    code = (
        "import os, sys; import onecard.cli as waiting; "
        "waiting.processor_is_busy = lambda: True; waiting.main(['gpus', '4070']); "
        "assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    )
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "passive"
