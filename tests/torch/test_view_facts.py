"""The rows of the live view beside the plan: is the curve normal, is the step as fast as predicted, what is left."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from onecard import load, plan
from onecard.planner.result import RunPlan
from onecard.runs.forecast import expected_at
from onecard.train.io import view as view_module
from onecard.train.io.curve_and_pace import Pace
from onecard.train.io.view import View

CONFIG = load("gpt2").replace(max_iters=20_000, lr_decay_iters=20_000)


@pytest.fixture(scope="module")
def planned() -> RunPlan:
    found = plan(CONFIG, "RTX 4070")
    assert found.loss is not None
    return found


def view_of(planned: RunPlan | None) -> View:
    return View(CONFIG, planned, CONFIG.max_iters, console=Console(file=io.StringIO(), width=100))


def rows_after(planned: RunPlan | None, losses: list[float], last_step: int, **more) -> dict:
    """The rows when `losses` were the losses of the steps up to `last_step`."""
    view = view_of(planned)
    for step, loss in enumerate(losses, last_step - len(losses) + 1):
        view.step({"step": step, "loss": loss, **more})
    return dict(view.facts())


@pytest.mark.parametrize("step", [2_000, 10_000, 20_000])
@pytest.mark.parametrize(
    ("bands_off", "word"),
    [
        (0.0, "as expected"),
        (0.9, "as expected"),
        (-0.9, "as expected"),
        (1.1, "higher than expected"),
        (-1.1, "lower than expected"),
    ],
)
def test_the_curve_is_compared_with_the_plans(planned, step, bands_off, word):
    """Within half the end's range, or 3 % where that is more; twice as wide at the start of the run."""
    expected = expected_at(planned, step)
    half = (planned.loss.expected.high - planned.loss.expected.low) / 2
    band = max(half, 0.03 * expected) * (2 - step / 20_000)
    loss = expected + bands_off * band
    row = rows_after(planned, [loss] * 20, step)["curve"]
    assert row.startswith(f"{word}: {loss:.3f} where {expected:.3f} ± {band:.2f} is usual")


def test_a_narrow_range_is_at_least_three_per_cent_wide(planned):
    end = planned.loss.expected
    narrow = dataclasses.replace(end, low=end.mid, high=end.mid)
    loss = dataclasses.replace(planned.loss, expected=narrow)
    expected = expected_at(planned, 20_000)
    row = rows_after(dataclasses.replace(planned, loss=loss), [expected] * 20, 20_000)["curve"]
    assert f"± {0.03 * expected:.2f} is usual" in row


def test_the_first_steps_and_a_run_without_a_plan_are_not_judged(planned):
    assert "curve" not in rows_after(planned, [5.0] * 19, 2_000)
    assert "curve" in rows_after(planned, [5.0] * 20, 2_000)
    assert "curve" not in rows_after(None, [5.0] * 20, 2_000)
    assert "curve" not in rows_after(planned, [5.0] * 20, 30_000)  # beyond the plan's end


def test_the_loss_is_smoothed_and_a_step_without_one_is_left_out(planned):
    row = rows_after(planned, [10.0] * 20 + [0.0], 2_000)["curve"]
    assert ": 9.000 where" in row
    row = rows_after(planned, [10.0] * 20 + [float("nan")], 2_000)["curve"]
    assert ": 10.000 where" in row


@pytest.mark.parametrize(
    ("times", "verdict"), [(1.0, "as predicted"), (10.0, "slower"), (0.1, "faster")]
)
def test_the_step_is_compared_with_the_plans(planned, times, verdict):
    seconds = planned.time.step_seconds.mid * times
    assert (
        f" · {verdict} (" in rows_after(planned, [5.0] * 3, 50, step_seconds=seconds)["step time"]
    )
    alone = rows_after(None, [5.0] * 3, 50, step_seconds=2.0)["step time"]
    assert alone == "2.00 s"


def test_speed_memory_and_power(planned):
    given = {"tokens_per_second": 134_390.0, "mfu": 0.69, "data_wait": 0.021}
    given |= {"memory_bytes": 7 * 2**30, "watts": 187.4, "kwh": None}
    rows = rows_after(planned, [5.0], 1, **given)
    assert rows["speed"] == (
        "134,390 tokens/s · MFU 69.0% of the RTX 4070's peak · 2% of the time waits for data"
    )
    assert rows["card"].startswith("7.00 GiB allocated of 1")
    assert rows["card"].endswith(" · 187 W, 0.000 kWh so far")
    assert "waits" not in rows_after(planned, [5.0], 1, **{**given, "data_wait": 0.02})["speed"]
    assert "left" not in rows  # nothing is known after one step


def test_what_is_left_and_how_much_was_seen(planned, monkeypatch):
    clock = iter(range(0, 1_000, 2))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    rows = rows_after(planned, [5.0] * 5, 10_000, step_seconds=2.0, tokens=5_000_000)
    left = re.fullmatch(r"(.*) · 5(\.0+)? ?M tokens seen", rows["left"])
    assert left, rows["left"]
    assert left[1] == "5 h 27 min – 5 h 40 min"  # 10,000 steps of two seconds, give or take 2 %


def test_the_rest_is_never_negative_and_unknown_before_the_second_step():
    pace = Pace(10)
    pace.add(9, 1.0, now=0.0)
    assert pace.left() is None
    pace.add(12, 1.0, now=3.0)
    assert pace.left() == (0.0, 0.0)


def test_the_plans_curve_between_its_points(planned):
    def at(curve, step):
        loss = dataclasses.replace(planned.loss, curve=curve)
        return expected_at(dataclasses.replace(planned, loss=loss), step)

    curve = [(0, 10.0), (100, 5.0), (300, 4.0)]
    assert [at(curve, step) for step in (0, 50, 100, 250, 300)] == [10.0, 7.5, 5.0, 4.25, 4.0]
    assert at(curve, 301) is None
    assert at([], 5) is None


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"step": 5, "train_loss": 3.0, "val_loss": 3.5, "perplexity": 999_999.0},
            "step 5: train loss 3.0000, val loss 3.5000, perplexity 999999.00",
        ),
        (
            {"step": 5, "val_loss": None, "perplexity": 1e6},
            "step 5: val loss ?, perplexity 1.0e+06",
        ),
        (
            {"step": 5, "val_loss": 3.5, "bits_per_byte": 1.25, "sources": {"a": 1.0, "b": 2.0}},
            "step 5: val loss 3.5000, 1.2500 bits per byte, a 1.0000, b 2.0000",
        ),
    ],
)
def test_the_line_of_an_evaluation(fields, line):
    assert view_module._eval_line(fields) == line
