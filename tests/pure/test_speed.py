"""Step time: monotonic, near real logs, honest about its basis."""

import math
import timeit
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config import ModelShape, RunConfig
from onecard.facts.gpus import all_gpus, find_gpu
from onecard.planner.card_rate import speed_fit, sustained, sustained_flops
from onecard.planner.exchange import link_bandwidth
from onecard.planner.flops import (
    attention_flops,
    exact_per_token,
    nanogpt_per_token,
    six_n_per_token,
)
from onecard.planner.step_counts import layer_bytes
from onecard.planner.step_time import step_time, workload_time
from onecard.planner.step_work import work
from onecard.planner.workload import Workload

CARD = find_gpu("RTX 4070")
SHAPES = st.builds(
    Workload,
    n_layer=st.integers(1, 48),
    n_head=st.sampled_from([1, 4, 12]),
    n_embd=st.integers(1, 30).map(lambda n: 96 * n),
    vocab_size=st.sampled_from([65, 4096, 50304, 151936]),
    block_size=st.sampled_from([64, 256, 1024, 4096]),
    batch_size=st.integers(1, 64),
    accumulation=st.integers(1, 64).map(float),
    dtype=st.sampled_from(["bfloat16", "float16", "tf32", "float32"]),
    compiled=st.booleans(),
    flash=st.booleans(),
    recompute=st.sampled_from(["none", "cheap", "block"]),
    optimizer=st.sampled_from(["adamw", "adamw8bit", "muon"]),
    gpus=st.sampled_from([1, 2, 8]),
)


@settings(max_examples=150, deadline=None)
@given(SHAPES, st.sampled_from(all_gpus()))
def test_more_work_takes_more_time(w: Workload, device):
    def seconds(**more: object) -> float:
        return workload_time(replace(w, **more), device).seconds.mid

    now = seconds()
    assert math.isfinite(now)
    assert now > 0
    assert seconds(n_layer=w.n_layer + 1) > now
    assert seconds(n_embd=w.n_embd + 96) > now
    assert seconds(batch_size=w.batch_size + 1) > now
    assert seconds(block_size=w.block_size * 2) > now
    assert seconds(accumulation=w.accumulation + 1) > now
    assert seconds(vocab_size=w.vocab_size * 8) > now


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_parts_sum_to_the_middle_of_the_range(w: Workload):
    time = workload_time(w, CARD)
    assert math.isclose(sum(time.parts.values()), time.seconds.mid)
    assert time.seconds.low < time.seconds.mid < time.seconds.high
    assert set(time.parts) == {"matmul", "memory", "optimizer", "launch", "data", "exchange"}


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        (RunConfig(n_embd=384, batch_size=16, gradient_accumulation_steps=32), 3.9),
        (RunConfig(batch_size=8, gradient_accumulation_steps=64), 9.34),
    ],
)
def test_two_real_logs_lie_in_the_range(config: RunConfig, seconds: float):
    time = step_time(config, CARD, "bfloat16")
    assert time.seconds.low < seconds < time.seconds.high
    assert abs(time.seconds.mid / seconds - 1) < 0.15


def test_the_lecture_on_an_a100():
    """Karpathy's "Let's reproduce GPT-2", 16 × 1024 tokens on an A100: not fitted on; each saver's step is seen."""
    card = find_gpu("A100 SXM 80GB")
    base = Workload(
        12,
        12,
        768,
        50257,
        1024,
        16,
        1,
        bias=True,
        compiled=False,
        flash=False,
        fused_optimizer=False,
    )
    stages = [
        ({"dtype": "float32"}, 1.000),
        ({"dtype": "tf32"}, 0.333),
        ({}, 0.300),
        ({"compiled": True}, 0.130),
        ({"compiled": True, "flash": True}, 0.096),
        ({"compiled": True, "flash": True, "vocab_size": 50304}, 0.093),
    ]
    for changes, seconds in stages:
        assert abs(workload_time(replace(base, **changes), card).seconds.mid / seconds - 1) < 0.15


def test_a_card_without_measured_kin_says_so_and_is_wider():
    unknown = replace(CARD, rate_class="unheard of")
    run = RunConfig()
    known, guess = step_time(run, CARD, "bfloat16"), step_time(run, unknown, "bfloat16")
    assert (known.basis, guess.basis) == ("fitted", "class")
    assert guess.seconds.high / guess.seconds.low > known.seconds.high / known.seconds.low


def test_cards_older_than_flash_attention_may_take_twice_as_long():
    """Their attention is a guess; a V100's log and a TITAN Xp's took 1.3 and 1.9 times what was predicted for them."""
    run = RunConfig(batch_size=8, gradient_accumulation_steps=5)
    for name in ("V100 SXM2 32GB", "TITAN Xp", "T4"):
        time = step_time(run, find_gpu(name), "float16").seconds
        assert time.high / time.mid >= 2.0
    usual = step_time(run, CARD, "bfloat16").seconds
    assert usual.high / usual.mid < 1.6


def test_savers_cost_time_and_compiling_saves_it():
    run = RunConfig()

    def seconds(**changes: object) -> float:
        return step_time(run.replace(**changes), CARD, "bfloat16").seconds.mid

    assert seconds(recompute="block") > seconds(recompute="cheap") > seconds()
    assert seconds(compile=False) > seconds()
    assert seconds(attention="math") > seconds()
    assert seconds(vocab_size=50257) > seconds()
    assert (
        step_time(run, CARD, "bfloat16").compile_seconds
        > step_time(run.replace(compile=False), CARD, "bfloat16").compile_seconds
        == 0
    )


def test_cards_share_the_work_but_not_for_nothing():
    run = RunConfig()
    one, four = (step_time(run, CARD, "bfloat16", gpus=n) for n in (1, 4))
    assert 1 / 4 < four.seconds.mid / one.seconds.mid < 1
    assert one.parts["exchange"] == 0 < four.parts["exchange"]


def test_our_own_exchange_hides_behind_nothing():
    own = Workload.of(RunConfig(), "bfloat16", gpus=4)
    ddp = replace(own, waits_for_exchange=False)
    alone = 2 * 3 / 4 * 4 * own.params / link_bandwidth(CARD, nvlinked=True)
    exchange = workload_time(own, CARD).parts["exchange"]
    buffers = 2 * (4 + 4) * own.params / CARD.bandwidth  # laid in and taken out
    assert exchange == pytest.approx(alone + buffers)
    assert workload_time(ddp, CARD).parts["exchange"] < exchange
    # and it stays so however long the backward pass is
    longer = Workload.of(RunConfig(batch_size=64), "bfloat16", gpus=4)
    assert workload_time(longer, CARD).parts["exchange"] == pytest.approx(exchange)
    assert not Workload.of(RunConfig(), "bfloat16").waits_for_exchange


def test_watts_of_a_unit_hold_a_card_back():
    """Of their class, the RTX 4070 has more watts a unit than the RTX 4090; a laptop's are its maker's choice."""
    fit = speed_fit()
    assert sustained(find_gpu("RTX 4070"), fit) > 1.03 * sustained(find_gpu("RTX 4090"), fit)
    assert sustained(find_gpu("RTX 4070 Laptop"), fit) == 1.0
    assert 0.2 < fit["power"] < 0.5  # near the cube root
    card = find_gpu("RTX 6000 Ada")
    assert sustained_flops(card) < 0.75 * card.peak_flops("bfloat16")


def test_it_is_quick():
    run = RunConfig()
    assert (
        min(timeit.repeat(lambda: step_time(run, CARD, "bfloat16"), number=50, repeat=5)) / 50
        < 1e-3
    )


def test_the_three_ways_to_count_flops():
    gpt2 = ModelShape(12, 12, 768, 50304, 1024)
    assert six_n_per_token(gpt2) == 6 * 123_587_328
    assert nanogpt_per_token(gpt2) == 6 * 123_587_328 + 12 * 12 * 768 * 1024
    matrices = 12 * 12 * 768**2 + 768 * 50304
    assert exact_per_token(gpt2) == 6 * matrices + 6 * 12 * 768 * 1024


def test_the_constants_carry_their_source_and_priors():
    fit = speed_fit()
    assert "fit/speed.py" in fit["source"]
    for name, prior in fit["priors"].items():
        assert abs(math.log(fit[name] / prior["middle"])) < 3 * prior["sigma"] + 0.1, name


def test_micro_batches_take_their_time_each_and_the_update_its_own():
    base = Workload(
        **{"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50304, "block_size": 1024},
        **{"batch_size": 8, "accumulation": 1.0, "dtype": "bfloat16", "compiled": False},
    )
    one, eight = (
        workload_time(replace(base, accumulation=count), find_gpu("RTX 4070")).parts
        for count in (1.0, 8.0)
    )
    assert eight["optimizer"] == one["optimizer"]
    for name in ("matmul", "memory", "launch"):
        assert one[name] > 0
        assert eight[name] == pytest.approx(8 * one[name])


def test_what_a_layer_s_kernels_hand_to_one_another_counted_by_hand():
    """GPT-2's layer, d wide, for each token: the stream in 4 bytes, activations in 2.

    Compiled, two norms read stream and branch and write stream and norm (12 d each), going back one stream more (16 d);
    GELU reads and writes 4 d (16 d), going back three times 4 d (24 d); attention reads q, k, v and writes its output
    (8 d), twice over for the heads' layout, the same going back, the gradient of q, k, v again (12 d), and 8 d of sums.
    """
    compiled = Workload.of(RunConfig(), "bfloat16")
    per_token = compiled.tokens * compiled.n_layer * compiled.n_embd
    by_hand = 2 * 12 + 2 * 16 + 16 + 24 + 2 * 8 + 2 * 8 + 12 + 8
    assert layer_bytes(compiled, speed_fit()) == per_token * by_hand
    # op by op each norm also casts (6 d), adds (8 d and 2 d more; going back 12 d)
    eager = layer_bytes(replace(compiled, compiled=False), speed_fit())
    by_hand = 2 * (8 + 6 + 8 + 2) + 2 * (12 + 6 + 12) + 16 + 24 + 2 * 8 + 2 * 8 + 12 + 8
    assert eager == pytest.approx(speed_fit()["eager_bytes"] * per_token * by_hand)


def test_the_optimizer_updates_all_but_the_norms():
    assert Workload.of(RunConfig(), "bfloat16").params == 124_373_760 - 25 * 768


def test_muon_computes_in_full_precision_where_half_is_slow():
    for card, full in (("RTX 4070", False), ("P100 SXM2", True), ("Apple M1", True)):
        on = Workload.on(find_gpu(card), RunConfig(), "float32")
        assert on.full_precision_updates == full, card


def test_a_window_takes_its_share_of_attention():
    whole = Workload.of(RunConfig(), "bfloat16")
    assert attention_flops(replace(whole, window=0.25)) == attention_flops(whole) / 4


@pytest.mark.parametrize(("flash", "passes"), [(True, 3.5), (False, 3.0)])
def test_layers_computed_again_are_one_more_forward_pass(flash, passes):
    """A backward pass is two of a forward pass's matmuls; FlashAttention's computes the scores once more by itself."""
    once = work(replace(Workload.of(RunConfig(), "bfloat16"), flash=flash))
    again = work(replace(Workload.of(RunConfig(recompute="block"), "bfloat16"), flash=flash))
    assert again["attention"] / once["attention"] == pytest.approx((passes + 1) / passes)
    assert again["blocks"] / once["blocks"] == pytest.approx(8 / 6, rel=1e-3)
    assert again["head"] == once["head"]
