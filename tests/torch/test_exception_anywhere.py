"""Whatever ends a run, its last finished step is on disk: every call of the loop's collaborators fails once, in every way.

The fault strikes in the fourth step of eight, once. Either the run continues as if nothing had happened (what it can do
without, memory that ran out) or it ends with a sentence, a checkpoint and the calm run's losses after a resume. The
normal run samples the product of calls and errors; `pytest -m long` does all of it.
"""

import itertools
import signal
from pathlib import Path

import pytest
import torch
from runs_in_tests import assert_same_weights, events, losses, weights

from onecard.errors import InternalError, OnecardError, RunFailure
from onecard.model import checkpoint, machine
from onecard.model.gpt2 import GPT
from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord
from onecard.train.io.loader import Loader
from onecard.train.io.loggers import Loggers
from onecard.train.run import loop, session, setup, step, trial, validation
from onecard.train.run.loop import train
from onecard.train.run.loss_watch import LossWatch
from onecard.train.run.outputs import Silent
from onecard.train.run.signals import STOPS

STRIKES_IN = (
    3  # the step, counted from 0; 3 steps are finished before it, the last checkpoint is of step 2
)

ERRORS = {
    "io": lambda: OSError(5, "Input/output error", "shard_7.bin"),
    "runtime": lambda: RuntimeError("expected a mop, got a broom\nmore lines"),
    "memory": lambda: MemoryError(),
    "interrupt": lambda: KeyboardInterrupt(),
    "card_memory": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "card": lambda: torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
}
CAUSES = {
    "io": "Input/output error: shard_7.bin",
    "runtime": "RuntimeError: expected a mop, got a broom",
    "memory": "out of memory (MemoryError)",
    "card_memory": "out of memory (OutOfMemoryError: CUDA out of memory",
    "card": "the card failed (AcceleratorError: CUDA error: an illegal memory access",
}
OUT_OF_MEMORY = ("memory", "card_memory")

# Where it strikes, and how many steps are finished then. In the middle of an update the last checkpoint is what stays.
BEFORE, UPDATE, AFTER = 3, 2, 4
CALLS = {
    "loader.rows": (Loader, "rows", BEFORE),
    "forward": (GPT, "forward", BEFORE),
    "backward": (torch.Tensor, "backward", BEFORE),
    "clip": (step, "clip", BEFORE),
    "verdict": (LossWatch, "verdict", BEFORE),
    "lr_at": (loop, "lr_at", BEFORE),
    "advance": (loop, "advance", BEFORE),
    "optimizer.step": (torch.optim.AdamW, "step", UPDATE),
    "learn": (LossWatch, "learn", BEFORE),
    "loader.epoch": (Loader, "epoch", AFTER),
    "log.write": (LogWriter, "write", AFTER),
    "evaluate": (session, "evaluate", AFTER),
    "validation rows": (validation, "read_windows", AFTER),
    "log.sync": (LogWriter, "sync", AFTER),
    "checkpoint.save": (checkpoint, "save", AFTER),
    "not_finite": (checkpoint, "not_finite", AFTER),
    "view.step": (Silent, "step", AFTER),
    "view.eval": (Silent, "eval", AFTER),
    "loggers": (Loggers, "log", AFTER),
    "memory reading": (machine, "peak_memory_bytes", AFTER),
    "prune": (checkpoint, "prune", AFTER),
    "sample": (loop, "write_sample", AFTER),
}
SIDE_SHOWS = ("view.step", "view.eval", "loggers", "memory reading", "prune", "sample")
SHRINKS = ("forward", "backward")  # a smaller micro-batch, and the same step again

PRODUCT = list(itertools.product(CALLS, ERRORS))
SAMPLED = [(call, list(ERRORS)[5 * i % 6]) for i, call in enumerate(CALLS)]  # each call, each error
SAMPLED.append(("optimizer.step", "card_memory"))  # half of an update may be done


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The losses and the folder of the run that nothing happens to."""
    return {"folder": tmp_path_factory.mktemp("calm") / "run"}


@pytest.fixture
def quick(config, calm):
    config = config.replace(
        max_iters=8,
        lr_decay_iters=8,
        eval_interval=2,
        sample_interval=4,
        dropout=0.0,
        always_save_checkpoint=True,
    )
    if not calm["folder"].exists():
        train(config.replace(out_dir=str(calm["folder"])))
    return config


def strike(monkeypatch, owner, name, do):
    """Call `do` before the next call of owner.name that comes in step STRIKES_IN, once."""
    now = {"step": -1, "struck": False}
    real, rows = getattr(owner, name), Loader.rows

    def comes(self, number):
        now["step"] = number
        return rows(self, number)

    def hit(*args, **kwargs):
        if now["step"] == STRIKES_IN and not now["struck"]:
            now["struck"] = True
            do()
        return real(*args, **kwargs)

    if (owner, name) == (Loader, "rows"):

        def both(self, number):
            now["step"] = number
            return hit(self, number)

        monkeypatch.setattr(Loader, "rows", both)
    else:
        monkeypatch.setattr(Loader, "rows", comes)
        monkeypatch.setattr(owner, name, hit)
    return now


def raising(error):
    def do():
        raise ERRORS[error]()

    return do


def check(quick, calm, monkeypatch, call, error):
    owner, name, finished = CALLS[call]
    with monkeypatch.context() as patch:
        now = strike(patch, owner, name, raising(error))
        goes_on = _goes_on(call, error)
        if goes_on:
            assert train(quick).state == "finished"
        else:
            with pytest.raises((OnecardError, KeyboardInterrupt)) as caught:
                train(quick)
            _check_sentence(caught.value, error, finished, Path(quick.out_dir))
            newest = checkpoint.newest_good(Path(quick.out_dir), pytest.fail)
            assert newest[0]["step"] == finished
            assert RunRecord(Path(quick.out_dir)).state == "stopped"
    assert now["struck"], f"{call} was never called"
    if goes_on and call in SIDE_SHOWS:
        failed = [e for e in events(quick.out_dir) if e["event"] == "side_show_failed"]
        assert len(failed) == 1
    if not goes_on:
        train(quick, resume=True)
    found, wanted = losses(quick.out_dir), losses(calm["folder"])
    if call in SHRINKS and error in OUT_OF_MEMORY:  # sums in another order
        assert list(found.values()) == pytest.approx(list(wanted.values()), rel=1e-5)
        return
    before_the_line = call in ("log.write", "loader.epoch", "memory reading") and not goes_on
    missing = {4} if before_the_line else set()  # the log's line of that step was not written
    assert found.items() == {s: wanted[s] for s in wanted if s not in missing}.items()
    assert_same_weights(quick.out_dir, calm["folder"])


def _goes_on(call, error):
    if error == "interrupt":
        return False
    if call in SIDE_SHOWS:
        return True
    if (
        call in ("checkpoint.save", "not_finite") and error == "io"
    ):  # a full disk: reported, and the next one is tried
        return True
    return error in OUT_OF_MEMORY and call in (*SHRINKS, "optimizer.step", "validation rows")


def _check_sentence(caught, error, finished, folder):
    if error == "interrupt":
        assert isinstance(caught, KeyboardInterrupt)
        return
    assert type(caught) is (InternalError if error == "runtime" else RunFailure)
    assert CAUSES[error] in caught.message
    assert "\n" not in caught.message
    stays = "the checkpoint of step 2 stays" if finished == UPDATE else f"saved at step {finished}"
    assert stays in caught.message
    assert str(folder / "error.txt") in caught.hint
    assert "Traceback (most recent call last)" in (folder / "error.txt").read_text()


@pytest.mark.parametrize(("call", "error"), SAMPLED)
def test_an_error_in_any_call_loses_nothing(quick, calm, monkeypatch, call, error):
    check(quick, calm, monkeypatch, call, error)


@pytest.mark.long
@pytest.mark.parametrize(("call", "error"), [pair for pair in PRODUCT if pair not in SAMPLED])
def test_an_error_in_any_call_loses_nothing_all_of_them(quick, calm, monkeypatch, call, error):
    check(quick, calm, monkeypatch, call, error)


PHASES = {
    "step": (step.Stepper, "gradients", 4),
    "update": (step.Stepper, "apply", 4),
    "evaluation": (session, "evaluate", 4),
    "save": (checkpoint, "save", 5),  # saved already: it continues for one more step
    "sample": (loop, "write_sample", 5),
}


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        pytest.param(phase, number, marks=() if i % 4 == 0 else pytest.mark.long)
        for i, (phase, number) in enumerate(itertools.product(PHASES, STOPS))
    ],
)
def test_a_signal_in_any_phase_saves_and_ends(quick, calm, monkeypatch, phase, number):
    owner, name, finished = PHASES[phase]
    with monkeypatch.context() as patch:
        strike(patch, owner, name, lambda: signal.raise_signal(number))
        outcome = train(quick)
    assert (outcome.state, outcome.step, outcome.stopped_by) == ("stopped", finished, number)
    newest = checkpoint.newest_good(Path(quick.out_dir), pytest.fail)
    assert newest[0]["step"] == finished
    train(quick, resume=True)
    assert losses(quick.out_dir) == losses(calm["folder"])
    assert_same_weights(quick.out_dir, calm["folder"])


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_while_the_model_is_compiled_ends_after_the_first_step(
    quick, calm, monkeypatch, number
):
    real = trial.compiled_forward

    def compiling(*args):
        signal.raise_signal(number)
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trial, "compiled_forward", compiling)
        outcome = train(quick)
    assert (outcome.step, outcome.stopped_by) == (1, number)
    train(quick, resume=True)
    assert losses(quick.out_dir) == losses(calm["folder"])


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_a_run_under_nohup_goes_on_when_the_terminal_closes(quick, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        strike(monkeypatch, session, "evaluate", lambda: signal.raise_signal(signal.SIGHUP))
        assert train(quick).state == "finished"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_power_reading_that_fails_costs_the_figure_not_the_run(quick, calm, monkeypatch):
    class Lost:
        def read_watts(self):
            raise RuntimeError("NVML: GPU is lost")

    monkeypatch.setattr(loop, "power_meter", lambda device, cards: Lost())
    assert train(quick).state == "finished"
    (failed,) = [e for e in events(quick.out_dir) if e["event"] == "side_show_failed"]
    assert failed["text"] == (
        "the power reading failed (RuntimeError: NVML: GPU is lost); the run continues without"
    )
    assert losses(quick.out_dir) == losses(calm["folder"])


def test_a_shard_damaged_under_the_run_ends_it_saved_with_the_place_named(quick, calm):
    """Ids beyond the vocabulary would end the use of a card; they are found before they reach the model."""
    file = Path(quick.dataset) / "train.bin"
    good = file.read_bytes()

    class Damage(Silent):
        def step(self, fields):
            if fields["step"] == 3:
                with file.open("r+b") as opened:  # in place, under the run's own mapping
                    opened.write(b"\xff\x7f" * (len(good) // 2))

    with pytest.raises(OnecardError, match=r"token id 32,?767.*; saved at step \d"):
        train(quick, view=Damage())
    step_saved = checkpoint.newest_good(Path(quick.out_dir), pytest.fail)[0]["step"]
    assert step_saved in (3, 4, 5, 6)  # up to two steps were read ahead
    file.write_bytes(good)
    train(quick, resume=True)
    assert losses(quick.out_dir) == losses(calm["folder"])


def _damage(what, at):
    """A view that makes weights or moments non-finite after a step, as a flipped bit on a card does."""

    class Damage(Silent):
        def __init__(self):
            self.steppers = []

        def step(self, fields):
            if fields["step"] == at and self.steppers:
                stepper = self.steppers.pop()
                with torch.no_grad():
                    if what == "weights":
                        next(stepper.model.parameters()).view(-1)[3] = float("nan")
                    else:
                        next(iter(stepper.optimizer.state.values()))["exp_avg"].fill_(float("inf"))

    return Damage()


@pytest.mark.parametrize("what", ["weights", "optimizer"])
@pytest.mark.parametrize("at", [4, 5, 8])
def test_a_state_that_is_not_finite_is_never_saved(quick, calm, monkeypatch, what, at):
    view = _damage(what, at)
    made = setup.Stepper

    def make(*args, **kwargs):
        view.steppers.append(made(*args, **kwargs))
        return view.steppers[-1]

    monkeypatch.setattr(setup, "Stepper", make)
    if at == 8:
        with pytest.raises(
            RunFailure, match="the run is finished, but its last checkpoint"
        ) as caught:
            train(quick, view=view)
        assert "not finite" in caught.value.message
        assert "the checkpoint of step 6 stays" in caught.value.message
        train(quick, resume=True)
    else:
        train(quick, view=view)
        (rolled,) = [e for e in events(quick.out_dir) if e.get("action") == "rollback"]
        assert rolled["text"].endswith(f"back to the checkpoint of step {2 if at == 4 else 4}")
    assert losses(quick.out_dir) == losses(calm["folder"])
    assert all(torch.isfinite(tensor).all() for tensor in weights(quick.out_dir).values())


def test_a_folder_that_takes_nothing_at_the_end_does_not_hide_that_the_run_is_finished(quick):
    folder = Path(quick.out_dir)

    class Unwritable(Silent):
        def step(self, fields):
            if fields["step"] == 7:
                (folder / "checkpoints").rename(folder / "aside")
                (folder / "checkpoints").write_text("in the way")
                (folder / "run.json").unlink()
                (folder / "run.json").mkdir()

    with pytest.raises(RunFailure) as caught:
        train(quick, view=Unwritable())
    assert caught.value.message.startswith("the run is finished, but its last checkpoint")
    assert "the checkpoint of step 6 stays" in caught.value.message
