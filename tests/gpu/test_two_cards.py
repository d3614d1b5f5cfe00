"""On two real cards: one process on each, and a run on the second alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from card_runs import log_of

from onecard.config import RunConfig, to_toml
from onecard.model.checkpoint import checkpoints, read_state
from onecard.train.run.loop import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # as in test_card.py
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch finds no two CUDA cards"),
    pytest.mark.timeout(900),
]


def test_a_run_on_the_second_card_leaves_the_first_alone(config):
    before = torch.cuda.memory_allocated(0)
    assert train(config.replace(device="cuda:1")).state == "finished"
    assert torch.cuda.memory_allocated(0) == before


def torchrun(config: RunConfig, place: Path) -> subprocess.Popen:
    file = place / "config.toml"
    file.write_text(to_toml(config))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "onecard", "train", str(file), "--quiet"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_two_cards_do_one_cards_run(config, tmp_path):
    process = torchrun(config, tmp_path)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    two = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    alone = config.replace(out_dir=str(tmp_path / "alone"))
    train(alone)
    one = [line["loss"] for line in log_of(alone) if line["kind"] == "step"]
    assert two == pytest.approx(one, rel=0.02)


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="needs /proc to find the processes"
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_leaves_no_card_waiting(config, tmp_path, victim):
    """Under NCCL the survivor's card waits for the other one; it is freed, and the last step is saved."""
    config = config.replace(max_iters=100_000, lr_decay_iters=100_000, eval_interval=100_000)
    process = torchrun(config, tmp_path)
    until = time.monotonic() + 300
    while time.monotonic() < until and process.poll() is None and not _has_step(config, 30):
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = {
        entry: int(pid)
        for pid in children
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    }
    os.kill(ranks[f"RANK={victim}".encode()], signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "saved at step" in err, err
    assert read_state(checkpoints(Path(config.out_dir))[-1])["step"] >= 30


def _has_step(config: RunConfig, step: int) -> bool:
    log = Path(config.out_dir) / "log.jsonl"
    return log.exists() and f'"step": {step},' in log.read_text()
