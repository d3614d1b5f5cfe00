"""Figures about benchmarks that need no model: the HellaSwag line, released models, nanochat's CORE, prompts' figures."""

import json

import pytest
from fit.hellaswag import fit

from onecard import load, plan
from onecard.facts.benchmarks import known_figures
from onecard.facts.data_files import fact_file
from onecard.runs.eval_meaning import half_width, meaning_of
from onecard.runs.eval_results import Figure, Result, keep, kept
from onecard.runs.exports import note_export, noted_exports
from onecard.runs.foreign.nanochat import NanochatReader

HARNESS = "lm-evaluation-harness, 0-shot; acc_norm by characters"


def test_the_shipped_line_is_the_fits():
    assert json.loads(fact_file("hellaswag_fit.json")) == fit()


def test_plan_expects_hellaswag_where_public_runs_say_so():
    config = load("fineweb-124M-12gb")
    known = plan(config, "RTX 4070", data="fineweb-edu-10B").loss
    assert known is not None
    assert known.hellaswag is not None
    # build-nanogpt's own run of this size and length reached 30.4 % at 3.07
    assert known.hellaswag.low < 0.304 < known.hellaswag.high
    other = plan(config, "RTX 4070", data="openwebtext").loss
    assert other is not None
    assert other.hellaswag is None
    small = plan(
        config.replace(max_iters=900, lr_decay_iters=900), "RTX 4070", data="fineweb-edu-10B"
    )
    assert small.loss is None or small.loss.hellaswag is None


def test_released_models_by_protocol():
    assert known_figures("hellaswag", "lm-eval").models["GPT-2 124M"] == {
        "acc": 0.2892,
        "acc_norm": 0.3114,
    }
    assert known_figures("hellaswag", "completion").models["GPT-2 124M"]["acc_norm"] == 0.2955
    assert known_figures("arc_easy", "lm-eval") is None


@pytest.mark.parametrize(
    ("value", "half", "words"),
    [
        (0.25, 0.01, "not distinguishable from chance with so many items"),
        (0.28, 0.009, "between chance and GPT-2 124M"),
        (0.40, 0.009, "between GPT-2 124M and GPT-2 1.5B"),
        (0.55, 0.009, "above GPT-2 1.5B"),
        (0.20, 0.009, "below chance"),
    ],
)
def test_what_a_share_means(value, half, words):
    figure = Figure("acc_norm", value, value - half, value + half)
    result = Result("m", 1, "hellaswag", HARNESS, 10042, 0, (figure,), 1.0)
    assert str(meaning_of(result)) == words
    few_shot = Result(
        "m", 1, "hellaswag", HARNESS.replace("0-shot", "5-shot"), 9, 0, (figure,), 1.0
    )
    assert meaning_of(few_shot) is None


def test_the_width_that_a_limit_gives():
    assert half_width(1000, 0.3) == pytest.approx(0.0284, abs=1e-4)


def test_results_with_odd_names_do_not_share_a_file(tmp_path):
    for task in ("text ../x", "text .._x"):
        keep(Result("m", 1, task, "p", 1, 0, (), 1.0), tmp_path)
    assert {result.task for result in kept(tmp_path)} == {"text ../x", "text .._x"}
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["evals", "evals"]


def test_exports_are_noted_once_for_each_target(tmp_path):
    note_export(tmp_path, "hf", tmp_path / "m", 3)
    note_export(tmp_path, "hf", tmp_path / "m", 4)
    assert noted_exports(tmp_path) == (f"hf: {tmp_path / 'm'} (step 4)",)
    (tmp_path / "exports.json").write_text("[3")
    assert noted_exports(tmp_path) == ()


def test_nanochats_core_metric():
    reader = NanochatReader("chat.log")
    for line in (
        "step 00100/21400 (0.47%) | loss: 6.512345 | lrm: 1.00 | dt: 3901.22ms | tok/sec: 134,390 | bf16_mfu: 46.10",
        "Step 02000 | Validation bpb: 0.905793",
        "Step 02000 | CORE metric: 0.1234",
    ):
        assert reader.line(line)
    (run,) = reader.done()
    assert [(e.step, e.bits_per_byte, e.core) for e in run.evals] == [(2000, 0.905793, 0.1234)]
