"""`probe --autotune`: real steps on the CPU, the config's total batch kept, the winner written where it was asked."""

import json
from pathlib import Path

import pytest

from onecard.cli.autotune import write_changes
from onecard.config import RunConfig, load
from onecard.train.autotune import Tuning, autotune, measured, measured_rows, micro_batches

TINY = RunConfig(
    n_layer=1,
    n_head=2,
    n_embd=32,
    block_size=32,
    batch_size=2,
    gradient_accumulation_steps=4,
    vocab_size=8192,
    compile=False,
    device="cpu",
)


def test_the_winner_does_the_same_step():
    found = autotune(TINY, seconds=4)
    assert found.config.tokens_per_step == TINY.tokens_per_step
    assert found.after_seconds <= found.before_seconds
    assert found.gain >= 1
    assert {trial.changes.get("chunked_loss") for trial in found.trials} >= {None, True}
    assert found.trials[0].changes == {}
    kept = {k for k in found.changes if k not in ("batch_size", "gradient_accumulation_steps")}
    assert kept <= {"chunked_loss", "compile", "attention", "recompute"}
    same = {**vars(found.config), **{k: getattr(TINY, k) for k in found.changes}}
    assert same == vars(TINY)


def test_a_limit_that_is_over_leaves_the_config_as_it_is():
    found = autotune(TINY, seconds=0.0)
    assert found.changes == {}
    assert len(found.trials) == 1


def test_micro_batches_keep_the_total():
    assert micro_batches(TINY) == [
        {"batch_size": 1, "gradient_accumulation_steps": 8},
        {"batch_size": 4, "gradient_accumulation_steps": 2},
        {"batch_size": 8, "gradient_accumulation_steps": 1},
    ]
    assert measured_rows(TINY) == 8
    assert measured(TINY.replace(batch_size=8, gradient_accumulation_steps=1), 8).batch_size == 8


@pytest.mark.parametrize("name", ["run.toml", "run.py"])
def test_only_what_changed_is_written(tmp_path: Path, name: str):
    source = tmp_path / name
    false = "false" if name.endswith("toml") else "False"
    source.write_text(
        f"# mine\nbatch_size = 2  # small\ncompile = {false}\nn_embd = 32\nn_head = 2\n"
    )
    changes = {"batch_size": 4, "gradient_accumulation_steps": 2, "chunked_loss": True}
    found = Tuning([], TINY.replace(**changes), changes, None, 2.0, 1.0, 8, 1.0)
    write_changes(source, source, found)
    text = source.read_text()
    assert "# mine" in text
    assert "batch_size = 4  # small" in text
    config = load(source)
    assert (config.batch_size, config.gradient_accumulation_steps) == (4, 2)
    assert config.chunked_loss
    assert not config.compile
    assert config.n_embd == 32


def test_the_command_writes_a_preset_to_out(tmp_path: Path, capsys):
    from onecard.cli import main

    source = tmp_path / "run.toml"
    source.write_text(
        "n_layer = 1\nn_head = 2\nn_embd = 32\nblock_size = 32\nbatch_size = 2\n"
        "gradient_accumulation_steps = 2\nvocab_size = 512\ncompile = false\n"
    )
    code = main(["probe", "--autotune", str(source), "--limit", "3s", "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["gain"] >= 1
    assert load(source).tokens_per_step == 2 * 2 * 32
