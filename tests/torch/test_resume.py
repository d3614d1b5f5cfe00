"""A stop anywhere loses nothing: the losses and weights of the run that never stopped, bit for bit."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, events, losses

from onecard.errors import RunFailure, UserError
from onecard.model.checkpoint import checkpoints, read_state
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord
from onecard.train import verify
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent
from onecard.train.verify import verify_resume


class StopAt(Silent):
    """Sends the signal from inside a step, as a terminal or a scheduler would from outside."""

    def __init__(self, step, number=signal.SIGTERM):
        self.at, self.number = step, number

    def step(self, fields):
        if fields["step"] == self.at:
            signal.raise_signal(self.number)


class Killed(BaseException):
    pass


class DieAt(Silent):
    """Leaves the loop without a word, as a kill does: nothing after the step's log line happens."""

    def __init__(self, step):
        self.at = step

    def step(self, fields):
        if fields["step"] == self.at:
            raise Killed


def nothing_saved(session, state, error):
    session.outputs.record.end("stopped")  # a dead process holds no lock
    return error


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("straight") / "run"


@pytest.fixture
def straight(config, place):
    """The run that never stopped: one for all tests, whose data are the same."""
    if not place.exists():
        train(config.replace(out_dir=str(place)))
    return str(place)


@pytest.mark.parametrize("stop", [1, 4, 5, 9])
def test_stop_and_resume_is_exact(config, straight, stop):
    outcome = train(config, view=StopAt(stop))
    assert (outcome.state, outcome.step, outcome.stopped_by) == ("stopped", stop, signal.SIGTERM)
    assert RunRecord(Path(config.out_dir)).state == "stopped"
    assert train(config, resume=True).state == "finished"
    assert losses(config.out_dir) == losses(straight)
    assert_same_weights(config.out_dir, straight)


@pytest.mark.parametrize("death", [5, 8, 10])
def test_death_between_checkpoints_is_exact(config, straight, death, monkeypatch):
    from onecard.train.run import recovery

    monkeypatch.setattr(recovery, "ended", nothing_saved)
    with pytest.raises(Killed):
        train(config, view=DieAt(death))
    train(config, resume=True)
    assert losses(config.out_dir) == losses(straight)
    steps = [
        line["step"]
        for line in read_log(Path(config.out_dir) / "log.jsonl")
        if line["kind"] == "step"
    ]
    assert steps == list(range(1, 11))  # what the dead run had logged beyond its checkpoint is gone
    assert_same_weights(config.out_dir, straight)


def test_a_signal_before_the_first_step_still_saves(config, straight):
    class AtOnce(Silent):
        def message(self, text):
            if text.startswith("data:"):
                signal.raise_signal(signal.SIGINT)

    outcome = train(config, view=AtOnce())
    assert (outcome.step, outcome.stopped_by) == (1, signal.SIGINT)
    train(config, resume=True)
    assert losses(config.out_dir) == losses(straight)


@pytest.mark.parametrize("batch", [(8, 1), (2, 4), (1, 8)])
def test_resume_with_another_micro_batch(config, tmp_path, batch):
    config = config.replace(dropout=0.0)
    train(config.replace(out_dir=str(tmp_path / "whole")))
    train(config, view=StopAt(5))
    train(config.replace(batch_size=batch[0], gradient_accumulation_steps=batch[1]), resume=True)
    found, wanted = losses(config.out_dir), losses(tmp_path / "whole")
    assert list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-5)


def test_resume_with_another_total_batch_goes_on_in_the_data(config):
    train(config, view=StopAt(5))
    other = config.replace(gradient_accumulation_steps=4)
    train(other, resume=True, change=["gradient_accumulation_steps"])
    state = read_state(checkpoints(Path(config.out_dir))[-1])
    assert state["place"] == 5 * 8 + 5 * 16
    assert state["tokens"] == 16 * state["place"]


def damage_truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def damage_flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [damage_truncate, damage_flip, Path.unlink], ids=["truncated", "flipped", "gone"]
)
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over(config, straight, damage, name):
    train(config, view=StopAt(9))
    newest = checkpoints(Path(config.out_dir))[-1]
    assert newest.name == "step_00000009"
    damage(newest / name)
    train(config, resume=True)
    assert any("step_00000009 is damaged" in event["text"] for event in events(config.out_dir))
    assert losses(config.out_dir) == losses(straight)
    assert_same_weights(config.out_dir, straight)


def test_no_good_checkpoint_is_said(config):
    train(config, view=StopAt(2))
    damage_flip(checkpoints(Path(config.out_dir))[-1] / "model.safetensors")
    with pytest.raises(RunFailure, match="none of the 1 checkpoints"):
        train(config, resume=True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_a_full_disk_costs_checkpoints_not_the_run(config, straight):
    """Writes of more than 100 kB fail from step 3 to step 6, as they do on a full disk."""
    import resource

    class FullDisk(Silent):
        def step(self, fields):
            limit = {3: 100_000, 6: resource.RLIM_INFINITY}.get(fields["step"])
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    train(config.replace(checkpoint_interval=2), view=FullDisk())
    printed = [event for event in events(config.out_dir) if event["event"] == "checkpoint_failed"]
    assert [event["step"] for event in printed] == [4]
    assert losses(config.out_dir) == losses(straight)
    assert_same_weights(config.out_dir, straight)
    assert not list(
        (Path(config.out_dir) / "checkpoints").glob(".*")
    )  # nothing half written is left


def test_half_written_leavings_of_a_kill_are_cleared(config):
    train(config, view=StopAt(4))
    left = Path(config.out_dir) / "checkpoints" / ".writing_step_00000005_99"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    train(config, resume=True)
    assert not left.exists()


def test_a_smaller_block_is_refused_with_the_way_to_do_it(config, tmp_path):
    """nanoGPT crashes in the optimizer here."""
    train(config, view=StopAt(4))
    smaller = config.replace(block_size=8)
    with pytest.raises(UserError, match="block_size = 16") as caught:
        train(smaller, resume=True)
    assert "init_from" in caught.value.hint
    outcome = train(smaller.replace(init_from=config.out_dir, out_dir=str(tmp_path / "smaller")))
    assert outcome.state == "finished"


def test_resume_in_nanogpts_words(config, straight):
    train(config, view=StopAt(3))
    train(config.replace(init_from="resume"))
    assert losses(config.out_dir) == losses(straight)


def test_a_finished_run_stays_finished_and_can_be_extended(config, tmp_path):
    longer = config.replace(
        max_iters=14, lr_decay_iters=14, learning_rate=1e-3, schedule="wsd", decay_fraction=0.1
    )
    train(longer.replace(out_dir=str(tmp_path / "whole")))
    short = longer.replace(max_iters=10)
    train(short)
    before = losses(config.out_dir)
    assert train(short, resume=True).state == "finished"
    assert losses(config.out_dir) == before
    train(longer, resume=True, change=["max_iters"])
    assert losses(config.out_dir) == losses(tmp_path / "whole")


def test_float16_keeps_its_loss_scale(config, tmp_path):
    config = config.replace(dtype="float16")
    train(config.replace(out_dir=str(tmp_path / "whole")))
    train(config, view=StopAt(5))
    state = json.loads((checkpoints(Path(config.out_dir))[-1] / "state.json").read_text())
    assert state["scaler"]["scale"] > 1
    train(config, resume=True)
    assert losses(config.out_dir) == losses(tmp_path / "whole")
    assert_same_weights(config.out_dir, tmp_path / "whole")


def test_resume_leaves_the_random_numbers_of_the_caller_out_of_it(config, straight):
    train(config, view=StopAt(5))
    torch.manual_seed(999)
    torch.rand(17)
    train(config, resume=True)
    assert_same_weights(config.out_dir, straight)


def test_a_record_of_the_data_that_was_not_finished_is_made_again(config):
    """Killed as it was written, or its disk was full: a run without it cannot be sampled once its data is gone."""
    train(config, view=StopAt(5))
    record = Path(config.out_dir) / "data" / "record.json"
    content = json.loads(record.read_text())
    record.unlink()
    train(config, resume=True)
    assert json.loads(record.read_text()) == content


def test_verify_resume_says_exact(config):
    found = verify_resume(config, steps=4)
    assert found.exact
    assert (found.stopped_at, found.largest_loss_difference, found.largest_weight_difference) == (
        2,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("given", "used"), [("resume", "scratch"), ("scratch", "scratch"), ("gpt2", "gpt2")]
)
def test_the_proof_is_a_short_form_of_the_run(config, monkeypatch, given, used):
    """It starts where the run starts, is stopped half way, and leaves out what is no part of the proof; it always trains."""
    tried = []

    def first(config, **more):
        tried.append(config)
        raise Killed

    monkeypatch.setattr(verify, "train", first)
    long_run = {"max_iters": 500, "lr_decay_iters": 500, "warmup_iters": 100, "max_hours": 2.0}
    shown = {"wandb_log": True, "tensorboard": True, "trackio": True, "log_interval": 50}
    shown |= {"eval_only": True}
    with pytest.raises(Killed):
        verify_resume(config.replace(init_from=given, **long_run, **shown), steps=7)
    (found,) = tried
    assert found.init_from == used
    assert (found.max_iters, found.lr_decay_iters, found.warmup_iters) == (7, 7, 3)
    assert (found.checkpoint_interval, found.log_interval, found.max_hours) == (3, 1, None)
    assert found.eval_interval > 7
    assert (found.wandb_log, found.tensorboard, found.trackio) == (False, False, False)
    assert not found.eval_only
    assert (found.n_embd, found.dataset, found.seed) == (config.n_embd, config.dataset, config.seed)


def test_verify_resume_notices(config, monkeypatch):
    """It would be no proof if it could not fail."""
    from onecard.train.run import progress

    monkeypatch.setattr(
        progress.Progress, "from_json", classmethod(lambda cls, state: cls(step=state["step"]))
    )
    assert not verify_resume(config, steps=4).exact
