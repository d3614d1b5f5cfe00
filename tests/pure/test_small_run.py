"""Runs that no public loss covers: a size that suits the time and the text, and nothing promised about its loss."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from onecard.advise.small_run import MOST_PASSES, VOCABULARIES, small_run, vocabulary_for
from onecard.cli import main
from onecard.planner.calibration_file import known_calibration


@pytest.fixture(autouse=True)
def not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What another test measured, on a busy machine perhaps, is not for this one; nor the other way round."""
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    known_calibration.cache_clear()
    yield
    known_calibration.cache_clear()


@pytest.mark.parametrize("seconds", [30, 300, 3000])
@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_it_fits_the_time_and_the_memory(seconds: float, recipe: str) -> None:
    answer = small_run("cpu", seconds, data=10_000_000, recipe=recipe, changes={"vocab_size": 2048})
    assert answer.plan.time.total_seconds.mid <= seconds
    assert answer.plan.memory.fits == "yes"
    assert answer.plan.loss is None
    assert answer.config.recipe == recipe
    assert answer.config.max_hours == pytest.approx(seconds / 3600, rel=1e-3)


def test_more_time_is_spent_on_a_larger_model_and_more_tokens() -> None:
    short, long = (
        small_run("cpu", seconds, data=10**9, changes={"vocab_size": 2048}).plan
        for seconds in (60, 6000)
    )
    assert long.params.total > 3 * short.params.total
    assert long.tokens.total > 3 * short.tokens.total


def test_little_text_is_not_read_thousands_of_times() -> None:
    """20 hours on 400 k tokens would be 7,000 times over them."""
    answer = small_run("RTX 4070", 72_000, data=400_000, changes={"vocab_size": 2048})
    assert answer.plan.tokens.total <= MOST_PASSES * 400_000
    assert answer.plan.tokens.epochs == pytest.approx(MOST_PASSES, rel=0.05)
    assert answer.plan.time.total_seconds.mid < 7200
    assert answer.reasons[0].code == "small-run-repeats"
    assert answer.plan.params.total < 10e6  # more have nothing to learn from
    enough = small_run("RTX 4070", 600, data=10**9, changes={"vocab_size": 2048})
    assert enough.reasons[0].code == "small-run"
    assert small_run("cpu", 60, data=1000, changes={"vocab_size": 256}).config.max_iters >= 20


def test_more_text_is_for_a_larger_model() -> None:
    plans = [
        small_run("RTX 4070", 72_000, data=tokens, changes={"vocab_size": 2048}).plan
        for tokens in (400_000, 10_000_000, 100_000_000)
    ]
    sizes = [plan.params.total for plan in plans]
    assert sizes == sorted(sizes)
    assert sizes[0] < 2e6 < 10e6 < sizes[1] < 50e6 < sizes[2]


def test_a_faster_card_gets_a_larger_model() -> None:
    cpu, card = (
        small_run(name, 300, data=10**9, changes={"vocab_size": 2048}).plan.params.total
        for name in ("cpu", "RTX 4090")
    )
    assert card > 2 * cpu


def test_the_vocabulary_grows_with_the_time() -> None:
    found = [vocabulary_for("cpu", seconds, text_bytes=30e6) for seconds in (60, 3600, 36_000)]
    assert found == sorted(found)
    assert set(found) <= set(VOCABULARIES)
    assert found[-1] > found[0]


def test_recommend_answers_where_no_public_loss_does(
    capsys: pytest.CaptureFixture[str], tmp_path
) -> None:
    out = tmp_path / "run.toml"
    words = ["recommend", "--gpu", "cpu", "--hours", "0.05", "--data", "11M"]
    words += ["--set", "vocab_size=2048", "--out", str(out), "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "onecard.small-run/1"
    assert answer["plan"]["loss"] is None
    assert "vocab_size = 2048" in out.read_text(encoding="utf-8")
    # with GPT-2's vocabulary a plan extrapolates a loss, which this answer says it does not predict
    assert main([*words[:7], "--lang", "es"]) == 0
    shown = capsys.readouterr().out
    assert "no se predice ninguna" in shown
    assert "Pérdida" not in shown
    assert "núcleo" in shown  # the processor in the reader's words
    assert main(["recommend", "--gpu", "cpu", "--hours", "0.000001", "--data", "11M"]) == 2
    assert "too little" in capsys.readouterr().err


def test_a_loss_to_reach_still_needs_public_losses(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["recommend", "--gpu", "cpu", "--until-loss", "3", "--set", "vocab_size=2048"]
    assert main(words) == 2
    assert "no public losses" in capsys.readouterr().err


def test_a_cpu_never_holds_all_logits_of_a_large_vocabulary() -> None:
    """Pages for them take as long as the rest of the step; a small vocabulary's fit in one slice."""
    large = small_run("cpu", 3600, data=100_000_000).config
    assert large.chunked_loss
    assert large.batch_size * large.gradient_accumulation_steps * large.block_size >= 4096
    assert not small_run(
        "cpu", 600, data=100_000_000, changes={"vocab_size": 65}
    ).config.chunked_loss


def test_the_vocabulary_is_padded_as_the_trainer_pads_it() -> None:
    assert small_run("cpu", 3600, data="stdlib").config.vocab_size == 50304
