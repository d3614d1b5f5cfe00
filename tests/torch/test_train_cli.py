"""`onecard train` and `verify-resume` as they are typed."""

import json
from pathlib import Path

import pytest
from runs_in_tests import events, losses

from onecard.cli import main
from onecard.cli import train as train_command
from onecard.config import load, to_nanogpt
from onecard.errors import OnecardError
from onecard.model.checkpoint import checkpoints, read_state
from onecard.runs.record import RunRecord
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from run_folders import new_folder


@pytest.fixture
def typed(config, tmp_path):
    """A nanoGPT config file and the words that name it."""
    file = tmp_path / "tiny.py"
    file.write_text(to_nanogpt(config.replace(vocab_size=None)))
    return str(file)


@pytest.mark.parametrize(("words", "prints"), [([], True), (["--json"], False)])
def test_where_json_is_asked_for_nothing_else_is_printed(monkeypatch, typed, words, prints):
    calls = []
    checked, planned = train_command._as_this_device_can, train_command.planned_here

    def check(config, prints):
        calls.append(prints)
        return checked(config, prints)

    def plan(config, device, prints):
        calls.append(prints)
        return planned(config, device, prints)

    monkeypatch.setattr(train_command, "_as_this_device_can", check)
    monkeypatch.setattr(train_command, "planned_here", plan)
    assert main(["train", typed, "--max_iters=2", *words]) == 0
    assert calls == [prints, prints]


def test_train_resume_extend_and_refuse(config, typed, capsys):
    assert main(["train", typed, "--max_iters=4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["state"], answer["step"], answer["folder"]) == ("finished", 4, config.out_dir)
    assert list(Path(config.out_dir, "samples").iterdir())

    assert main(["train", typed]) == 2
    assert "--resume" in capsys.readouterr().err

    assert (
        main(["train", "--resume", f"--out_dir={config.out_dir}"]) == 0
    )  # its own config, nothing left to do
    assert "--extend" in capsys.readouterr().out
    assert len(losses(config.out_dir)) == 4

    assert main(["train", "--extend", f"--out_dir={config.out_dir}"]) == 2
    assert "larger" in capsys.readouterr().err
    assert (
        main(
            ["train", "--extend", f"--out_dir={config.out_dir}", "--set", "max_iters=7", "--quiet"]
        )
        == 0
    )
    assert list(losses(config.out_dir)) == [1, 2, 3, 4, 5, 6, 7]
    assert load(Path(config.out_dir) / "config.toml").max_iters == 7
    assert read_state(checkpoints(Path(config.out_dir))[-1])["config"]["lr_decay_iters"] == 10


def test_a_whole_run_says_plan_steps_and_end(config, typed, capsys):
    assert main(["train", typed]) == 0
    message = capsys.readouterr().out
    assert "parameters" in message
    assert "epochs" in message
    assert "finished at step 10, validation loss" in message
    for name in ("config.toml", "plan.json", "environment.json", "log.jsonl", "run.json"):
        assert (Path(config.out_dir) / name).is_file()


@pytest.mark.parametrize(
    "words",
    [
        ["--n_layers=2"],
        ["--learning_rate=fast"],
        ["--dataset=nowhere"],
        ["--device=gpu"],
        ["--block_size=1000000"],
        ["--extend", "--out_dir=nothing-here"],
        ["--init_from=nowhere"],
    ],
)
def test_a_mistake_is_a_sentence(config, typed, capsys, words):
    assert main(["train", typed, *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("onecard: ")
    assert "hint:" in err
    assert not Path(config.out_dir).exists()


def test_a_learning_rate_of_one_is_only_a_number(typed):
    """nanoGPT answers --learning_rate=1 with a bare AssertionError."""
    assert main(["train", typed, "--learning_rate=1", "--max_iters=2", "--quiet"]) == 0


def test_verify_resume_at_the_command_line(typed, capsys):
    assert main(["verify-resume", typed, "--steps", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exact"] is True
    assert main(["verify-resume", typed, "--steps", "1"]) == 2


def test_eval_only_evaluates(config, typed, capsys):
    assert main(["train", typed, "--eval_only=True", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["step"] == 0
    assert 3 < answer["val_loss"] < 5


def test_a_look_at_a_stopped_run_leaves_it_as_it_was(config, capsys):
    """Neither its record says that it is finished, nor its config that it is only looked at."""
    with pytest.raises(OnecardError):
        train(config, faults=Faults.parse("error@5"))
    resume = ["train", "--resume", f"--out_dir={config.out_dir}", "--quiet"]
    assert main([*resume, "--eval_only=True"]) == 0
    assert RunRecord(Path(config.out_dir)).state == "stopped"
    assert "stopped and saved at step 5" in capsys.readouterr().out
    assert main(resume) == 0
    assert list(losses(config.out_dir)) == list(range(1, config.max_iters + 1))
    assert RunRecord(Path(config.out_dir)).state == "finished"


def test_a_compiler_that_fails_is_explained_and_the_run_is_eager(config, typed, monkeypatch):
    import torch

    def broken(model, **settings):
        raise RuntimeError("no such compiler\nmore lines")

    monkeypatch.setattr(torch, "compile", broken)
    assert main(["train", typed, "--compile=True", "--max_iters=2", "--quiet"]) == 0
    assert any(
        "the run is eager (no such compiler)" in event["text"] for event in events(config.out_dir)
    )


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of torch's own insides
def test_a_compiled_run_gives_the_eager_losses(config, typed, tmp_path):
    assert main(["train", typed, "--dropout=0.0", "--quiet"]) == 0
    other = str(tmp_path / "compiled")
    assert (
        main(["train", typed, "--dropout=0.0", "--compile=True", f"--out_dir={other}", "--quiet"])
        == 0
    )
    assert not any("eager" in event["text"] for event in events(other))
    assert list(losses(other).values()) == pytest.approx(
        list(losses(config.out_dir).values()), rel=1e-4
    )


def test_continue_starts_goes_on_and_finds_nothing_left(config, typed, capsys, monkeypatch):
    words = ["train", typed, "--continue", "--quiet"]
    monkeypatch.setenv("ONECARD_FAULT", "error@5")
    assert main(words) == 70  # ends in the middle, saved
    assert list(losses(config.out_dir)) == [1, 2, 3, 4, 5]
    monkeypatch.delenv("ONECARD_FAULT")
    capsys.readouterr()
    assert main(words) == 0
    assert list(losses(config.out_dir)) == list(range(1, 11))
    assert main(words) == 0  # a job that is started once more
    assert len(losses(config.out_dir)) == 10
    message = capsys.readouterr().err
    assert "resumed: step 5 of 10" in message
    assert "this run was finished at step 10" in message


def test_a_job_that_was_killed_before_its_first_checkpoint_starts_again(config, typed, capsys):
    folder = Path(config.out_dir)
    record = new_folder(folder, config)
    record.begin()
    assert main(["train", typed, "--continue"]) == 2  # its process still runs: this one
    assert "another run is writing" in capsys.readouterr().err
    record.release()  # as when its process is killed
    assert main(["train", typed, "--continue"]) == 0
    assert "ended before its first checkpoint; it starts again" in capsys.readouterr().out
    assert (folder.with_name("run.unfinished-1") / "run.json").is_file()
    assert len(losses(folder)) == 10
