"""The figures inside the advice, each against a few lines of its own: what a changed sign or operator would alter."""

import pytest

from onecard import find_gpu
from onecard.advise.budget import Budget
from onecard.advise.can import can
from onecard.advise.limits import _largest
from onecard.advise.recipe_choice import _base, chosen_run
from onecard.advise.schedule import base_config, compiled_on, run_seconds
from onecard.advise.shapes import shapes
from onecard.units import HOUR

pytestmark = pytest.mark.usefixtures("tuned_once")
CARD = find_gpu("RTX 4070")


@pytest.fixture(scope="module")
def best():
    return chosen_run(CARD, Budget(seconds=5 * HOUR))[1]


def test_shapes_go_from_small_to_large():
    sizes = [12 * s.n_layer * s.n_embd**2 + 50304 * s.n_embd for s in shapes()]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] / 100


def test_advice_compiles_on_cards_that_can_and_never_on_a_cpu():
    assert compiled_on(CARD)
    assert not compiled_on(find_gpu("cpu"))
    assert not compiled_on(find_gpu("GTX 1080"))
    assert not base_config(find_gpu("cpu")).compile


def test_time_and_data_that_bring_the_same_are_a_matter_of_time():
    assert _largest(0.0, 0.1, 0.1) == "compute"
    assert _largest(0.05, 0.1, 0.0) == "compute"  # memory must bring more than half


def test_muon_is_the_modern_recipes_optimizer():
    modern, plain = (_base(CARD, None, recipe, {}) for recipe in ("modern", "gpt2"))
    assert (modern.optimizer, modern.schedule, modern.tied) == ("muon", "linear", False)
    assert plain.optimizer == "adamw"
    assert plain.schedule != "wsd"


def test_the_schedule_of_a_recommendation(best):
    config = best.config
    assert config.warmup_iters == round(0.03 * config.max_iters)
    assert config.lr_decay_iters == config.max_iters
    assert config.min_lr == pytest.approx(config.learning_rate / 10, rel=0.05)
    assert 2**20 <= config.eval_iters * config.tokens_per_micro_batch < 2**20 + 2**17
    assert 10 <= config.max_iters / config.eval_interval <= 30
    assert best.tokens == config.max_iters * config.tokens_per_step
    assert best.seconds == run_seconds(config, best.tuned.time)
    assert 0.97 * 5 * HOUR < best.seconds <= 5 * HOUR


def test_a_loss_to_reach_is_just_reached():
    _, found = chosen_run(CARD, Budget(loss=3.6))
    assert 3.59 < found.loss <= 3.6
    assert found.seconds == run_seconds(found.config, found.tuned.time)


def test_delivered_over_needed_from_its_low_to_its_high():
    compute = can("gpt2", CARD, seconds=30 * 24 * HOUR, utilization=0.5, gpus=2).compute
    peak = CARD.peak_flops("bfloat16")
    assert compute.delivered_flops == pytest.approx(peak * 2 * 0.5 * 30 * 24 * HOUR)
    for each in compute.readings:
        needed = each.reading
        assert each.ratio == pytest.approx(compute.delivered_flops / needed.needed_flops)
        assert each.ratio_low == pytest.approx(compute.delivered_flops / needed.needed_high)
        assert each.ratio_high == pytest.approx(compute.delivered_flops / needed.needed_low)
        assert each.seconds == pytest.approx(30 * 24 * HOUR / each.ratio)
    assert any(each.ratio_low < each.ratio < each.ratio_high for each in compute.readings)
