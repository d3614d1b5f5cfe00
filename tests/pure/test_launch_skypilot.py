"""SkyPilot's own parser reads the tasks of `onecard launch`. SKYPILOT_PYTHON names a Python that has the package, which
wants other versions of its dependencies than ours."""

import json
import os
import subprocess
import sys

import pytest

from onecard.cli import main

PYTHON = os.environ.get("SKYPILOT_PYTHON", sys.executable)
READ = """
import json, sys, sky
task = sky.Task.from_yaml(sys.argv[1])
found = list(task.resources)
print(json.dumps({
    "name": task.name,
    "accelerators": sorted(f"{name}:{count:g}" for each in found for name, count in (each.accelerators or {}).items()),
    "spot": all(each.use_spot for each in found),
    "most": [each.max_hourly_cost for each in found],
    "recovery": [each.job_recovery for each in found],
    "mounts": sorted(task.storage_mounts),
    "files": task.file_mounts,
    "run": task.run,
}))
"""


def _has_skypilot() -> bool:
    done = subprocess.run([PYTHON, "-c", "import sky"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_skypilots_parser_reads_the_task(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # SkyPilot writes there
    if not _has_skypilot():
        pytest.skip("the package skypilot is not installed here (SKYPILOT_PYTHON names a Python)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.bin").write_bytes(bytes(4000))
    (tmp_path / "data" / "val.bin").write_bytes(bytes(4000))
    words = ["launch", "gpt2", "--on", "skypilot", "--gpu", "H100 SXM", "--cards", "8"]
    words += ["--bucket", "s3://runs", "--upload", "data", "--budget", "240USD", "--max-price", "3"]
    words += ["--name", "null", "--set", "out_dir=it's: {a} $(b)", "--out", "task.yaml"]
    assert main(words) == 0
    capsys.readouterr()
    done = subprocess.run(
        [PYTHON, "-c", READ, "task.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    task = json.loads(done.stdout.splitlines()[-1])
    assert task["name"] == "null"
    assert task["accelerators"] == ["H100-SXM:8", "H100:8"]
    assert task["spot"]
    assert task["most"] == [24.0, 24.0]
    assert all(each["max_restarts_on_errors"] == 2 for each in task["recovery"])
    assert task["mounts"] == ["/onecard-bucket"]
    assert task["files"]["~/onecard-job/data/data"] == str(tmp_path / "data")
    assert "max_hours = 10.0" in task["run"]
    assert "nproc_per_node=8" in task["run"]
