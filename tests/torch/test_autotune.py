"""`probe --autotune`: real steps on the CPU, the config's total batch kept, the winner written where it was asked."""

import json
from pathlib import Path

import pytest
import torch

from onecard.cli.autotune import write_changes
from onecard.config import RunConfig, load
from onecard.model import processor
from onecard.train import autotune as search
from onecard.train.autotune import Tuning, autotune
from onecard.train.autotune_choices import (
    compile_modes,
    measured,
    measured_rows,
    micro_batches,
    settings,
    slices,
    threads,
)

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
SAME_NUMBERS = {
    *("chunked_loss", "chunk_rows", "compile", "compile_mode", "attention", "recompute"),
    *("threads", "affinity", "fused_optimizer", "batch_size", "gradient_accumulation_steps"),
}


def test_the_winner_does_the_same_step(monkeypatch):
    monkeypatch.setattr(search, "_SHORTEST", 0.02)
    usual = torch.get_num_threads()
    found = autotune(TINY, seconds=6)
    assert found.config.tokens_per_step == TINY.tokens_per_step
    assert found.gain >= 1
    assert found.trials[0].changes == {}
    assert any("chunked_loss" in trial.changes for trial in found.trials)
    assert set(found.changes) <= SAME_NUMBERS
    same = {**vars(found.config), **{k: getattr(TINY, k) for k in found.changes}}
    assert same == vars(TINY)
    assert torch.get_num_threads() == usual


def test_a_limit_that_is_over_leaves_the_config_as_it_is():
    found = autotune(TINY, seconds=0.0)
    assert found.changes == {}
    assert found.gain == 1
    assert len(found.trials) == 1


def race(monkeypatch, pace, config=TINY):
    """The search with steps of our own timing: `pace` of a config, or what it raises."""

    class Turn:
        def __init__(self, config):
            self.config, self.losses = config, []

        def steps(self, count):
            taken = [pace(self.config) for _ in range(count)]
            self.losses += [2.0 if self.config.attention == "math" else 1.0] * count
            return taken

    monkeypatch.setattr(search, "start", lambda device, config: Turn(config))
    monkeypatch.setattr(search.gc, "collect", lambda: 0)  # there are no tensors to let go
    return autotune(config, seconds=60)


def test_gains_add_up_and_what_does_not_fit_is_out(monkeypatch):
    def pace(config):
        if config.batch_size > 4:
            raise torch.OutOfMemoryError("out of memory")
        return 8.0 / config.batch_size / (2 if config.chunked_loss else 1)

    found = race(monkeypatch, pace)
    assert found.changes == {
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "chunked_loss": True,
    }
    assert found.gain == pytest.approx(4)
    notes = {trial.changes.get("batch_size"): trial.note for trial in found.trials}
    assert notes[8] == "no memory"


def test_another_loss_is_out_however_fast(monkeypatch):
    found = race(monkeypatch, lambda config: 0.1 if config.attention == "math" else 1.0)
    assert found.changes == {}
    assert any("another loss" in trial.note for trial in found.trials)


def test_little_gained_is_not_worth_a_change(monkeypatch):
    found = race(monkeypatch, lambda config: 0.99 if config.chunked_loss else 1.0)
    assert found.changes == {}


def test_gains_by_luck_are_not_kept(monkeypatch):
    """A choice whose first steps were quick by chance: measured again beside the config, it is not."""
    measured_steps = []

    def pace(config):
        measured_steps.append(config)
        lucky = config.chunked_loss and measured_steps.count(config) < 10
        return 0.05 if lucky else 0.1

    found = race(monkeypatch, pace)
    assert found.changes == {}
    assert found.gain == 1
    assert found.trials[-1].note == "no faster than the config as it was"


def test_slow_steps_do_not_use_up_the_time(monkeypatch):
    """Steps of 4 s in a minute: what gains is found, and what is hopeless gets one step."""
    clock, hopeless = [0.0], []

    def pace(config):
        taken = 2.5 if config.chunked_loss else 4.0
        if config.batch_size != TINY.batch_size:
            taken *= 2
            hopeless.append(config.batch_size)
        clock[0] += taken
        return taken

    monkeypatch.setattr(search.time, "perf_counter", lambda: clock[0])
    found = race(monkeypatch, pace)
    assert found.changes == {"chunked_loss": True}
    assert max(map(hopeless.count, hopeless)) <= 2  # one warms up, one is measured


def test_a_search_does_not_begin_what_it_cannot_end(monkeypatch):
    monkeypatch.setattr(search, "COMPILE_SECONDS_PER_LAYER", 1000.0)
    found = race(monkeypatch, lambda config: 0.1 if config.compile else 1.0)
    assert found.changes == {}
    assert {trial.note for trial in found.trials if "compile" in trial.changes} == {"no time"}


def test_what_is_tried_on_a_card_and_on_a_cpu():
    def tried(kind, config, fp8=False):
        every = settings(config, torch.device(kind), 8, fp8)
        return [choice for choices in every for choice in choices(config)]

    card = tried("cuda", TINY.replace(recompute="block"), fp8=True)
    assert {"compile": True, "compile_mode": "reduce-overhead"} in card
    assert {"attention": "cudnn"} in card
    assert {"fp8": True} in card
    assert {"recompute": "none"} in card
    assert not any("threads" in choice for choice in card)
    here = tried("cpu", TINY)
    assert not any(choice.get("compile_mode") == "reduce-overhead" for choice in here)
    assert {"fused_optimizer": False} in here
    assert {"fp8": True} not in here
    graphs = [{"compile": True, "compile_mode": "reduce-overhead"}]
    # what takes a graph's outputs over excludes it
    assert not [c for c in compile_modes(TINY.replace(gradients="bfloat16"), True) if c in graphs]
    assert {"threads": 2 * torch.get_num_threads()} in threads(TINY)
    assert slices(TINY.replace(chunked_loss=True, chunk_rows=16), on_card=True) == [
        {"chunk_rows": 8},
        {"chunk_rows": 32},
        {"chunk_rows": 64},
    ]


def test_micro_batches_keep_the_total():
    assert micro_batches(TINY, 8) == [
        {"batch_size": 1, "gradient_accumulation_steps": 8},
        {"batch_size": 4, "gradient_accumulation_steps": 2},
        {"batch_size": 8, "gradient_accumulation_steps": 1},
    ]
    assert measured_rows(TINY) == 8
    assert measured(TINY.replace(batch_size=8, gradient_accumulation_steps=1), 8).batch_size == 8
    four = measured(TINY.replace(batch_size=2), 8)
    assert (four.batch_size, four.gradient_accumulation_steps) == (2, 4)


@pytest.mark.skipif(not processor.cores(), reason="the system does not say")
def test_threads_are_bound_for_a_run_and_free_again():
    import os

    before = os.sched_getaffinity(0)
    with processor.as_before():
        config = TINY.replace(threads=1, affinity="cores")
        assert processor.prepare(config, torch.device("cpu")) is None
        assert len(os.sched_getaffinity(0)) == 1
        assert torch.get_num_threads() == 1
    assert os.sched_getaffinity(0) == before


def test_an_attention_kernel_is_chosen_for_cards():
    enabled = (
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.cudnn_sdp_enabled,
    )
    with processor.as_before():
        processor.prepare(TINY.replace(attention="cudnn"), torch.device("cuda"))
        assert [ask() for ask in enabled] == [False, False, True]
    assert all(ask() for ask in enabled)


@pytest.mark.parametrize("name", ["run.toml", "run.py"])
def test_only_what_changed_is_written(tmp_path: Path, name: str):
    source = tmp_path / name
    false = "false" if name.endswith("toml") else "False"
    source.write_text(
        f"# mine\nbatch_size = 2  # small\ncompile = {false}\nn_embd = 32\nn_head = 2\n"
    )
    changes = {
        "batch_size": 4,
        "gradient_accumulation_steps": 2,
        "chunked_loss": True,
        "threads": 3,
        "compile_mode": "reduce-overhead",
    }
    found = Tuning([], TINY.replace(**changes), changes, 2.0, 1.0, 8, 1.0)
    write_changes(source, source, found)
    text = source.read_text()
    assert "# mine" in text
    assert "batch_size = 4  # small" in text
    config = load(source)
    assert {key: getattr(config, key) for key in changes} == changes
    assert not config.compile
    assert config.n_embd == 32


def test_the_command_writes_the_winner(tmp_path: Path, capsys, monkeypatch):
    from onecard.cli import main

    monkeypatch.setattr(search, "_SHORTEST", 0.02)
    source = tmp_path / "run.toml"
    source.write_text(
        "n_layer = 1\nn_head = 2\nn_embd = 32\nblock_size = 32\nbatch_size = 2\n"
        "gradient_accumulation_steps = 2\nvocab_size = 512\ncompile = false\n"
    )
    code = main(["probe", "--autotune", str(source), "--limit", "2s", "--device", "cpu", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["gain"] >= 1
    config = load(source)
    assert config.tokens_per_step == 2 * 2 * 32
    assert {key: getattr(config, key) for key in found["changes"]} == found["changes"]
