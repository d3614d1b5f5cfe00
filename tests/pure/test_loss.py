"""Expected loss: monotonic, near known runs, None where nothing is known, and a curve that ends where it says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config import RunConfig, load
from onecard.config.recipes import recipe_values
from onecard.planner.expected_loss import (
    effective_tokens,
    estimate,
    expected_loss,
    known_dataset,
)
from onecard.planner.loss_settings import (
    best_rate,
    held_up,
    loss_fit,
    relative_rate,
    settings_cost,
)

RUN = RunConfig(
    batch_size=16,
    gradient_accumulation_steps=32,
    max_iters=20_000,
    lr_decay_iters=20_000,
    warmup_iters=700,
)


@pytest.mark.parametrize(
    ("dataset", "loss"),
    [
        ("fineweb", 3.2722),
        ("fineweb-edu", 3.0526),
    ],  # llm.c's and build-nanogpt's 124M runs over 10 B tokens
)
def test_known_runs_lie_in_the_range(dataset: str, loss: float):
    found = expected_loss(RUN, 10e9, dataset, None)
    assert found is not None
    assert found.final.low < loss < found.final.high
    assert abs(found.final.mid - loss) < 0.03
    assert found.in_support


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 40),
    st.integers(2, 24),
    st.floats(3e8, 3e11),
    st.sampled_from(["gpt2", "modern"]),
)
def test_more_parameters_and_more_tokens_help(layers: int, heads: int, tokens: float, recipe: str):
    run = RUN.replace(n_layer=layers, n_head=heads, n_embd=64 * heads, recipe=recipe)
    found = expected_loss(run, tokens, "fineweb", None)
    longer = expected_loss(run, 1.5 * tokens, "fineweb", None)
    deeper = expected_loss(run.replace(n_layer=layers + 1), tokens, "fineweb", None)
    assert found is not None
    assert longer is not None
    assert deeper is not None
    assert longer.final.mid < found.final.mid
    assert deeper.final.mid < found.final.mid
    assert found.final.low < found.final.mid < found.final.high


def test_recipes_are_in_their_order():
    def final(**changes: object) -> float:
        found = expected_loss(RUN.replace(**changes), 10e9, "fineweb", None)
        assert found is not None
        return found.final.mid

    muon = final(recipe="modern", optimizer="muon", learning_rate=0.02)
    assert muon < final(recipe="modern") < final()
    assert final(schedule="wsd", decay_fraction=0.1) > final(schedule="wsd", decay_fraction=0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"decay_lr": False},
        {"min_lr": 6e-4},
        {"lr_decay_iters": 20_000_000},
        {"schedule": "wsd", "decay_fraction": 1.0, "lr_decay_iters": 20_000_000},
    ],
    ids=str,
)
def test_a_learning_rate_that_never_comes_down_costs(changes: dict[str, object]):
    decayed, still_up = (
        expected_loss(run, 10e9, "fineweb", None) for run in (RUN, RUN.replace(**changes))
    )
    assert decayed is not None
    assert still_up is not None
    relative = relative_rate(RUN, decayed.size, 10e9, "gpt2-adamw", loss_fit())
    assert 0.2 < relative < 0.5  # GPT-2's usual rate is about a third of the best
    assert still_up.final.mid - decayed.final.mid == pytest.approx(
        held_up(RUN, 0.9, relative=relative), rel=0.01
    )
    assert held_up(RUN, 0.9) > held_up(RUN, 0.9, relative=relative) > held_up(RUN, 0.4)
    assert still_up.curve(40)[-1][1] == pytest.approx(still_up.final.mid)
    assert still_up.repetition == 0
    assert expected_loss(RUN.replace(min_lr=0.0), 10e9, "fineweb", None).final == decayed.final  # type: ignore[union-attr]


def test_repetition_costs_little_for_four_epochs_and_much_for_forty():
    few = expected_loss(RUN, 10e9, "fineweb", 2.5e9)
    many = expected_loss(RUN, 10e9, "fineweb", 0.25e9)
    none = expected_loss(RUN, 10e9, "fineweb", 10e9)
    assert few is not None
    assert many is not None
    assert none is not None
    assert none.repetition == 0
    assert 0 < few.repetition < 0.024 < many.repetition  # PREDICTION's bound for four epochs


@pytest.mark.parametrize(
    ("size", "tokens"),
    [(110_678_115, 1_241_505_403), (381_758_347, 3_806_871_243)],
)
def test_the_best_size_is_where_experiments_at_equal_compute_found_it(size: int, tokens: int):
    """nanochat's dev/LOG.md, 27 January 2026, for 1e18 and 1e19 FLOPs."""
    run = RUN.replace(**recipe_values("modern"))

    def loss(factor: float) -> float:
        here = estimate(
            run, tokens / factor, "fineweb-edu", None, "modern-muon", size=size * factor
        )
        return here.final.mid

    best = min((0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0), key=loss)
    assert best in (0.7, 1.0, 1.4)
    assert loss(4.0) - loss(best) > 0.02


@given(st.floats(1e6, 1e13), st.floats(1e6, 1e12))
def test_effective_tokens_never_exceed_the_tokens(tokens: float, unique: float):
    worth = effective_tokens(tokens, unique, loss_fit())
    assert worth <= tokens * (1 + 1e-9)
    assert worth >= min(tokens, unique) * (1 - 1e-9)


def test_nothing_is_said_of_what_nobody_measured():
    assert expected_loss(RUN, 1e9, "shakespeare_char", None) is None
    assert expected_loss(RUN.replace(vocab_size=65), 1e9, "fineweb", None) is None
    assert known_dataset("edu_fineweb10B") == "fineweb-edu"
    assert known_dataset("owt") == "openwebtext"
    for other in ("openwebtext2", "fineweb2", "fineweb-2", "fineweb-edu-score-2"):
        assert known_dataset(other) is None
    assert known_dataset("Skylion007/openwebtext (9B)") == "openwebtext"
    assert known_dataset("fineweb-sample-10BT") == "fineweb"


@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_the_curve_starts_untrained_and_ends_at_the_final_loss(schedule: str):
    found = expected_loss(RUN.replace(schedule=schedule), RUN.total_tokens, "fineweb", None)
    assert found is not None
    curve = found.curve(40)
    assert curve[0] == (0, pytest.approx(math.log(50304)))
    assert curve[-1] == (20_000, pytest.approx(found.final.mid))
    steps = [step for step, _ in curve]
    losses = [loss for _, loss in curve]
    assert steps == sorted(set(steps))
    assert losses == sorted(losses, reverse=True)


def test_what_moves_the_loss_moves_the_prediction():
    run = RunConfig(
        batch_size=16, gradient_accumulation_steps=32, max_iters=10_000, lr_decay_iters=10_000
    )

    def final(**changes: object) -> float:
        config = run.replace(**changes)
        found = expected_loss(config, config.total_tokens, "fineweb", None)
        assert found is not None
        return found.final.mid

    usual = final()
    assert final(learning_rate=1.5e-3, min_lr=0.0) < usual - 0.03  # tuned AdamW baselines
    assert final(learning_rate=1e-4, min_lr=0.0) > usual + 0.03
    assert final(learning_rate=1.5e-2, min_lr=0.0) > usual + 0.05
    assert final(decay_lr=False) > usual + 0.03
    assert final(dropout=0.1) > usual
    small = {"batch_size": 6, "gradient_accumulation_steps": 1, "max_iters": 853_000}
    assert final(**small, decay_lr=False) > final(decay_lr=False) + 0.05


def test_outside_what_the_sweeps_show_the_range_is_wider():
    run = RunConfig(
        batch_size=16, gradient_accumulation_steps=32, max_iters=10_000, lr_decay_iters=10_000
    )
    plain, odd = (
        expected_loss(run.replace(**changes), run.total_tokens, "fineweb", None)
        for changes in ({}, {"decay_lr": False, "dropout": 0.1})
    )
    assert plain is not None
    assert odd is not None
    assert odd.final.high - odd.final.low > 1.2 * (plain.final.high - plain.final.low)


def test_rate_and_batch_cost_what_the_sweep_says():
    """Least at the best rate and a middle batch, more the further away, a larger batch wanting a higher rate."""
    fit = loss_fit()
    best = best_rate(124e6, 1e10, fit)
    assert best_rate(1e9, 1e10, fit) < best / 2
    assert best_rate(124e6, 4e10, fit) > 1.2 * best
    assert best_rate(124e6, 1e8, fit) == best_rate(124e6, 4e9, fit)  # no run of it was shorter

    def cost(sequences: int, times: float, recipe: str = "gpt2-adamw") -> float:
        run = RUN.replace(
            batch_size=sequences,
            gradient_accumulation_steps=1,
            learning_rate=times * best,
            min_lr=0.0,
        )
        return settings_cost(run, 124e6, 1e10, recipe, fit)

    assert cost(256, 1.0) < 0.01
    for sequences, times in ((256, 0.2), (256, 5.0), (16, 1.0), (4096, 1.0)):
        assert cost(sequences, times) > 0.04, (sequences, times)
    assert cost(16, 0.3) < cost(16, 1.0)
    assert cost(2048, 2.0) < cost(2048, 1.0)
    assert cost(6, 50.0) == 0.5  # beyond that a run diverges
    assert cost(16, 5.0, "modern-muon") == 0.0  # whose rate is another thing


def test_muons_rate_costs_what_its_distance_from_the_usual_one_does():
    """A public sweep that nothing was fitted on (dion418: 418 M parameters, 1 B tokens) ended 0.02 above its best rate at half
    of it, 0.01 to 0.03 at twice, 0.07 to 0.12 at four times."""

    def cost(times: float) -> float:
        run = RUN.replace(recipe="modern", optimizer="muon", learning_rate=times * 0.02, min_lr=0.0)
        return settings_cost(run, 418e6, 1e9, "modern-muon", loss_fit())

    assert cost(1.0) == 0.0
    assert cost(0.5) == pytest.approx(cost(2.0))
    assert 0.01 < cost(2.0) < 0.03
    assert 0.04 < cost(4.0) < 0.12


@pytest.mark.parametrize(
    ("optimizer", "rate"), [("adamw", 0.05), ("adamw", 1.0), ("muon", 6e-4), ("muon", 1.0)]
)
def test_no_loss_is_predicted_where_no_run_ended_well(optimizer, rate):
    """Of the sweep's runs at more than 12 times the best rate most diverged; GPT-2's 6e-4 is no step size for Muon."""
    run = RUN.replace(optimizer=optimizer, learning_rate=rate, min_lr=0.0)
    assert expected_loss(run, run.total_tokens, "fineweb", None) is None
    near = run.replace(learning_rate={"adamw": 0.01, "muon": 0.005}[optimizer])
    assert expected_loss(near, near.total_tokens, "fineweb", None) is not None


def test_a_low_rate_costs_more_in_a_short_run():
    """A public sweep of 0.3 B tokens ended 0.37 and 0.88 nats above its best at rates of 3e-4 and 1e-4."""
    fit = loss_fit()

    def cost(rate: float, tokens: float, sequences: int = 512) -> float:
        run = RUN.replace(
            batch_size=sequences, gradient_accumulation_steps=1, learning_rate=rate, min_lr=0.0
        )
        return settings_cost(run, 124e6, tokens, "gpt2-adamw", fit)

    short, long = (cost(3e-4, tokens) - cost(1e-3, tokens) for tokens in (1e9, 4e9))
    assert short > long + 0.05
    assert cost(1e-4, 1e9) > cost(3e-4, 1e9) + 0.2
    assert cost(3e-4, 1e9) > cost(3e-4, 2e9) > cost(3e-4, 4e9)
    best = best_rate(124e6, 1e9, fit)
    assert cost(best, 1e9) == pytest.approx(cost(best, 4e9), abs=0.02)


def test_muons_gain_fades_with_the_length_of_the_run():
    def gain(tokens: float) -> float:
        both = (
            expected_loss(RUN.replace(recipe="modern", **keys), tokens, "fineweb", None)
            for keys in ({"optimizer": "muon", "learning_rate": 0.02}, {"optimizer": "adamw"})
        )
        muon, adamw = (found.final.mid for found in both if found)
        return adamw - muon

    tuned = loss_fit()["recipes"]
    assert tuned["modern-muon"] > tuned["modern-adamw"] > 1
    assert gain(2e9) > gain(2e10)


def test_a_real_run_s_loss_on_its_way():
    """The worked example's small run on FineWeb: 5.53 at step 500, 4.46 at step 1,000."""
    config = load("fineweb-41M-12gb")
    found = expected_loss(config, config.total_tokens, "fineweb", None)
    assert found is not None
    curve = dict(found.curve(400))
    for step, logged in ((500, 5.5328), (1000, 4.4593)):
        near = min(curve, key=lambda s: abs(s - step))
        assert abs(curve[near] - logged) < 0.25
