"""The run folder: made once, never written over, and honest about whether its run is alive."""

import json
import os
import subprocess
import sys
import time

import pytest

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.files import is_locked, write_json
from onecard.runs.record import RunRecord, environment, is_run_folder
from run_folders import new_folder

CONFIG = RunConfig(
    n_layer=2, n_head=2, n_embd=64, max_iters=100, lr_decay_iters=100, warmup_iters=10
)


def made(path):
    return new_folder(path, CONFIG, None, environment(torch_version="2.13.0", gpu="RTX 4070"))


def test_a_run_comes_back_as_it_was_made(tmp_path):
    record = made(tmp_path / "out")
    record.begin()
    again = RunRecord.open(tmp_path / "out")
    assert again.config() == CONFIG
    written = json.loads((again.path / "environment.json").read_text(encoding="utf-8"))
    assert written["torch"] == "2.13.0"
    assert again.plan() is None
    assert again.checkpoints.is_dir()
    assert record.state == again.state == "running"
    record.end("finished")
    assert record.state == again.state == "finished"


def test_a_run_is_not_written_over(tmp_path):
    record = made(tmp_path / "out")
    record.begin()
    with pytest.raises(UserError, match="already holds a run"):
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
    write_json(record.path / "run.json", {"state": "running", "pid": 1, "host": "elsewhere"})
    assert record.state == "running"
    old = time.time() - 3600
    os.utime(record.log_path, (old, old))
    assert record.state == "dead"


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert environment()["git"] is None
    (tmp_path / "f").write_text("one\n")
    git("init", "-q")
    git("add", "f")
    git("commit", "-qm", "first")
    return tmp_path


def git(*words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_environment_holds_the_commit_and_a_diff_only_on_request(repository):
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (repository / "f").write_text("secret\n")
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": True}
    assert "+secret" in environment(with_diff=True)["git"]["diff"]


def test_a_file_written_again_with_the_same_size_is_seen(repository):
    """By its time alone: another second with the same fraction, or the same second with another fraction."""
    then = (repository / "f").stat().st_mtime_ns
    for later in (5 * 10**9, 1000):
        os.utime(repository / "f", ns=(then + later, then + later))
        assert environment()["git"]["dirty"] is True
    os.utime(repository / "f", ns=(then, then))
    assert environment()["git"]["dirty"] is False


def test_the_commit_is_found_however_git_keeps_it(repository):
    commit = git("rev-parse", "HEAD")
    git("pack-refs", "--all")
    git("update-index", "--index-version", "4")
    for name in ("g", "deep"):
        (repository / "folder").mkdir(exist_ok=True)
        (repository / "folder" / name).write_text(name)
    git("add", "folder")
    assert environment()["git"] == {
        "commit": commit,
        "dirty": None,
    }  # staged: the index tells no more
    git("commit", "-qm", "second")
    commit = git("rev-parse", "HEAD")
    assert environment()["git"] == {"commit": commit, "dirty": False}
    git("checkout", "-q", "--detach")
    assert environment()["git"]["commit"] == commit
    git("worktree", "add", "-q", "-b", "other", "tree")
    os.chdir(repository / "tree" / "folder")
    assert environment()["git"] == {"commit": commit, "dirty": False}
    (repository / "tree" / "folder" / "deep").unlink()
    assert environment()["git"]["dirty"] is True
    (repository / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\xff\xff\xff\xff")
    os.chdir(repository)
    assert environment()["git"] == {"commit": commit, "dirty": None}


def test_a_hostile_repository_runs_nothing(repository):
    """Filters, fsmonitor, hooks, text conversion, and an upload program for objects that are missing."""
    mark = f"touch {repository / 'hit'}"
    for key, value in {
        "filter.evil.clean": mark,
        "filter.evil.process": mark,
        "core.fsmonitor": mark,
        "diff.evil.textconv": mark,
        "diff.external": mark,
        "core.hooksPath": str(repository / "hooks"),
        "extensions.partialClone": "origin",
        "remote.origin.url": ".",
        "remote.origin.promisor": "true",
        "remote.origin.uploadpack": mark + ";",
    }.items():
        git("config", key, value)
    (repository / "hooks").mkdir()
    for hook in ("post-index-change", "pre-auto-gc", "reference-transaction"):
        (repository / "hooks" / hook).write_text(f"#!/bin/sh\n{mark}\n")
        (repository / "hooks" / hook).chmod(0o755)
    (repository / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repository / "f").write_text("two\n")
    message = environment()["git"]
    assert (len(message["commit"]), message["dirty"]) == (40, True)
    assert not (repository / "hit").exists()
    environment(with_diff=True)  # the same repository through git itself: the trap does work
    assert (repository / "hit").exists()


def test_a_lock_that_is_not_there_is_held_by_nobody(tmp_path):
    assert not is_locked(tmp_path / "run.lock")


def test_arguments_of_another_program_are_not_recorded(monkeypatch):
    for program, kept in (
        ("/usr/bin/onecard", True),
        ("/x/onecard/__main__.py", True),
        ("mine.py", False),
        ("/x/other/__main__.py", False),
    ):
        monkeypatch.setattr("sys.argv", [program, "--api-key", "hunter2"])
        words = environment()["command"]
        assert words == ([program, "--api-key", "hunter2"] if kept else [program])


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_only_the_owner_reads_the_environment_and_the_umask_holds(tmp_path, mask):
    before = os.umask(mask)
    try:
        record = made(tmp_path / "out")
    finally:
        os.umask(before)
    mode = {p.name: p.stat().st_mode & 0o777 for p in record.path.iterdir()}
    assert mode["environment.json"] == 0o600
    assert mode["config.toml"] == 0o666 & ~mask


def test_a_start_that_loses_writes_nothing_even_when_the_winner_ends_meanwhile(tmp_path):
    winner = made(tmp_path / "out")
    winner.begin()
    before = {p.name: p.read_bytes() for p in winner.path.iterdir() if p.is_file()}
    loser = RunRecord(tmp_path / "out")
    with pytest.raises(UserError, match="another run is writing"):
        loser.claim()
    assert {p.name: p.read_bytes() for p in winner.path.iterdir() if p.is_file()} == before
    winner.end("finished")
    loser.claim()
    with pytest.raises(UserError, match="already holds a run"):
        loser.write_new(CONFIG.replace(n_layer=3), None, {})
    loser.release()
    assert winner.config() == CONFIG
    assert winner.state == "finished"


def test_a_claim_given_up_leaves_nothing(tmp_path):
    record = RunRecord(tmp_path / "a" / "b" / "out")
    record.claim()
    assert record.path.is_dir()
    record.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="no folder with an open file is renamed there")
def test_a_claim_given_up_leaves_the_next_ones_lock(tmp_path):
    """Its folder was renamed under it, as set_aside does, and another run begins in a new one of that name."""
    first, second = RunRecord(tmp_path / "out"), RunRecord(tmp_path / "out")
    first.claim()
    (tmp_path / "out").rename(tmp_path / "out.unfinished-1")
    second.claim()
    first.release()
    with pytest.raises(UserError):
        RunRecord(tmp_path / "out").claim()
    second.release()


def test_a_folder_that_is_no_run_is_named(tmp_path):
    assert not is_run_folder(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        RunRecord.open(tmp_path)


def test_a_run_without_a_checkpoint_is_put_aside_and_one_that_runs_is_not(tmp_path):
    from onecard.runs.set_aside import set_aside

    folder = tmp_path / "out"
    assert set_aside(folder) is None
    for number in (1, 2):
        record = new_folder(folder, CONFIG)
        record.begin()
        with pytest.raises(UserError, match="another run is writing"):
            set_aside(folder)
        record.release()
        assert set_aside(folder) == tmp_path / f"out.unfinished-{number}"
        assert not folder.exists()
        assert (tmp_path / f"out.unfinished-{number}" / "run.json").is_file()
