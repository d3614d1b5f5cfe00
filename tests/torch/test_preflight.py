"""Before the first step everything that is needed later has been opened; where something is wrong, nothing is left."""

import json
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from onecard.cli import main
from onecard.config import to_toml
from onecard.errors import UserError
from onecard.model.checkpoint import checkpoints
from onecard.planner.memory.step import checkpoint_bytes
from onecard.planner.workload import Workload
from onecard.train.run import preflight
from onecard.train.run.loop import train


def nothing_left(config):
    assert not Path(config.out_dir).exists()


def test_a_tokeniser_that_cannot_write_its_text_is_found_at_the_start(config):
    """A surrogate in meta.pkl ended the run at its first sample, with nothing saved."""
    path = Path(config.dataset) / "meta.pkl"
    meta = pickle.loads(path.read_bytes())
    meta["itos"][63] = "\ud800"
    path.write_bytes(pickle.dumps(meta, protocol=4))
    with pytest.raises(UserError):
        train(config)
    nothing_left(config)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_tokeniser_file_is_opened_at_the_start(tmp_path, monkeypatch, config, damage):
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 200)
    assert main(["data", str(text), "--tokenizer", "bpe:300", "--out", str(tmp_path / "set")]) == 0
    (file,) = (tmp_path / "set").glob("tokenizer*")
    file.unlink() if damage == "missing" else file.write_text("{")
    with pytest.raises(UserError):
        train(config.replace(dataset=str(tmp_path / "set"), vocab_size=None))
    nothing_left(config)


def test_an_id_outside_the_vocabulary_is_found_at_the_start(config):
    path = Path(config.dataset) / "train.bin"
    tokens = np.fromfile(path, "<u2")
    tokens[len(tokens) // 2] = 999
    tokens.tofile(path)
    with pytest.raises(UserError, match="999"):
        train(config)
    nothing_left(config)


def test_a_dashboard_that_is_not_installed_leaves_no_run_behind(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb"):
        train(config.replace(wandb_log=True))
    nothing_left(config)
    assert train(config).state == "finished"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_checkpoint_that_has_no_room_is_found_at_the_start(config):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"a checkpoint of .*: File too large \("):
            train(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    nothing_left(config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer_state": "8bit", "weights": "bfloat16", "gradients": "bfloat16"},
        {"weights": "bfloat16", "gradients": "bfloat16", "offload_optimizer": True},
    ],
)
def test_a_checkpoint_takes_the_room_that_was_reserved(config, changes):
    config = config.replace(n_embd=128, max_iters=1, lr_decay_iters=1, warmup_iters=0, **changes)
    train(config)
    (folder,) = checkpoints(Path(config.out_dir))
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    expected = sum(checkpoint_bytes(Workload.of(config, "float32")))
    assert written == pytest.approx(expected, rel=0.05)


def test_a_trial_that_cannot_be_removed_does_not_end_the_run(tmp_path, monkeypatch):
    def refused(*_args, **_named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "unlink", refused)
    preflight._reserve(tmp_path, (1000,))
    assert [path.stat().st_size for path in tmp_path.rglob("0")] == [1000]


@pytest.mark.parametrize(("missing_bytes", "warned"), [(0, False), (1, True)])
def test_little_room_for_the_checkpoints_that_are_kept_is_reported(
    config, monkeypatch, missing_bytes, warned
):
    """Room for each that is kept, the best one and the one that is being written."""
    config = config.replace(keep_checkpoints=3)
    free = 5 * sum(checkpoint_bytes(Workload.of(config, "float32"))) - missing_bytes
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    flight = preflight.Preflight()
    preflight.check_disk(config, flight)
    assert any("it may run full" in line for line in flight.lines) == warned


def test_the_plan_in_the_folder_is_for_the_device_that_trains(
    config, tmp_path, monkeypatch, capsys
):
    """On a machine with a card, --device=cpu was planned for the card. And --quiet is quiet where all is well."""
    from onecard.facts import here
    from onecard.facts.gpus import find_gpu
    from onecard.planner import build

    monkeypatch.setattr(here, "here", lambda *_: find_gpu("RTX 4070"))
    monkeypatch.setattr(build, "resolve_device", lambda gpu: gpu or find_gpu("RTX 4070"))
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(config))
    assert main(["train", str(file), "--max_iters=2", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.startswith("finished at step 2")
    planned = json.loads((Path(config.out_dir) / "plan.json").read_text())
    assert planned["device"]["name"].startswith("CPU")
    assert torch.device(config.device).type == "cpu"


def test_every_process_has_a_row(config):
    four = config.replace(batch_size=2, gradient_accumulation_steps=2)
    preflight.check_rows(four, 4)
    with pytest.raises(UserError, match="5 processes are more than the 4 rows of a step"):
        preflight.check_rows(four, 5)
