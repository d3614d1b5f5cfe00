"""Figures inside the findings about runs: what a changed sign or operator would alter."""

import json
import re
from dataclasses import replace

import pytest
from run_logs import small_run
from test_explain import found, of, with_times
from test_runs_folder import make

from onecard import find_gpu, load, plan
from onecard.cli import main
from onecard.facts.here import cpu
from onecard.runs.compare import compare
from onecard.runs.explain.pair_findings import _micro_batch_gain
from onecard.runs.figures import figures
from onecard.runs.folder import read_folder
from onecard.runs.forecast import expected_at
from onecard.runs.loss_curve import CurveBuilder
from onecard.runs.step_times import StepTimesBuilder


def test_how_much_slower_a_run_became():
    finding = found(with_times(drift=1.25))["slows-down"]
    assert finding.note.values["share"] == pytest.approx(0.25)
    assert finding.gain == pytest.approx(0.2)
    assert "nvidia-smi" in str(finding.note)


def test_a_cpu_or_another_makers_card_is_not_looked_at_with_nvidia_smi():
    for device in (cpu(), find_gpu("RX 7900 XTX")):
        finding = found(replace(with_times(drift=1.25), device=device))["slows-down"]
        assert "nvidia" not in str(finding.note)


def test_a_step_carries_an_evaluation_from_a_fifth_more_than_usual():
    for seconds, leaks, leaked in ((4.7, 0, 0.0), (5.0, 1, 1.0)):
        times = StepTimesBuilder()
        for usual in (40.0, 4.0, 4.0, 4.0, 4.0):
            times.add(usual, after_eval=False)
        times.add(seconds, after_eval=True)
        assert (times.done().leaks, times.done().leaked_seconds) == (leaks, pytest.approx(leaked))


def test_the_plans_curve_is_asked_for_steps_that_are_numbers():
    planned = plan(load("fineweb-41M-12gb"), "RTX 4070")
    late, early = (expected_at(planned, step) for step in (15_000, 2_000))
    assert planned.loss.expected.mid < late < early
    assert expected_at(planned, float("inf")) is None
    assert expected_at(planned, float("nan")) is None


def test_another_micro_batch_is_tried_where_it_divides_the_batch():
    f = of(small_run())
    total = f.config.batch_size * f.config.gradient_accumulation_steps
    assert _micro_batch_gain(f, f.config.replace(batch_size=total // 4)) is not None
    assert _micro_batch_gain(f, f.config.replace(batch_size=total - 1)) is None


def test_what_compiling_would_have_gained_where_it_gave_up():
    f = of(small_run())
    assert f.config.compile
    fell = replace(f, run=replace(f.run, signs=frozenset({"compile-fallback"})))
    gain = found(fell)["compile-fell-back"].evidence["gain"]
    plain = plan(f.config.replace(compile=False), f.device).time.step_seconds.mid
    assert gain == pytest.approx(1 - f.plan.time.step_seconds.mid / plain)
    assert 0 < gain < 0.8


def test_a_run_is_listed_with_its_last_validation_loss(tmp_path, capsys):
    make(tmp_path / "out", steps=600)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    evals = [e.val_loss for e in read_folder(tmp_path / "out").evals if e.val_loss is not None]
    assert (row["kind"], row["loss"]) == ("val", evals[-1])


def test_nothing_is_left_of_a_run_that_its_hours_ended(tmp_path):
    stopped = figures(read_folder(make(tmp_path / "stopped", 500, state="stopped").path))
    ended = figures(read_folder(make(tmp_path / "ended", 500).path))
    assert stopped.max_steps == 1000
    assert stopped.seconds_left > 0
    assert (ended.seconds_left, ended.projected_loss) == (0, ended.final_loss)


def test_a_long_curve_keeps_its_mean_and_its_lines():
    curve = CurveBuilder(capacity=8)
    losses = [10 / (1 + number) for number in range(100)]
    for number, loss in enumerate(losses):
        curve.add(number, loss, float(number))
    assert sum(curve._counts) == 100
    mean = sum(v * c for v, c in zip(curve._losses, curve._counts, strict=True)) / 100
    assert mean == pytest.approx(sum(losses) / 100)


def test_a_printed_mfu_of_nothing_is_no_mfu():
    text = re.sub(r"mfu [\d.]+%", "mfu 0.00%", small_run())
    assert of(text).mfu_printed is None
    assert of(small_run()).mfu_printed > 0


@pytest.mark.parametrize(
    ("change", "effect"),
    [
        ({"n_embd": 768}, "effect-shape"),
        ({"batch_size": 8, "gradient_accumulation_steps": 64}, "effect-same-batch"),
        ({"max_iters": 30_000}, "effect-length"),
        ({"learning_rate": 5e-4}, "effect-learning"),
        ({"compile": False}, "effect-speed"),
        ({"recipe": "modern"}, "effect-unknown"),
        ({"eval_interval": 100}, "effect-none"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_a_changed_key_does(change, effect):
    one = of(small_run())
    other = replace(one, name="two", config=one.config.replace(**change))
    found_effects = {each.key: each.effect.code for each in compare([one, other]).differences}
    assert {key: found_effects[key] for key in change} == dict.fromkeys(change, effect)
