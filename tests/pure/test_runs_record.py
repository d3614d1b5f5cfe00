"""The run folder: made once, never written over, and honest about whether its run is alive."""

import json
import os
import subprocess
import sys
import time

import pytest

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.runs.record import RunRecord, environment, is_run_folder, write_json_atomically

CONFIG = RunConfig(
    n_layer=2, n_head=2, n_embd=64, max_iters=100, lr_decay_iters=100, warmup_iters=10
)


def made(path):
    return RunRecord.create(path, CONFIG, None, environment(torch_version="2.13.0", gpu="RTX 4070"))


def test_a_run_comes_back_as_it_was_made(tmp_path):
    record = made(tmp_path / "out")
    record.begin()
    again = RunRecord.open(tmp_path / "out")
    assert again.config() == CONFIG
    assert again.environment()["torch"] == "2.13.0"
    assert again.plan() is None
    assert again.checkpoints.is_dir()
    assert record.state == again.state == "running"
    record.end("finished")
    assert record.state == again.state == "finished"


def test_a_run_is_not_written_over(tmp_path):
    record = made(tmp_path / "out")
    record.begin()
    with pytest.raises(UserError, match="holds a run already"):
        made(tmp_path / "out")
    record.end("stopped")


def test_two_runs_in_one_folder_are_refused(tmp_path):
    first = made(tmp_path / "out")
    first.begin()
    with pytest.raises(UserError, match="another run is writing"):
        RunRecord.open(tmp_path / "out").begin()
    first.end("stopped")
    again = RunRecord.open(tmp_path / "out")
    assert again.state == "stopped"
    again.begin()
    again.end("finished")


def test_a_killed_run_is_seen_to_be_dead(tmp_path):
    record = made(tmp_path / "out")
    code = (
        "import sys,time,pathlib; from onecard.runs.record import RunRecord;"
        "r=RunRecord(pathlib.Path(sys.argv[1]));"
        "r.begin(); print('begun', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(record.path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().strip() == b"begun"
        assert record.state == "running"
        process.kill()
        process.wait()
    assert record.state == "dead"


def test_a_run_of_another_machine_is_judged_by_its_log(tmp_path):
    record = made(tmp_path / "out")
    record.log_path.write_text("")
    write_json_atomically(
        record.path / "run.json", {"state": "running", "pid": 1, "host": "elsewhere"}
    )
    assert record.state == "running"
    old = time.time() - 3600
    os.utime(record.log_path, (old, old))
    assert record.state == "dead"


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "a.json"
    write_json_atomically(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json_atomically(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json_atomically(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_the_environment_holds_the_commit_and_what_was_not_committed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment()["git"] is None
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "f").write_text("one\n")
    for words in (["init", "-q"], ["add", "f"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    assert environment()["git"]["dirty"] is False
    (tmp_path / "f").write_text("two\n")
    said = environment()["git"]
    assert len(said["commit"]) == 40
    assert "+two" in said["diff"]


def test_a_folder_that_is_no_run_is_named(tmp_path):
    assert not is_run_folder(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        RunRecord.open(tmp_path)
