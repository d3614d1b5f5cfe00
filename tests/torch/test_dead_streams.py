"""A dead standard output or error never ends a run: a reader that went away, a full disk, a closed terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs_in_tests import losses

from onecard.cli import main
from onecard.config import to_toml
from onecard.train.run import loop
from onecard.train.run.signals import STOPS

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def onecard(config, place, shell):
    """`shell` with "train" in it for the command; the run's folder must hold a finished run afterwards."""
    file = place / "config.toml"
    file.write_text(to_toml(config))
    command = f"{sys.executable} -m onecard train {file}"
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell.replace("train", command)],
        env=quiet,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("shell", "reported"),
    [
        ("train | head -3", "the output cannot be written (Broken pipe)"),
        ("train > /dev/full", "the output cannot be written (No space left on device)"),
        ("train --quiet > /dev/full 2> /dev/full", ""),
    ],
)
def test_the_run_goes_on_without_its_output(config, tmp_path, shell, reported):
    done = onecard(config, tmp_path, shell)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(reported) == 1 or not reported
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert list(losses(config.out_dir)) == list(range(1, 11))


@pytest.mark.parametrize("number", STOPS)
def test_the_exit_code_names_the_signal(config, tmp_path, monkeypatch, number):
    import signal

    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    real = loop.write_sample

    def sample(session, model, step):
        signal.raise_signal(number)
        real(session, model, step)

    monkeypatch.setattr(loop, "write_sample", sample)
    assert main(["train", str(file), "--quiet"]) == 128 + number


def test_an_internal_error_says_what_is_saved_and_where_its_traceback_is(
    config, tmp_path, monkeypatch, capsys
):
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    real = loop.lr_at

    def wrong(config, position):
        if position == 3:
            raise ZeroDivisionError("division by zero")
        return real(config, position)

    monkeypatch.setattr(loop, "lr_at", wrong)
    assert main(["train", str(file), "--quiet"]) == 70
    said = capsys.readouterr().err.splitlines()
    assert "onecard: internal error: ZeroDivisionError: division by zero; saved at step 3" in said
    assert "please report it at " in said[-1]
    assert f"the traceback is in {config.out_dir}/error.txt" in said[-1]
    trace = (Path(config.out_dir) / "error.txt").read_text()
    assert "after step 3" in trace
    assert trace.rstrip().endswith("ZeroDivisionError: division by zero")
