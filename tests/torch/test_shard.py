"""Models sharded over processes (FSDP2 on gloo): the losses of one process, whatever fails; checkpoints in parts."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch
from process_group import Processes
from runs_in_tests import TINY, events, losses

from onecard.cli import main
from onecard.errors import UserError
from onecard.model import checkpoint
from onecard.model.opening import open_model
from onecard.model.weights import read_weights
from onecard.runs.log import read_log
from onecard.train.optim.sharded_rows import Slices
from onecard.train.run.loop import train

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="gloo is not set up on Windows"),
]
EVEN = TINY.replace(  # 9 rows: 4 and 5
    dropout=0.0, gradient_accumulation_steps=3, batch_size=3, max_iters=6, eval_interval=3
)
MODERN = {"recipe": "modern", "tied": False, "optimizer": "muon"}


@pytest.fixture
def run(data, tmp_path):
    """The config of a run in a folder of its own."""
    return lambda name, **changes: EVEN.replace(
        dataset=str(data), out_dir=str(tmp_path / name), **changes
    )


def newest(config) -> Path:
    return checkpoint.checkpoints(Path(config.out_dir))[-1]


def alike(config, wanted) -> None:
    found = losses(config.out_dir)
    assert found == pytest.approx({step: wanted[step] for step in found}, rel=1e-5)
    assert max(found) == config.max_iters


@pytest.mark.parametrize("changes", [{"bias": True}, MODERN], ids=["adamw", "muon"])
def test_each_way_has_the_losses_of_one_process(several, run, changes):
    single = run("single", **changes)
    train(single)
    wanted = losses(single.out_dir)
    for way, processes, machines in (("grads", 2, 1), ("full", 4, 1), ("full", 4, 2)):
        config = run(f"{way}{processes}{machines}", shard=way, **changes)
        assert several.train(config, processes, machines) == ["finished"] * processes
        alike(config, wanted)


def test_four_processes_then_one_then_two_then_four(several, run):
    """A run changes its number of processes and its way; the folder is read by everything that reads a run."""
    single = run("single", **MODERN)
    train(single)
    wanted = losses(single.out_dir)
    first = run("run", shard="full", **{**MODERN, "max_iters": 2})
    assert several.train(first, 4) == ["finished"] * 4
    state = checkpoint.read_state(newest(first))
    assert state["schema"] == checkpoint.SCHEMA_PARTS
    assert {path.name for path in newest(first).iterdir()} == {"state.json", *state["files"]}
    assert state["parts"] == 4
    assert b"pickle" not in b"".join(path.read_bytes() for path in newest(first).iterdir())

    steps = [(1, "full", 3), (2, "grads", 4), (4, "none", 5), (4, "full", 6)]
    for processes, way, last in steps:
        config = first.replace(shard=way, max_iters=last)
        change = {"resume": True, "change": ["max_iters"]}
        assert several.train(config, processes, **change) == ["finished"] * processes
        alike(config, wanted)
    parts = checkpoint.read(newest(first))
    whole = checkpoint.read(newest(single))
    assert parts.model.keys() == whole.model.keys()
    assert parts.optimizer.keys() == whole.optimizer.keys()
    for kind in ("model", "optimizer"):
        for name, tensor in getattr(whole, kind).items():
            torch.testing.assert_close(getattr(parts, kind)[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_in_parts_is_read_by_sample_init_from_and_export(several, run, tmp_path):
    config = run("run", shard="full", max_iters=2)
    assert several.train(config, 2) == ["finished"] * 2
    model = open_model(config.out_dir, "cpu").model
    weights = read_weights(config.out_dir)
    assert torch.equal(weights["transformer.wte.weight"], model.transformer.wte.weight)
    assert main(["export", config.out_dir, "--to", "nanogpt", "--out", str(tmp_path / "out")]) == 0
    assert main(["export", config.out_dir, "--to", "hf", "--out", str(tmp_path / "hf")]) == 0
    assert (tmp_path / "hf" / "model.safetensors").is_file()
    again = run("again", init_from=config.out_dir, max_iters=2)
    assert train(again).state == "finished"


def test_rounding_by_chance_does_not_depend_on_the_sharing(several, run):
    low = {**MODERN, "optimizer_state": "8bit", "n_embd": 256, "n_layer": 1, "max_iters": 4}
    single = run("single", **low)
    train(single)
    config = run("parts", shard="full", **low)
    assert several.train(config, 2) == ["finished"] * 2
    alike(config, losses(single.out_dir))
    train(config.replace(max_iters=5), resume=True, change=["max_iters"])  # its blocks fit together
    train(single.replace(max_iters=5), resume=True, change=["max_iters"])
    alike(config.replace(max_iters=5), losses(single.out_dir))


FAULTS = [
    ("full", "forward@19:1", "oom"),
    ("grads", "backward@20:1", "oom"),
    ("full", "nan@3:1", "bad_step"),
]


def test_what_fails_in_one_process_is_done_again_by_all(several, run):
    single = run("single")
    train(single)
    wanted = losses(single.out_dir)
    for way, fault, event in FAULTS:
        config = run(f"{way}-{fault}", shard=way)
        assert several.train(config, 2, fault=fault) == ["finished"] * 2
        assert [line["event"] for line in events(config.out_dir) if line["event"] == event]
        alike(config, wanted)


def test_an_error_in_one_process_ends_all_with_the_last_step_saved(several, run):
    config = run("run", shard="full")
    first, second = several.train(config, 2, fault="error@5:1")
    assert second == (
        "InternalError: internal error: RuntimeError: ordered by the fault suite; saved at step 5"
    )
    assert first == "RunFailure:"
    assert checkpoint.read_state(newest(config))["step"] == 5
    assert several.train(config, 2, resume=True) == ["finished"] * 2
    assert max(losses(config.out_dir)) == 6


@pytest.mark.parametrize("fault", ["rows@5:1", "rows@5:0", "val@1:1"])
def test_data_that_one_process_cannot_read_ends_all_with_the_last_step_saved(several, run, fault):
    """val@1: in the first evaluation, after step 3."""
    config = run("run", shard="full", checkpoint_interval=100)
    wanted = 5 if fault.startswith("rows") else 3
    answers = several.train(config, 2, fault=fault)
    failing = int(fault[-1])
    assert answers[failing] == (
        f"RunFailure: the shard is gone (ordered by the test); saved at step {wanted}"
    )
    assert answers[1 - failing] == "RunFailure:"
    assert checkpoint.read_state(newest(config))["step"] == wanted
    assert several.train(config, 2, resume=True) == ["finished"] * 2


def test_no_room_for_a_copy_of_the_model_costs_its_sample_alone(several, run):
    config = run("run", shard="full", sample_interval=3)
    assert several.train(config, 2, fault="copy@0") == ["finished"] * 2
    texts = [e["text"] for e in events(config.out_dir) if e["event"] == "side_show_failed"]
    why = "MemoryError: the first process has no room for a copy of the whole model"
    assert texts == [f"a copy of the model failed ({why}); the run continues without"]
    assert max(losses(config.out_dir)) == 6


def test_training_goes_on_while_parts_are_written(several, run):
    config = run("run", shard="full", checkpoint_interval=2, max_iters=3)
    assert several.train(config, 2, slow=0.5) == ["finished"] * 2
    kinds = [
        (line["kind"], line["step"])
        for line in read_log(Path(config.out_dir) / "log.jsonl")
        if line["kind"] in ("step", "checkpoint")
    ]
    assert (
        kinds.index(("step", 3)) < kinds.index(("checkpoint", 2)) < kinds.index(("checkpoint", 3))
    )


def test_a_part_that_cannot_be_written_costs_that_checkpoint_alone(several, run):
    config = run("run", shard="full", checkpoint_interval=2, max_iters=3)
    answers = several.train(config, 2, fault="full@1")
    why = "the run is finished, but its last checkpoint could not be written"
    assert all(answer.startswith(f"RunFailure: {why}") for answer in answers)
    texts = [e["text"] for e in events(config.out_dir) if e["event"] == "checkpoint_failed"]
    assert texts[0] == "no checkpoint at step 2: process 1 could not write its part"
    assert list((Path(config.out_dir) / "checkpoints").iterdir()) == []
    assert max(losses(config.out_dir)) == 3


@pytest.mark.parametrize("fault", ["", "full@1"])
def test_the_state_before_the_decay_is_kept_in_parts(several, run, fault):
    flat = {"schedule": "wsd", "decay_fraction": 0.4, "max_iters": 6, "lr_decay_iters": 6}
    config = run("run", shard="full", checkpoint_interval=2, **flat)
    several.train(config, 2, fault=fault)
    kept = checkpoint.checkpoints(Path(config.out_dir) / "predecay")
    assert [checkpoint.step_of(path) for path in kept] == ([] if fault else [4])
    texts = {e["text"] for e in events(config.out_dir) if "predecay" in e["text"]}
    why = "process 1 could not write its part"
    assert texts == ({f"nothing is kept in predecay/: {why}"} if fault else set())
    if not fault:
        assert checkpoint.read_state(kept[0])["parts"] == 2


def test_damage_for_one_process_is_passed_over_by_all(several, run):
    config = run("run", shard="full", max_iters=4)
    assert several.train(config, 2) == ["finished"] * 2
    damaged = newest(config) / "optimizer-00002-of-00002.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(checkpoint.CorruptError, match="does not have its checksum"):
        checkpoint.read(damaged.parent)
    again = {"resume": True, "change": ["max_iters"]}
    assert several.train(config.replace(max_iters=6), 2, **again) == ["finished"] * 2
    assert any("step_00000004 is damaged" in line["text"] for line in events(config.out_dir))


def test_parts_that_do_not_fit_together_are_damage(several, run):
    config = run("run", shard="full", max_iters=2)
    assert several.train(config, 2) == ["finished"] * 2
    folder = newest(config)
    good = json.loads((folder / "state.json").read_text())
    for change in (
        lambda state: state["tensors"]["transformer.wte.weight"].update(starts=[0, 5]),
        lambda state: state["tensors"]["transformer.wte.weight"].update(shape=[63, 32]),
        lambda state: state["tensors"]["transformer.wte.weight"].update(starts=[0]),
        lambda state: state.update(parts=3),
        lambda state: state.update(parts=10**9),
        lambda state: state.pop("tensors"),
    ):
        state = json.loads(json.dumps(good))
        del state["checksum"]
        change(state)
        text = json.dumps(state, sort_keys=True)
        state["checksum"] = hashlib.sha256(text.encode()).hexdigest()
        (folder / "state.json").write_text(json.dumps(state))
        with pytest.raises(checkpoint.CorruptError):
            checkpoint.read(folder)


def test_more_processes_than_rows_are_refused(several, run):
    for way in ("none", "full"):
        config = run(way, shard=way, batch_size=1)
        answers = several.train(config, 4)
        assert answers == ["UserError: 4 processes are more than the 3 rows of a step"] * 4


def test_what_cannot_be_shared_out_is_refused():
    for key in ("weights", "gradients"):
        with pytest.raises(UserError, match=f"{key} = 'bfloat16' cannot be sharded"):
            TINY.replace(shard="full", **{key: "bfloat16"})
    with pytest.raises(UserError, match="would lie in two"):
        Slices.cut({"w.weight": (100, 96)}, 0, 3).check_blocks(8)


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"bias": True}, MODERN], ids=["adamw", "muon"])
@pytest.mark.parametrize("way", ["none", "grads", "full"])
def test_fifty_steps_of_one_two_and_four_processes(several, run, way, changes):
    """In fp32 to rounding; the rounding grows with the steps."""
    fifty = {"max_iters": 50, "lr_decay_iters": 50, "eval_interval": 25, **changes}
    found = {}
    for processes in (1, 2, 4):
        config = run(f"of{processes}", shard=way, **fifty)
        assert several.train(config, processes) == ["finished"] * processes
        found[processes] = losses(config.out_dir)
        assert len(found[processes]) == 50
    for processes in (2, 4):
        assert found[processes] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("bits", ["8bit", "4bit"])
def test_fifty_steps_with_rounding_by_chance_are_within_seed_noise(several, run, bits):
    low = {"optimizer_state": bits, "n_embd": 256, "n_layer": 1, "max_iters": 50}
    low |= {"lr_decay_iters": 50, "eval_interval": 50, "learning_rate": 1e-3, "min_lr": 1e-4}
    last = {}
    for name, processes, way, seed in (
        ("one", 1, "none", 1),
        ("two", 2, "full", 1),
        ("four", 4, "grads", 1),
        ("noise", 1, "none", 2),
    ):
        config = run(name, shard=way, seed=seed, **low)
        assert several.train(config, processes) == ["finished"] * processes
        last[name] = losses(config.out_dir)[50]
    noise = abs(last["noise"] - last["one"])
    assert abs(last["two"] - last["one"]) < max(noise, 0.01)
    assert abs(last["four"] - last["one"]) < max(noise, 0.01)


@pytest.mark.long
@pytest.mark.parametrize("way", ["grads", "full"])
@pytest.mark.parametrize("recompute", ["none", "cheap", "block"])
def test_compiled_layers_have_the_losses_of_eager_ones(several, run, way, recompute):
    eager = run("eager", max_iters=3)
    train(eager)
    config = run("compiled", shard=way, recompute=recompute, compile=True, max_iters=3)
    assert several.train(config, 2) == ["finished"] * 2
    assert not any("compile: off" in line["text"] for line in events(config.out_dir))
    alike(config, losses(eager.out_dir))


@pytest.mark.long
@pytest.mark.parametrize("way", ["none", "full"])
def test_a_benchmark_may_take_longer_than_exchanges_wait(run, way):
    with Processes() as two:  # of their own: their patience is short
        config = run("run", shard=way, eval_tasks_interval=3, max_iters=4)
        assert two.train(config, 2, fault="benchmark@15") == ["finished"] * 2
    lines = [line for line in read_log(Path(config.out_dir) / "log.jsonl")]
    assert [line["step"] for line in lines if line["kind"] == "tasks"] == [3, 4]


@pytest.mark.long
def test_eight_processes_resume_what_four_wrote(run):
    with Processes() as eight:
        config = run("run", shard="full", max_iters=3)
        assert eight.train(config, 4) == ["finished"] * 4
        again = {"resume": True, "change": ["max_iters"]}
        assert eight.train(config.replace(max_iters=6), 8, **again) == ["finished"] * 8
    single = run("single")
    train(single)
    alike(config.replace(max_iters=6), losses(single.out_dir))
