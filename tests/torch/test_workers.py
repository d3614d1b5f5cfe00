"""Two processes under torchrun on the CPU: the single process's losses, resume across their number, a killed worker."""

import os
import sys
from pathlib import Path

import pytest
from process_group import SILENCE
from runs_in_tests import losses

from forked import start_torchrun
from onecard.config import to_toml
from onecard.model.checkpoint import checkpoints, read_state
from onecard.runs.record import RunRecord
from onecard.train.run.loop import train

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="gloo under torchrun is not set up on Windows"
)


def torchrun(config, place: Path, fork: bool = True) -> tuple[int, str]:
    """Exit code and errors of two processes."""
    file = place / "config.toml"
    file.write_text(to_toml(config))
    words = ["--nproc_per_node=2", "-m", "onecard", "train", file, "--quiet"]
    process = start_torchrun(*words, env={**os.environ, **SILENCE}, fork=fork)
    _, err = process.communicate(timeout=120)
    return process.returncode, err


@pytest.mark.timeout(240)
def test_two_processes_do_the_single_ones_run_and_can_be_resumed_by_one(config, tmp_path, several):
    config = config.replace(
        dropout=0.0, gradient_accumulation_steps=3, batch_size=3
    )  # 9 rows: 4 and 5
    single = config.replace(out_dir=str(tmp_path / "single"))
    train(single)
    wanted = losses(single.out_dir)

    first = config.replace(max_iters=6)
    assert several.train(first, 2) == ["finished"] * 2
    found = losses(config.out_dir)
    assert [found[step] for step in range(1, 7)] == pytest.approx(
        [wanted[step] for step in range(1, 7)], rel=1e-5
    )
    assert read_state(checkpoints(Path(config.out_dir))[-1])["processes"] == 2

    train(config, resume=True, change=["max_iters"])  # the rest alone
    assert list(losses(config.out_dir).values()) == pytest.approx(list(wanted.values()), rel=1e-5)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "saved"),
    [
        ("kill@7:1", 7),
        ("kill_in_update@7:0", 8),  # the survivor's own update is whole
        pytest.param("kill@7:0", 7, marks=pytest.mark.long),
        pytest.param("kill_in_update@7:1", 8, marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_ends_the_run_with_one_message_and_a_good_checkpoint(
    config, tmp_path, monkeypatch, fault, saved
):
    config = config.replace(eval_interval=100, checkpoint_interval=3)
    monkeypatch.setenv("ONECARD_FAULT", fault)
    code, err = torchrun(config, tmp_path)
    assert code != 0
    assert err.count("a worker process of the run ended") == 1, err
    assert f"saved at step {saved}" in err
    assert RunRecord(Path(config.out_dir)).state == "stopped"
    assert read_state(checkpoints(Path(config.out_dir))[-1])["step"] == saved
    train(config, resume=True)
    assert list(losses(config.out_dir)) == list(range(1, config.max_iters + 1))


@pytest.mark.timeout(120)
def test_a_users_mistake_is_said_once(config, tmp_path):
    nowhere = config.replace(dataset=str(tmp_path / "nowhere"))
    code, err = torchrun(nowhere, tmp_path, fork=False)  # as people start it
    assert code != 0
    assert err.count("onecard:") == 1, err


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "fault",
    [
        "error@5:1",
        pytest.param("error@5:0", marks=pytest.mark.long),
        pytest.param("error@5", marks=pytest.mark.long),
    ],
)
def test_an_error_in_a_process_ends_the_run_saved(config, tmp_path, monkeypatch, fault):
    """The one that fails first says why; the first of those that are left holds the last finished step and saves it."""
    monkeypatch.setenv("ONECARD_FAULT", fault)
    code, err = torchrun(config, tmp_path)
    assert code != 0
    assert "internal error: RuntimeError: ordered by the fault suite" in err
    assert "saved at step 5" in err
    assert read_state(checkpoints(Path(config.out_dir))[-1])["step"] == 5
    assert RunRecord(Path(config.out_dir)).state == "stopped"
    train(config, resume=True)
    assert max(losses(config.out_dir)) == 10
