"""Workers killed at random under `torchrun --max-restarts`: the run loses no more than the steps since its last checkpoint,
and ends as the calm run does."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from process_group import SILENCE
from runs_in_tests import losses

from forked import start_torchrun
from onecard.config import to_toml
from onecard.runs.log import read_log
from onecard.train.run.loop import train

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the workers are found in /proc"),
]
EVERY = 5  # steps between checkpoints
BETWEEN = 20  # and, about, between two kills


def workers_of(launcher: int) -> list[int]:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    return list(map(int, children.split()))


def reached(config) -> int:
    try:
        return max(losses(config.out_dir), default=0)
    except (OSError, ValueError):
        return 0


def saved(config) -> int:
    found = (Path(config.out_dir) / "checkpoints").glob("step_*/state.json")
    return max((int(path.parent.name[5:13]) for path in found), default=0)


@pytest.mark.parametrize(
    ("way", "processes", "kills"),
    [
        ("full", 2, 1),
        pytest.param("none", 2, 3, marks=pytest.mark.long),
        pytest.param("grads", 2, 4, marks=pytest.mark.long),
        pytest.param("full", 4, 4, marks=pytest.mark.long),
    ],
)
def test_killed_workers_cost_the_steps_since_the_last_checkpoint(
    config, tmp_path, way, processes, kills
):
    chance = random.Random(way)
    steps = BETWEEN * (kills + 1)
    config = config.replace(
        dropout=0.0,
        shard=way,
        max_iters=steps,
        lr_decay_iters=steps,
        eval_interval=steps,
        checkpoint_interval=EVERY,
    )
    calm = config.replace(out_dir=str(tmp_path / "calm"), shard="none")
    train(calm)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    words = [f"--nproc_per_node={processes}", f"--max-restarts={kills}"]
    words += ["-m", "onecard", "train", file, "--continue", "--quiet"]
    launcher = start_torchrun(*words, env={**os.environ, **SILENCE})
    for kill in range(kills):
        goal = BETWEEN * kill + chance.randrange(EVERY + 2, BETWEEN - EVERY)
        wait_until(lambda: reached(config) >= goal, launcher)  # noqa: B023
        before, there = saved(config), workers_of(launcher.pid)
        os.kill(chance.choice(there), signal.SIGKILL)
        wait_until(lambda: not set(there) & set(workers_of(launcher.pid)), launcher)  # noqa: B023
        assert saved(config) >= before
    _, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 0, err[-3000:]
    lines = list(read_log(Path(config.out_dir) / "log.jsonl"))
    assert sum(line["kind"] == "start" and line["resumed"] for line in lines) == kills
    assert losses(config.out_dir) == pytest.approx(losses(calm.out_dir), rel=1e-5)


def wait_until(holds, launcher) -> None:
    give_up = time.monotonic() + 200
    while not holds():
        assert launcher.poll() is None, launcher.communicate(1)[1][-3000:]
        assert time.monotonic() < give_up
        time.sleep(0.02)
