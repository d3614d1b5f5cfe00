"""The fault suite: a run in its own process, hit again and again, must end with the losses of the calm run.

ONECARD_FAULT="nan@31" orders a fault inside the process (train/run/faults.py); kills, signals, full disks and damaged files
are real. The short form runs everywhere; `pytest -m long` hits 40 times.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs_in_tests import assert_same_weights, events, losses

from forked import Forked, start_onecard
from onecard.config import to_toml
from onecard.model.checkpoint import checkpoints
from onecard.train.run.loop import train

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="SIGTERM and file limits are POSIX's"
)

EXACT = ("kill", "term", "interrupt", "nan", "disk", "truncate", "flip")


class Runs:
    """Sittings of one run, each in a process of its own."""

    def __init__(self, config, place: Path, rng: random.Random):
        self.folder = Path(config.out_dir)
        self.rng = rng
        self.file = place / "config.toml"
        self.file.write_text(to_toml(config))
        self.sittings = 0

    def start(self, faults: str = "", file_limit: int | None = None) -> Forked:
        self.sittings += 1
        words = ["train", str(self.file), "--quiet"]
        if checkpoints(self.folder):
            words.append("--resume")
        else:  # killed before its first checkpoint: there is nothing to resume
            shutil.rmtree(self.folder, ignore_errors=True)
        # larger writes fail as on a full disk
        return start_onecard(
            *words, env={**os.environ, "ONECARD_FAULT": faults}, file_limit=file_limit
        )

    def steps(self) -> int:
        try:
            return (self.folder / "log.jsonl").read_bytes().count(b'"kind": "step"')
        except FileNotFoundError:
            return 0

    def wait_steps(self, process: Forked, more: int) -> None:
        """Until that many more steps are logged (or it ended), then a random moment more: any instruction may be hit."""
        deadline, reached, last = time.monotonic() + 120, None, None
        while process.poll() is None and time.monotonic() < deadline:
            now = self.steps()
            if last is not None and now < last:
                reached = None  # the log was cut back to the checkpoint: it counts from there
            if reached is None and last is not None and now > last:
                reached = now
            last = now
            if reached is not None and now >= reached + more:
                break
            time.sleep(0.005)
        time.sleep(self.rng.random() * 0.05)

    def hit(self, kind: str) -> None:
        """One sitting that ends by this fault, or works through it."""
        next_step = self.steps()
        process = self.start(
            faults=f"{kind}@{next_step + self.rng.randint(1, 5)}" if kind in ("nan", "oom") else "",
            file_limit=40 * 1024 if kind == "disk" else None,
        )
        # an ordered fault lies up to five steps beyond the log's end, and a resume may go seven steps back
        self.wait_steps(
            process,
            more=self.rng.randint(14, 20) if kind in ("nan", "oom") else self.rng.randint(1, 15),
        )
        # a kill would take the log's line about the shrink with it; a signal saves first
        sent = {"term": signal.SIGTERM, "oom": signal.SIGTERM, "interrupt": signal.SIGINT}.get(
            kind, signal.SIGKILL
        )
        if process.poll() is None:
            process.send_signal(sent)
        _, err = process.communicate(timeout=120)
        ended = {"term": (143,), "interrupt": (130,)}.get(kind, (0, -signal.SIGKILL))
        if kind == "oom":
            ended = (0, 143)
        if kind == "disk" and process.returncode == 2:
            assert "a checkpoint of" in err, err[-2000:]
            return  # found before the first step, where there is room for none at all
        if kind == "disk" and "its last checkpoint could not be written" in err:
            ended = (
                1,
            )  # a quick machine came to the run's end before the kill: reported, and the next sitting continues
        assert process.returncode in ended, (kind, process.returncode, err[-2000:])
        assert "Traceback" not in err, err[-2000:]
        found = checkpoints(self.folder)
        if kind in ("truncate", "flip") and len(found) > 1:
            self.damage(
                found[-1]
                / self.rng.choice(["model.safetensors", "optimizer.safetensors", "state.json"]),
                kind,
            )

    def damage(self, file: Path, kind: str) -> None:
        content = bytearray(file.read_bytes())
        if kind == "truncate":
            content = content[: self.rng.randrange(len(content))]
        else:
            content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
        file.write_bytes(content)

    def finish(self) -> None:
        process = self.start()
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err[-2000:]


def storm(config, tmp_path, kinds, seed, steps=2000):
    rng = random.Random(seed)
    # samples and evaluations take part too: nothing of them may leak into the run
    config = config.replace(
        max_iters=steps, lr_decay_iters=steps, eval_interval=10, checkpoint_interval=7
    )
    calm = config.replace(out_dir=str(tmp_path / "calm"))
    train(calm)
    runs = Runs(config, tmp_path, rng)
    for kind in kinds:
        runs.hit(kind)
    runs.finish()
    return config.out_dir, calm.out_dir


@pytest.mark.timeout(240)
def test_a_short_storm_changes_no_bit(config, tmp_path):
    hit, calm = storm(config, tmp_path, ["kill", "flip", "disk", "term"], seed=2, steps=120)
    assert losses(hit) == losses(calm)
    assert_same_weights(hit, calm)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_storm_changes_no_bit(config, tmp_path, seed):
    rng = random.Random(seed)
    hit, calm = storm(config, tmp_path, [*EXACT, *rng.choices(EXACT, k=13)], seed)
    assert losses(hit) == losses(calm)
    assert_same_weights(hit, calm)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_storm_with_shrinking_memory(config, tmp_path):
    # short enough for rounding not to grow: sums in another order are 1e-7 apart at first, and a run is chaotic
    hit, calm = storm(
        config.replace(dropout=0.0, learning_rate=1e-4, min_lr=1e-5),
        tmp_path,
        ["oom", "kill", "oom", "term", "kill"],
        5,
    )
    assert any(event["event"] == "oom" for event in events(hit))
    a, b = losses(hit), losses(calm)
    assert a.keys() == b.keys()
    assert [a[step] for step in a] == pytest.approx([b[step] for step in a], rel=1e-5)


def test_a_second_ctrl_c_ends_at_once(config, tmp_path):
    """The first is being obeyed (a long step); the second does not wait for it."""
    big = config.replace(gradient_accumulation_steps=20_000, max_iters=5, lr_decay_iters=5)
    runs = Runs(big, tmp_path, random.Random(0))
    process = runs.start()
    deadline = time.monotonic() + 60
    while not (runs.folder / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    for _ in range(
        20
    ):  # of two that come at once, before the first is seen, a process is notified once
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=2)
            break
        except subprocess.TimeoutExpired:
            pass
    assert process.returncode == 130
    assert "stopped at once" in err
