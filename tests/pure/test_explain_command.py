"""`onecard explain` as it is typed: its JSON, its languages, a log from a pipe."""

import json
import subprocess
import sys

import pytest
from run_logs import small_run

from onecard.cli import main


def test_the_command(tmp_path, capsys):
    (tmp_path / "a.log").write_text(small_run())
    assert main(["explain", str(tmp_path / "a.log"), "--gpu", "4070", "--json"]) == 0
    message = json.loads(capsys.readouterr().out)
    assert message["run"]["mfu_card"] == pytest.approx(0.69, abs=0.01)
    assert {"rule", "text", "evidence", "gain"} <= set(message["findings"][0])
    for lang in ("en", "es", "hi"):
        assert main(["explain", str(tmp_path / "a.log"), "--gpu", "4070", "--lang", lang]) == 0
        assert "312" in capsys.readouterr().out


def test_a_log_from_a_pipe():
    command = [sys.executable, "-m", "onecard", "explain", "-", "--gpu", "4070", "--json"]
    done = subprocess.run(
        command, input=small_run().replace("\n", "\r\n").encode(), capture_output=True, check=True
    )
    message = json.loads(done.stdout)
    assert message["run"]["name"] == "stdin"
    assert round(message["run"]["tflops"], 1) == 40.3
