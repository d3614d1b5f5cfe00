"""Killed at any moment, the same command continues, and the bytes are those of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from data_texts import digests, documents, write_jsonl, write_parquet

from onecard.data import open_dataset
from onecard.errors import UserError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and /proc")


def command(source: Path, out: Path, workers: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "onecard",
        "data",
        str(source),
        "--out",
        str(out),
        "--workers",
        str(workers),
        "--shard-tokens",
        "60000",
        "--dedup",
        "--tokenizer",
        "bytes",
    ]


def workers_alive(mark: str) -> list[int]:
    """Worker processes that carry our mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (
                    mark.encode() in (entry / "environ").read_bytes()
                    and b"onecard.data.preparation.worker" in (entry / "cmdline").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kill_many(tmp_path: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    source = tmp_path / "source"
    for index in range(4):
        write_parquet(source / f"p{index}.parquet", documents(600, index, 300), row_group=200)
        write_jsonl(source / f"j{index}.jsonl", documents(300, 10 + index, 300))
    started = time.monotonic()
    subprocess.run(command(source, tmp_path / "plain", 2), check=True, capture_output=True)
    whole = time.monotonic() - started
    wanted = digests(tmp_path / "plain")
    mark = f"ONECARD_KILL_TEST={tmp_path}"
    environment = {**os.environ, "ONECARD_KILL_TEST": str(tmp_path)}
    out, done = tmp_path / "killed", 0
    while done < kills:
        run = subprocess.Popen(
            command(source, out, rng.choice([1, 2, 3])),
            env=environment,
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.3, 0.9) * whole)
        victim = run.pid
        if rng.random() < 0.3 and (alive := workers_alive(mark)):
            victim = rng.choice(alive)  # a worker dies: the parent says so and stops
        os.kill(victim, signal.SIGKILL)
        code = run.wait(timeout=60)
        if code == 0:
            assert digests(out) == wanted
            for path in out.iterdir():
                path.unlink()
            out.rmdir()
            continue
        done += 1
        for _ in range(100):
            if not (alive := workers_alive(mark)):
                break
            time.sleep(0.1)
        assert not alive, "a worker outlived its parent"
        if out.exists() and not (out / "manifest.json").exists():
            with pytest.raises(UserError, match=r"not finished|holds no tokens"):
                open_dataset(out)
    subprocess.run(command(source, out, 2), check=True, capture_output=True)
    assert digests(out) == wanted
    assert not (out / ".work").exists()


def test_killed_while_the_finished_work_is_cleared_away(tmp_path: Path) -> None:
    """The plan of the work may be gone first: what remains is cleared by the same command."""
    from onecard.data import prepare
    from onecard.data.preparation.work_folder import claim

    source, out = tmp_path / "text.txt", tmp_path / "out"
    source.write_text("some words\n" * 100)
    prepare([str(source)], out, tokenizer="bytes", workers=1)
    wanted = digests(out)
    claim(out / ".work")
    (out / ".work" / "shards").mkdir()
    (out / ".work" / "shards" / "source_train_000006.json").write_text("{}")
    prepare([str(source)], out, tokenizer="bytes", workers=1)
    assert digests(out) == wanted


def test_killed_five_times(tmp_path: Path) -> None:
    kill_many(tmp_path, 5, seed=1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_thirty_times(tmp_path: Path) -> None:
    kill_many(tmp_path, 30, seed=2)


def test_interrupt_stops_cleanly_and_goes_on(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "x.parquet", documents(3000, 1, 400))
    run = subprocess.Popen(command(source, tmp_path / "out", 2), stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "out" / ".work" / "plan.json").exists():
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _, message = run.communicate(timeout=60)
    assert run.returncode in (0, 130)
    assert "Traceback" not in message, message
    subprocess.run(command(source, tmp_path / "out", 2), check=True, capture_output=True)
    assert not open_dataset(tmp_path / "out").splits["train"].verify()


@pytest.mark.parametrize("stage", ["parts", "order", "shards", "finish"])
def test_stopped_between_stages(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop right after each stage, and torn files left by a power cut beside the whole ones."""
    from onecard.data import prepare
    from onecard.data.preparation import pipeline, result, stages

    class PowerCutError(BaseException):
        pass

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    source = str(write_jsonl(tmp_path / "x.jsonl", documents(300)))
    wanted_at = tmp_path / "plain"
    prepare([source], wanted_at, workers=1, shard_tokens=5000, tokenizer="bytes")
    module, name = {
        "parts": (stages, "take"),
        "order": (stages, "_write_shards"),
        "shards": (pipeline, "unchanged"),
        "finish": (result, "write_manifest"),
    }[stage]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, cut)
        with pytest.raises(PowerCutError):
            prepare([source], tmp_path / "cut", workers=1, shard_tokens=5000, tokenizer="bytes")
    with pytest.raises(UserError, match="not finished"):
        open_dataset(tmp_path / "cut")
    work = tmp_path / "cut" / ".work"
    (work / "parts" / ".000000-0001.part.00ff.tmp").write_bytes(b"torn")
    (work / "shards" / ".x_train_000001.bin.00ff.tmp").write_bytes(b"torn")
    prepare([source], tmp_path / "cut", workers=2, shard_tokens=5000, tokenizer="bytes")
    assert digests(tmp_path / "cut") == digests(wanted_at)
