"""float16 with loss scaling, as cards before Ampere train: a NaN, an overflow, a roll-back and a resume are as in float32."""

import json
import sys
from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, events, losses
from test_resume import StopAt

from onecard.errors import RunFailure
from onecard.model.checkpoint import checkpoints
from onecard.runs.log import read_log
from onecard.train.run import setup
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.run.outputs import Silent


@pytest.fixture
def half(config):
    return config.replace(dtype="float16")


@pytest.fixture
def calm(half, tmp_path):
    train(half.replace(out_dir=str(tmp_path / "calm")))
    return tmp_path / "calm"


def scaler_of(folder) -> dict:
    return json.loads((checkpoints(Path(folder))[-1] / "state.json").read_text())["scaler"]


def actions(folder) -> list[str]:
    return [event["action"] for event in events(folder) if event["event"] == "bad_step"]


def test_nan_is_retried_exactly(half, calm):
    train(half, faults=Faults.parse("nan@5"))
    assert actions(half.out_dir) == ["retry"]
    assert losses(half.out_dir) == losses(calm)
    assert_same_weights(half.out_dir, calm)
    assert scaler_of(half.out_dir) == scaler_of(calm)


def test_nan_that_stays_is_skipped(half):
    assert train(half, faults=Faults([("nan", 5)] * 3)).step == 10
    assert actions(half.out_dir) == ["retry", "skip"]
    assert scaler_of(half.out_dir)["scale"] == 65536


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_the_policy_for_bad_steps_is_followed(half, policy):
    half = half.replace(on_bad_step=policy)
    if policy == "stop":
        with pytest.raises(RunFailure, match="the loss is nan; saved at step 5"):
            train(half, faults=Faults.parse("nan@5"))
    else:
        train(half, faults=Faults.parse("nan@5"))
    assert actions(half.out_dir) == [policy]


def test_an_overflow_halves_the_scale_and_does_the_step_again(half, calm):
    train(half, faults=Faults.parse("overflow@5"))
    assert actions(half.out_dir) == []  # no bad step: only float16's range was exceeded
    assert scaler_of(half.out_dir)["scale"] == 32768
    assert list(losses(half.out_dir).values()) == pytest.approx(
        list(losses(calm).values()), rel=1e-3
    )


def test_an_overflow_at_any_scale_is_a_bad_step_after_seventeen_tries(half):
    """The scale falls from 2^16 to 1 and no further; then the step is bad, and the scale is what it was."""
    faults = Faults([("overflow", 5)] * 1000)
    assert train(half, faults=faults).step == 10
    assert actions(half.out_dir) == ["retry", "skip"]
    assert (
        1000 - len(faults.planned) == 2 * 17 * 2
    )  # tries, each of 17 scales and two micro-batches
    assert scaler_of(half.out_dir)["scale"] == 65536


def test_damaged_weights_go_back_to_the_checkpoint(half, calm, monkeypatch):
    models, make = [], setup.make_model

    def keep(config):
        models.append(make(config))
        return models[-1]

    class Damage(Silent):
        def step(self, fields):
            if fields["step"] == 6 and models:
                with torch.no_grad():
                    next(models.pop().parameters()).fill_(float("nan"))

    monkeypatch.setattr(setup, "make_model", keep)
    train(half, view=Damage())
    assert actions(half.out_dir) == ["rollback"]
    assert losses(half.out_dir) == losses(calm)
    assert_same_weights(half.out_dir, calm)


def test_a_stop_between_a_bad_step_and_its_retry_is_exact(half, calm):
    class Both(StopAt):
        def message(self, text):
            if "done again from the same state" in text:
                self.step({"step": self.at})

    train(half, view=Both(-1), faults=Faults.parse("nan@5"))
    train(half, resume=True)
    assert losses(half.out_dir) == losses(calm)
    assert_same_weights(half.out_dir, calm)


def test_mfu_on_a_cpu_is_of_the_arithmetic_that_is_done(half):
    """A CPU without float16 arithmetic computes in float32: against the slow emulation MFU was 443 %."""
    train(half)
    found = [line["mfu"] for line in read_log(Path(half.out_dir) / "log.jsonl") if "mfu" in line]
    assert len(found) == 10
    assert all(mfu is None or 0 < mfu <= 1 for mfu in found)


@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo is not set up on Windows")
def test_two_processes_take_a_nan_and_an_overflow_as_one_does(half, tmp_path, several):
    half = half.replace(dropout=0.0)
    alone = half.replace(out_dir=str(tmp_path / "alone"))
    train(alone, faults=Faults.parse("nan@3,overflow@6"))
    assert several.train(half, 2, fault="nan@3,overflow@6") == ["finished"] * 2
    assert actions(half.out_dir) == ["retry"]
    assert scaler_of(half.out_dir)["scale"] == 32768
    assert list(losses(half.out_dir).values()) == pytest.approx(
        list(losses(alone.out_dir).values()), rel=1e-3
    )
