"""A dead standard output or error never ends a run: a reader that went away, a full disk, a closed terminal."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs_in_tests import losses

from forked import CAN_FORK, exit_code_of
from onecard.cli import main
from onecard.config import to_toml
from onecard.train.run import loop
from onecard.train.run.signals import STOPS

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture
def file(config, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    return path


def assert_finished(config, code, errors, reported):
    """The run, although its output was gone; that is reported once."""
    assert code == 0, errors
    assert errors.count(reported) == 1 or not reported
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors
    assert list(losses(config.out_dir)) == list(range(1, 11))


@pytest.mark.timeout(150)
def test_the_run_goes_on_when_its_reader_has_gone(config, file):
    """In a shell, as people start it."""
    command = f"{sys.executable} -m onecard train {file} | head -3"
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, env=quiet, capture_output=True, text=True, timeout=120)
    reported = "the output cannot be written (Broken pipe)"
    assert_finished(config, done.returncode, done.stderr, reported)


@pytest.mark.skipif(not CAN_FORK, reason="no forks here")
def test_the_run_goes_on_on_a_full_disk(config, file, tmp_path):
    code = exit_code_of("train", file, out="/dev/full", err=str(tmp_path / "errors"))
    reported = "the output cannot be written (No space left on device)"
    assert_finished(config, code, (tmp_path / "errors").read_text(), reported)


@pytest.mark.skipif(not CAN_FORK, reason="no forks here")
def test_the_run_goes_on_when_not_even_errors_can_be_written(config, file):
    code = exit_code_of("train", file, "--quiet", out="/dev/full", err="/dev/full")
    assert_finished(config, code, "", "")


@pytest.mark.parametrize("number", STOPS)
def test_the_exit_code_names_the_signal(file, monkeypatch, number):
    import signal

    real = loop.write_sample

    def sample(session, model, step):
        signal.raise_signal(number)
        real(session, model, step)

    monkeypatch.setattr(loop, "write_sample", sample)
    assert main(["train", str(file), "--quiet"]) == 128 + number


def test_an_internal_error_says_what_is_saved_and_where_its_traceback_is(
    config, file, monkeypatch, capsys
):
    real = loop.lr_at

    def wrong(config, position):
        if position == 3:
            raise ZeroDivisionError("division by zero")
        return real(config, position)

    monkeypatch.setattr(loop, "lr_at", wrong)
    assert main(["train", str(file), "--quiet"]) == 70
    message = capsys.readouterr().err.splitlines()
    assert (
        "onecard: internal error: ZeroDivisionError: division by zero; saved at step 3" in message
    )
    assert "please report it at " in message[-1]
    assert f"the traceback is in {config.out_dir}/error.txt" in message[-1]
    trace = (Path(config.out_dir) / "error.txt").read_text()
    assert "after step 3" in trace
    assert trace.rstrip().endswith("ZeroDivisionError: division by zero")
