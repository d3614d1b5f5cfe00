"""The loop through its door: what a run does, writes and leaves, and each old mistake that must not come back."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from runs_in_tests import assert_same_weights, events, losses, weights

from onecard.config import RunConfig
from onecard.errors import RunFailure, UserError
from onecard.model.checkpoint import checkpoints, read_state
from onecard.model.gpt2 import GPT
from onecard.planner.params import params
from onecard.runs.log import read_log
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent
from onecard.train.run.progress import Progress, finished


def ticking(seconds):
    """In place of the time module: every look at the clock finds it so much later."""
    clock = SimpleNamespace(now=0.0)

    def perf_counter():
        clock.now += seconds
        return clock.now

    clock.perf_counter = perf_counter
    return clock


def test_parameters_are_those_of_the_plan(config):
    for change in ({}, {"bias": True}, {"tied": False}, {"n_layer": 3, "block_size": 24}):
        changed = config.replace(**change)
        assert sum(p.numel() for p in GPT(changed).parameters()) == params(changed.shape).total


def test_three_steps_are_three_steps(config):
    outcome = train(config.replace(max_iters=3))
    assert (outcome.state, outcome.step) == ("finished", 3)
    assert list(losses(config.out_dir)) == [1, 2, 3]
    newest = checkpoints(Path(config.out_dir))[-1]
    assert newest.name == "step_00000003"  # the last step is saved, and evaluated
    assert read_state(newest)["val_loss"] == outcome.val_loss


def test_step_lines_carry_what_the_readers_need(config):
    train(config)
    lines = list(read_log(Path(config.out_dir) / "log.jsonl"))
    assert lines[0]["kind"] == "start"
    assert lines[-1] == {**lines[-1], "kind": "end", "state": "finished"}
    steps = [line for line in lines if line["kind"] == "step"]
    for number, line in enumerate(steps, 1):
        assert {
            "step",
            "tokens",
            "loss",
            "lr",
            "step_seconds",
            "tokens_per_second",
            "mfu",
            "grad_norm",
            "data_wait",
        } <= line.keys()
        assert line["step"] == number
        assert line["tokens"] == number * 4 * 2 * 16
        assert line["tokens_per_second"] == pytest.approx(128 / line["step_seconds"])
        assert 0 <= line["data_wait"] <= 1
    evals = [line for line in lines if line["kind"] == "eval"]
    assert [line["step"] for line in evals] == [4, 8, 10]
    assert evals[0]["perplexity"] == pytest.approx(math.exp(evals[0]["val_loss"]))
    assert any(line["kind"] == "sample" and line["text"] for line in lines)
    assert all(not isinstance(value, dict) for line in lines for value in line.values())


def test_a_run_is_not_written_over(config):
    train(config.replace(max_iters=2))
    before = losses(config.out_dir)
    with pytest.raises(UserError, match="already holds a run") as caught:
        train(config)
    assert "the option `resume`" in caught.value.hint
    assert losses(config.out_dir) == before


def test_the_loss_is_the_mean_over_the_whole_step(config, tmp_path):
    """nanoGPT reports the last micro-batch's. One pass over all rows at once must give the same figure."""
    config = config.replace(dropout=0.0, max_iters=2)
    train(config)
    train(
        config.replace(batch_size=8, gradient_accumulation_steps=1, out_dir=str(tmp_path / "one"))
    )
    train(
        config.replace(batch_size=1, gradient_accumulation_steps=8, out_dir=str(tmp_path / "eight"))
    )
    for other in ("one", "eight"):
        assert list(losses(tmp_path / other).values()) == pytest.approx(
            list(losses(config.out_dir).values()), rel=1e-5
        )


def test_evaluation_does_not_touch_the_training(config, tmp_path):
    train(config)
    never = config.replace(
        eval_interval=1000, sample_interval=1000, out_dir=str(tmp_path / "never")
    )
    train(never)
    assert losses(config.out_dir) == losses(never.out_dir)
    assert_same_weights(config.out_dir, never.out_dir)


def test_evaluation_is_on_fixed_windows(config, tmp_path):
    """The same weights give the same validation loss, whatever the seed and the micro-batch."""
    train(config.replace(max_iters=4))
    found = []
    for seed, batch in ((1, 4), (2, 4), (3, 2)):
        run = config.replace(
            seed=seed,
            batch_size=batch,
            eval_iters=8 // batch,
            eval_only=True,
            init_from=config.out_dir,
            out_dir=str(tmp_path / f"eval{seed}"),
            dropout=0.0,
        )
        found.append(train(run).val_loss)
    assert found[0] == found[1]
    assert found[2] == pytest.approx(found[0], rel=1e-6)


def test_evaluation_time_is_not_step_time(config, monkeypatch):
    import time

    from onecard.train.run import session

    real = session.evaluate

    def slow(*args, **kwargs):
        time.sleep(0.5)
        return real(*args, **kwargs)

    monkeypatch.setattr(session, "evaluate", slow)
    train(config.replace(eval_interval=1, max_iters=3))
    steps = [
        line for line in read_log(Path(config.out_dir) / "log.jsonl") if line["kind"] == "step"
    ]
    assert all(line["step_seconds"] < 0.5 for line in steps)
    assert steps[-1]["seconds"] > 2 * 0.5  # the run's clock has it, the step's has not


def test_it_overfits_one_batch(config):
    tiny = Path(config.dataset) / "train.bin"
    tiny.write_bytes(
        tiny.read_bytes()[: 2 * (4 * 16 + 1)]
    )  # four windows: every step is the same batch
    outcome = train(
        config.replace(
            n_embd=64,
            dropout=0.0,
            gradient_accumulation_steps=1,
            max_iters=200,
            lr_decay_iters=200,
            warmup_iters=10,
            eval_interval=1000,
            weight_decay=0.0,
            log_interval=50,
        )
    )
    assert outcome.loss < 0.01


def test_documents_are_masked_when_asked(config, tmp_path, monkeypatch):
    from onecard.data import Dataset

    monkeypatch.setattr(Dataset, "eot", 3, raising=False)
    real = Dataset.__init__

    def with_eot(self, layout):
        real(self, layout)
        self.eot = 3

    monkeypatch.setattr(Dataset, "__init__", with_eot)
    train(config.replace(dropout=0.0))
    masked = config.replace(dropout=0.0, mask_documents=True, out_dir=str(tmp_path / "masked"))
    train(masked)
    assert losses(masked.out_dir) != losses(config.out_dir)


@pytest.mark.parametrize("fault", ["oom@3", "oom@0,oom@5"])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_run(config, tmp_path, fault):
    config = config.replace(dropout=0.0)
    train(config)
    hit = config.replace(out_dir=str(tmp_path / "hit"))
    train(hit, faults=Faults.parse(fault))
    assert list(losses(hit.out_dir).values()) == pytest.approx(
        list(losses(config.out_dir).values()), rel=1e-5
    )
    message = [event for event in events(hit.out_dir) if event["event"] == "oom"]
    assert [event["micro_batch"] for event in message] == [2, 1][: len(message)]
    assert len(message) == fault.count("oom")
    lines = [line for line in read_log(Path(hit.out_dir) / "log.jsonl") if line["kind"] == "step"]
    assert lines[-1]["tokens"] == 10 * config.tokens_per_step


def test_out_of_memory_at_one_sequence_ends_with_a_sentence(config):
    with pytest.raises(RunFailure, match="micro-batch of one") as caught:
        train(config, faults=Faults([("oom", 5)] * 3))
    assert "saved at step 5" in caught.value.message
    assert checkpoints(Path(config.out_dir))[-1].name == "step_00000005"


def test_nan_is_retried_exactly(config, tmp_path):
    train(config)
    hit = config.replace(out_dir=str(tmp_path / "hit"))
    train(hit, faults=Faults.parse("nan@5"))
    assert losses(hit.out_dir) == losses(config.out_dir)
    assert_same_weights(hit.out_dir, config.out_dir)
    (message,) = [event for event in events(hit.out_dir) if event["event"] == "bad_step"]
    assert message["action"] == "retry"
    assert len(message["windows"]) == 8  # the whole batch is named


def test_nan_that_stays_is_skipped_and_named(config):
    outcome = train(
        config, faults=Faults([("nan", 5)] * 3)
    )  # two micro-batches, then one of the retry
    assert outcome.step == 10
    actions = [event["action"] for event in events(config.out_dir) if event["event"] == "bad_step"]
    assert actions == ["retry", "skip"]
    assert read_state(checkpoints(Path(config.out_dir))[-1])["skipped"] == [6]
    assert math.isnan(losses(config.out_dir)[6])  # not hidden
    assert all(torch.isfinite(tensor).all() for tensor in weights(config.out_dir).values())


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_the_policy_for_bad_steps_is_followed(config, policy):
    config = config.replace(on_bad_step=policy)
    if policy == "stop":
        with pytest.raises(RunFailure, match="saved at step 5"):
            train(config, faults=Faults.parse("nan@5"))
        return
    train(config, faults=Faults.parse("nan@5"))
    assert [
        event["action"] for event in events(config.out_dir) if event["event"] == "bad_step"
    ] == ["skip"]


def test_damaged_weights_go_back_to_the_checkpoint(config, tmp_path, monkeypatch):
    """A weight that is not a number (a flipped bit on the card) makes every later loss one too."""
    from onecard.train.run import setup

    models, make = [], setup.make_model
    monkeypatch.setattr(
        setup, "make_model", lambda config: models.append(make(config)) or models[-1]
    )

    class Damage(Silent):
        def step(self, fields):
            if fields["step"] == 6 and len(models) == 1:
                with torch.no_grad():
                    next(models.pop().parameters()).fill_(float("nan"))

    train(config, view=Damage())
    assert [
        event["action"] for event in events(config.out_dir) if event["event"] == "bad_step"
    ] == ["rollback"]
    train(config.replace(out_dir=str(tmp_path / "calm")))
    assert losses(config.out_dir) == losses(tmp_path / "calm")
    assert_same_weights(config.out_dir, tmp_path / "calm")


def test_max_hours_ends_in_time_with_the_decay_done(config, monkeypatch):
    """A clock that says 36 s for each step: 0.1 h is room for some ten of the 1000 steps."""
    from onecard.train.run import progress

    # read four times a step, give or take
    monkeypatch.setattr(progress, "time", ticking(9.0))
    config = config.replace(
        max_iters=1000, lr_decay_iters=1000, warmup_iters=2, max_hours=0.2, eval_interval=2000
    )
    outcome = train(config)
    lines = [
        line for line in read_log(Path(config.out_dir) / "log.jsonl") if line["kind"] == "step"
    ]
    assert outcome.state == "finished"
    assert 5 < outcome.step < 100
    assert lines[-1]["seconds"] <= 0.2 * 3600
    assert lines[-1]["lr"] < 0.2 * config.learning_rate
    assert max(line["lr"] for line in lines) > 0.8 * config.learning_rate


def test_max_hours_counts_benchmarks_too(config, monkeypatch):
    """Benchmarks of 60 s at every fourth step: the run ends in its 0.2 h all the same, with fewer steps and its decay done."""
    from onecard.train.run import progress, sampling

    clock = ticking(5.0)

    def benchmark(model, data, step):
        clock.now += 60.0
        return {}

    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(sampling, "time", clock)
    config = config.replace(
        max_iters=1000, lr_decay_iters=1000, warmup_iters=2, max_hours=0.2, eval_interval=2000
    )
    alone = train(config.replace(out_dir=f"{config.out_dir}-alone"))
    with_tasks = config.replace(eval_tasks_interval=4)
    outcome = train(with_tasks, benchmark=benchmark)
    lines = list(read_log(Path(config.out_dir) / "log.jsonl"))
    steps = [line for line in lines if line["kind"] == "step"]
    apart = [line["seconds"] for line in lines if line.get("event") == "tasks"]
    assert outcome.state == "finished"
    assert len(apart) >= 3
    assert all(60 <= seconds < 80 for seconds in apart)
    assert steps[-1]["seconds"] + sum(apart) <= 0.2 * 3600
    assert steps[-1]["lr"] < 0.2 * config.learning_rate
    assert outcome.step < alone.step
    saved = read_state(checkpoints(Path(config.out_dir))[-1])
    # the last benchmark comes after the last checkpoint
    assert saved["tasks_seconds"] == pytest.approx(sum(apart[:-1]))


def test_compilation_before_the_first_step_is_in_no_steps_time(config, monkeypatch):
    """With max_hours a pace that has it would use up the schedule within the first steps."""
    from onecard.train.run import loop, progress

    clock = ticking(1.0)

    def slow(session, state):
        clock.now += 500.0
        return state

    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(loop, "try_evaluation", slow)
    train(config.replace(max_hours=0.2))
    lines = read_log(Path(config.out_dir) / "log.jsonl")
    assert next(line for line in lines if line["kind"] == "step")["seconds"] < 100


def test_a_schedule_that_was_moved_ends_in_spite_of_rounding():
    config = RunConfig(max_iters=10, warmup_iters=1)
    assert finished(config, Progress(step=4, position=10 - 1e-9))
    assert not finished(config, Progress(step=4, position=9.9))


def test_without_pressure_max_hours_changes_nothing(config, tmp_path):
    train(config)
    ample = config.replace(max_hours=100, out_dir=str(tmp_path / "ample"))
    train(ample)
    assert losses(ample.out_dir) == losses(config.out_dir)


def test_checkpoints_kept_are_the_last_and_the_best(config):
    train(config.replace(eval_interval=1, keep_checkpoints=2, learning_rate=1.0, warmup_iters=1))
    lines = [
        line for line in read_log(Path(config.out_dir) / "log.jsonl") if line["kind"] == "eval"
    ]
    best = min(lines, key=lambda line: line["val_loss"])["step"]
    kept = [int(folder.name[5:]) for folder in checkpoints(Path(config.out_dir))]
    assert kept == sorted({9, 10, best})


def test_no_pickle_is_written(config):
    train(config.replace(max_iters=2))
    written = [path for path in Path(config.out_dir).rglob("*") if path.is_file()]
    assert {path.suffix for path in written} <= {
        ".safetensors",
        ".json",
        ".jsonl",
        ".toml",
        ".txt",
        ".lock",
    }
    state = json.loads((checkpoints(Path(config.out_dir))[-1] / "state.json").read_text())
    assert state["config"]["n_layer"] == 2


def test_another_vocabulary_than_the_datas_is_refused(config):
    with pytest.raises(UserError, match="smaller than the data set's"):
        train(config.replace(vocab_size=32))
    assert not Path(config.out_dir).exists()  # nothing was written


def test_missing_data_is_said_before_anything_is_written(config):
    (Path(config.dataset) / "val.bin").unlink()
    with pytest.raises(UserError):
        train(config)
    assert not Path(config.out_dir).exists()
