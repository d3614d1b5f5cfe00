"""From every moment of a save, a prune, a start or a small write, a crash leaves the newest good state or none at all."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from crash_replay import Recorder, crashes

from onecard.config import RunConfig, load, to_toml
from onecard.files import write_text
from onecard.model import checkpoint
from onecard.model.checkpoint_state import checksum
from onecard.model.tensor_file import write_tensors
from onecard.runs.record import RunRecord, is_run_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
DRAWS = [2, pytest.param(300, marks=pytest.mark.long)]
CONFIG = RunConfig(n_layer=1, n_head=1, n_embd=8, max_iters=9, lr_decay_iters=9, warmup_iters=1)


def a_state(val_loss=None):
    return {
        **{"tokens": 0, "position": 0.0, "place": 0, "seconds": 0.0, "kwh": 0.0, "micro_batch": 1},
        **{"val_loss": val_loss, "best_val_loss": val_loss, "skipped": [], "scaler": {}},
        **{"watch": {"steps": 0, "mean": 0.0, "variance": 0.0}, "log_offset": 0},
        "config": {"n_embd": 768},
    }


def save(folder, step, value, val_loss=None):
    tensor = {"w": torch.full((4,), float(value))}
    return checkpoint.save(folder, step, tensor, {"w/exp_avg": tensor["w"]}, a_state(val_loss))


def save_in_parts(folder, step, value):
    """What two processes do in train/run/part_saver.py, one after the other."""
    writing, files, half = checkpoint.Writing.begin(folder, step), {}, torch.full((2,), value)
    for index in (1, 0):
        for kind, name in ((checkpoint.MODEL, "w"), (checkpoint.OPTIMIZER, "w/exp_avg")):
            file = checkpoint.part_name(kind, index, 2)
            files[file] = write_tensors(writing.aside / file, {name: half})
    where = {"shape": [4], "starts": [0, 2]}
    state = {"step": step, **a_state(), "files": files, "parts": 2}
    state["tensors"] = {"w": where, "w/exp_avg": where}
    writing.finish({"schema": checkpoint.SCHEMA_PARTS, **state})


def found(folder) -> tuple[int, float] | None:
    """(step, value) of the checkpoint a resume would take; never a half one."""
    saved = checkpoint.newest_good(folder, lambda text: None)
    if saved is None:
        return None
    assert torch.equal(saved.model["w"], saved.optimizer["w/exp_avg"])
    return saved.state["step"], saved.model["w"][0].item()


def replay(tmp_path, prepare, work, draws):
    """Each crash's folder with whether the work was promised; asserts that there were many."""
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder)
    with recorder:
        prepare(folder)
    before = len(recorder.operations)
    with recorder:
        work(folder)
        recorder.mark()
    place = tmp_path / "crashes"
    number = 0
    for what, left, promised in crashes(recorder.operations, before, place, draws):
        number += 1
        yield what, left, promised
        shutil.rmtree(left)
    assert number > 10


@pytest.mark.parametrize("draws", DRAWS)
@pytest.mark.parametrize("save_next", [save, save_in_parts])
def test_saving_the_next_step(tmp_path, draws, save_next):
    for what, left, promised in replay(
        tmp_path, lambda f: save(f, 4, 1.0), lambda f: save_next(f, 5, 2.0), draws
    ):
        allowed = [(5, 2.0)] if promised else [(4, 1.0), (5, 2.0)]
        assert found(left) in allowed, what


@pytest.mark.parametrize("draws", DRAWS)
def test_the_first_save(tmp_path, draws):
    for what, left, promised in replay(tmp_path, lambda f: None, lambda f: save(f, 1, 1.0), draws):
        assert found(left) in ([(1, 1.0)] if promised else [None, (1, 1.0)]), what


@pytest.mark.parametrize("draws", DRAWS)
def test_saving_the_same_step_again(tmp_path, draws):
    for what, left, promised in replay(
        tmp_path, lambda f: save(f, 4, 1.0), lambda f: save(f, 4, 2.0), draws
    ):
        allowed = [(4, 2.0)] if promised else [(4, 1.0), (4, 2.0)]
        assert found(left) in allowed, what
        save(left, 4, 3.0)  # and the run continues from there
        checkpoint.prune(left, 1, 4)
        assert found(left) == (4, 3.0), what
        assert [p.name[0] for p in (left / "checkpoints").iterdir()] == ["s"], what


@pytest.mark.parametrize("draws", DRAWS)
def test_pruning(tmp_path, draws):
    def three(folder):
        save(folder, 1, 1.0, val_loss=1.0)
        save(folder, 2, 2.0)
        save(folder, 3, 3.0)

    for what, left, _ in replay(tmp_path, three, lambda f: checkpoint.prune(f, 1, 3), draws):
        assert found(left) == (3, 3.0), what
        assert checkpoint.read_model(left / "checkpoints" / "step_00000001"), what  # the best


@pytest.mark.parametrize("draws", DRAWS)
def test_a_run_folder(tmp_path, draws):
    def work(folder):
        record = RunRecord(folder)
        record.claim()
        record.write_new(CONFIG, None, {"torch": "2"})
        record.begin()
        record.end("finished")

    for what, left, promised in replay(tmp_path, lambda f: None, work, draws):
        if promised or is_run_folder(left):
            record = RunRecord(left)
            assert record.config() == CONFIG, what
            assert record.state in (("finished",) if promised else ("finished", "stopped", "dead"))
            environment = (left / "environment.json").read_text(encoding="utf-8")
            assert json.loads(environment) == {"torch": "2"}, what


@pytest.mark.parametrize("draws", DRAWS)
def test_a_small_file_is_the_old_one_or_the_new_one(tmp_path, draws):
    """config.toml, reports, calibrations: all go through files.write_text."""
    texts = [to_toml(CONFIG.replace(n_layer=layers)) for layers in (1, 2)]
    for what, left, promised in replay(
        tmp_path,
        lambda f: write_text(f / "config.toml", texts[0]),
        lambda f: write_text(f / "config.toml", texts[1]),
        draws,
    ):
        layers = load(left / "config.toml").n_layer
        assert layers in ((2,) if promised else (1, 2)), what


@pytest.mark.parametrize("draws", DRAWS)
def test_a_calibration(tmp_path, draws, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "pure")
    from calibrations import calibration

    from onecard.planner import calibration_file

    def write(date):
        def work(folder):
            monkeypatch.setenv("ONECARD_HOME", str(folder))
            calibration_file.write_calibration(calibration(date=date))

        return work

    for what, left, promised in replay(tmp_path, write("2026-01-01"), write("2026-02-02"), draws):
        monkeypatch.setenv("ONECARD_HOME", str(left))
        notes: list = []
        dates = [each.date for _, each in calibration_file.read_calibrations(notes)]
        assert not notes, what
        assert dates in ([["2026-02-02"]] if promised else [["2026-01-01"], ["2026-02-02"]]), what


def test_the_recorder_finds_a_save_that_renames_the_old_one_away_first(tmp_path, monkeypatch):
    """It would be no proof if it could not fail: the way it was done before."""
    import os

    def renaming(folder, step, value):
        final = folder / "checkpoints" / f"step_{step:08d}"
        os.replace(final, final.with_name(".old"))
        save(folder, step, value)

    losses = [
        what
        for what, left, _ in replay(
            tmp_path, lambda f: save(f, 4, 1.0), lambda f: renaming(f, 4, 2.0), 0
        )
        if found(left) is None
    ]
    assert losses


def test_what_is_kept_is_the_newest_and_the_best_that_was_evaluated(tmp_path):
    for step, val_loss in ((1, 2.0), (2, 1.0), (3, 3.0), (4, None), (5, None)):
        save(tmp_path, step, 1.0, val_loss)
    checkpoint.prune(tmp_path, 1, 5)
    assert [checkpoint.step_of(each) for each in checkpoint.checkpoints(tmp_path)] == [2, 5]


def test_steps_that_were_skipped_are_numbers(tmp_path):
    path = save(tmp_path, 3, 1.0) / checkpoint.STATE
    state = json.loads(path.read_text())
    del state["checksum"]
    state["skipped"] = ["x"]
    path.write_text(json.dumps({**state, "checksum": checksum(state)}))
    with pytest.raises(checkpoint.CorruptError, match="skipped"):
        checkpoint.read_state(path.parent)
