"""The live view and the loggers: what a person sees, and that nothing shown can stop a run."""

import io
import sys

import pytest
import torch
from rich.console import Console

from onecard import plan
from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.model import machine
from onecard.train.io.curve_and_pace import Curve, Pace
from onecard.train.io.loggers import open_loggers
from onecard.train.io.view import View

CONFIG = RunConfig(max_iters=1000, lr_decay_iters=1000, warmup_iters=10, log_interval=10)
STEP = {
    "step": 10,
    "tokens": 5_242_880,
    "loss": 5.1234,
    "lr": 6e-4,
    "step_seconds": 3.90122,
    "tokens_per_second": 134_390.0,
    "mfu": 0.6899,
    "data_wait": 0.001,
    "memory_bytes": 7 * 2**30,
}


def shown(terminal=False, **more):
    out = io.StringIO()
    return View(
        CONFIG, None, 1000, console=Console(file=out, force_terminal=terminal, width=100), **more
    ), out


def test_a_pipe_gets_one_plain_line_per_interval():
    view, out = shown()
    with view:
        for step in range(1, 31):
            view.step({**STEP, "step": step})
        view.eval({"step": 30, "val_loss": 4.9, "perplexity": 134.29})
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "iter 1",
        "iter 10",
        "iter 20",
        "iter 30",
        "step 30",
    ]
    assert lines[1].startswith(
        "iter 10: loss 5.1234, time 3901.22ms, card mfu 68.99%, 134,390 tok/s, 7.00 GiB,"
    )
    assert lines[-1] == "step 30: val loss 4.9000, perplexity 134.29"
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_the_picture_and_messages_stay():
    view, out = shown(terminal=True)
    with view:
        for step in range(1, 31):
            view.step({**STEP, "step": step, "loss": 10 - step / 10, "watts": 187.0, "kwh": 0.25})
        view.message("the disk is nearly full")
    picture = out.getvalue()
    for part in (
        "134,390 tokens/s",
        "MFU 69.0%",
        "187 W, 0.250 kWh",
        "█",
        "the disk is nearly full",
        "7.00 GiB",
    ):
        assert part in picture


def test_missing_and_broken_fields_are_left_out():
    view, out = shown()
    with view:
        view.step({"step": 10, "loss": float("nan")})
        view.step({"step": 20, "loss": None})
    assert out.getvalue().splitlines() == ["iter 10: loss nan", "iter 20: loss ?"]


def test_quiet_says_only_what_must_be_seen(capsys):
    view, out = shown(quiet=True)
    with view:
        view.step(STEP)
        view.eval({"step": 10, "val_loss": 4.0})
        view.message("stopped")
    assert out.getvalue() == ""
    assert capsys.readouterr().err == "stopped\n"


class Full(io.StringIO):
    """Takes some characters, then is as full as a disk."""

    room = 300

    def write(self, text):
        self.room -= len(text)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("terminal", [False, True])
def test_an_output_that_is_gone_is_reported_once_and_then_left_alone(capsys, terminal):
    out = Full()
    view = View(CONFIG, None, 1000, console=Console(file=out, force_terminal=terminal, width=100))
    with view:
        for step in range(10, 200, 10):
            view.step({**STEP, "step": step})
            view.eval({"step": step, "val_loss": 4.0})
        view.message("the checkpoint failed")  # what must be seen goes to stderr from then on
    message = capsys.readouterr().err.splitlines()
    assert message[0].startswith("the output cannot be written (No space left on device)")
    assert message[1:] == ["the checkpoint failed"]


def test_the_rest_is_a_range_from_steps_alone_to_steps_with_pauses():
    pace = Pace(100)
    assert pace.left() is None
    for step in range(1, 11):
        pace.add(
            step, 60.0 if step == 1 else 2.0, now=3.0 * step
        )  # a second of evaluation beside each 2 s step
    low, high = pace.left()
    assert low == pytest.approx(2.0 * 90 * 0.98)
    assert high == pytest.approx(3.0 * 90 * 1.02)


def test_a_curve_of_any_length_keeps_its_ends_and_its_size():
    curve = Curve()
    for i in range(100_000):
        curve.add(10 - i / 20_000)
    assert len(curve.points) <= 512
    drawn = curve.draw(40)
    assert len(drawn) == 40
    assert drawn[0] == "█"
    assert drawn[-1] == "▁"


def test_tensorboard_gets_the_figures_under_nanogpts_names(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = open_loggers(CONFIG.replace(tensorboard=True), tmp_path, print)
    loggers.log(STEP)
    loggers.log({"step": 20, "val_loss": 4.5, "loss": None})
    loggers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Scalars("train/loss")[0].value == pytest.approx(5.1234)
    assert [e.step for e in events.Scalars("val/loss")] == [20]


def test_a_logger_that_fails_is_dropped_and_the_run_goes_on(tmp_path, monkeypatch):
    from torch.utils.tensorboard import SummaryWriter

    message = []
    loggers = open_loggers(CONFIG.replace(tensorboard=True), tmp_path, message.append)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    loggers.log(STEP)
    loggers.log(STEP)
    loggers.close()
    assert len(message) == 1
    assert message[0].startswith("TensorBoard failed (No space left")


@pytest.mark.parametrize(
    ("key", "package"),
    [("wandb_log", "wandb"), ("trackio", "trackio"), ("tensorboard", "tensorboard")],
)
def test_a_missing_package_is_said_before_the_run_starts(tmp_path, monkeypatch, key, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs the package {package}") as error:
        open_loggers(CONFIG.replace(**{key: True}), tmp_path, print)
    assert f"pip install {package}" in error.value.hint


@pytest.mark.parametrize(("card", "word"), [("RTX 4070", "allocated"), ("cpu", "process")])
def test_memory_is_named_as_the_plan_names_it(card, word):
    view, out = shown()
    view.plan = plan(CONFIG, card)
    with view:
        view.step({**STEP, "step": 10})
    assert f", 7.00 GiB {word}" in out.getvalue()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is reset on Linux only")
def test_the_peak_on_a_cpu_is_not_an_earlier_commands():
    """A demo probes and trains in one process: the probe's gigabyte is not the run's."""
    device = torch.device("cpu")
    torch.ones(128 * 2**20).sum()  # 512 MiB, freed at once
    before = machine.peak_memory_bytes(device)
    machine.forget_peak_memory(device)
    after = machine.peak_memory_bytes(device)
    assert before - after > 400 * 2**20
