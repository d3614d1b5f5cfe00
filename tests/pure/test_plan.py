"""plan(): any config gives a plan or a sentence; figures grow where they must; the JSON answer holds its paths."""

import json
import math
import os
import re
from datetime import datetime

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from onecard import RunConfig, UserError, find_gpu, load, plan
from onecard.config import PRESETS
from onecard.config.run import KEYS

CARDS = [
    find_gpu(name)
    for name in ("RTX 4070", "T4", "GTX 1080 Ti", "A100 80GB", "M3 Max", "cpu", "RX 7900 XTX")
]

PATHS = [
    "schema",
    "params.total",
    "params.nanogpt",
    "params.non_embedding",
    "tokens.per_step",
    "tokens.total",
    "tokens.epochs",
    "tokens.per_param",
    "flops.per_token_nanogpt",
    "flops.per_token_exact",
    "flops.total_6nd",
    "flops.total_nanogpt",
    "flops.total_exact",
    "time.step_seconds.low",
    "time.step_seconds.mid",
    "time.step_seconds.high",
    "time.tokens_per_second.low",
    "time.tokens_per_second.mid",
    "time.tokens_per_second.high",
    "time.total_seconds.low",
    "time.total_seconds.mid",
    "time.total_seconds.high",
    "time.compile_seconds",
    "mfu.card.low",
    "mfu.card.mid",
    "mfu.card.high",
    "mfu.nanogpt.mid",
    "memory.parts",
    "memory.allocated_bytes.low",
    "memory.allocated_bytes.mid",
    "memory.allocated_bytes.high",
    "memory.process_bytes.low",
    "memory.process_bytes.mid",
    "memory.process_bytes.high",
    "memory.card_bytes",
    "memory.fits",
    "energy.kwh.mid",
    "energy.cost.mid",
    "energy.currency",
    "loss.expected.low",
    "loss.expected.mid",
    "loss.expected.high",
    "warnings",
]


def at(answer, path):
    for key in path.split("."):
        answer = answer[key]
    return answer


def test_every_promised_path():
    answer = plan(load("fineweb-124M-12gb"), "RTX 4070").to_json()
    for path in PATHS:
        assert at(answer, path) is not None, path
    json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_every_preset_on_every_kind_of_card(preset, card):
    answer = plan(load(preset), card).to_json()
    for path in (
        "time.step_seconds",
        "memory.process_bytes",
        "memory.allocated_bytes",
        "mfu.card",
        "energy.kwh",
    ):
        low, mid, high = (at(answer, path)[k] for k in ("low", "mid", "high"))
        assert 0 < low <= mid <= high < math.inf, path
    assert 0 < at(answer, "mfu.card.mid") < 1.2
    assert sum(at(answer, "memory.parts").values()) == pytest.approx(
        at(answer, "memory.process_bytes.mid"), rel=1e-6
    )
    assert at(answer, "memory.process_bytes.mid") > at(answer, "memory.allocated_bytes.mid")


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [
            0,
            -1,
            2**63,
            10**30,
            1e308,
            math.nan,
            math.inf,
            "",
            "auto",
            "float16",
            "modern",
            "muon",
            "\0",
            [],
        ]
    ),
)
SENSIBLE = st.fixed_dictionaries(
    {
        "n_layer": st.integers(1, 60),
        "n_head": st.sampled_from([1, 2, 4, 8, 12]),
        "n_embd": st.sampled_from([24, 96, 384, 768, 1536]),
        "batch_size": st.integers(1, 128),
        "gradient_accumulation_steps": st.integers(1, 128),
        "block_size": st.sampled_from([64, 256, 1024, 4096]),
        "vocab_size": st.sampled_from([None, 65, 50257, 50304]),
        "compile": st.booleans(),
        "dtype": st.sampled_from(["auto", "float32", "bfloat16", "float16"]),
        "bias": st.booleans(),
        "dropout": st.sampled_from([0.0, 0.1]),
        "attention": st.sampled_from(["flash", "math"]),
        "chunked_loss": st.booleans(),
        "recompute": st.sampled_from(["none", "cheap", "block"]),
        "optimizer": st.sampled_from(["adamw", "adamw8bit", "muon"]),
        "recipe": st.sampled_from(["gpt2", "modern"]),
        "tied": st.booleans(),
    }
)
ANY_CONFIG = st.one_of(
    SENSIBLE,
    st.dictionaries(st.sampled_from(KEYS), HOSTILE, max_size=6),
    st.builds(
        lambda a, b: {**a, **b},
        SENSIBLE,
        st.dictionaries(st.sampled_from(KEYS), HOSTILE, max_size=2),
    ),
)
MANY = settings(
    max_examples=3_000 if os.environ.get("ONECARD_RANDOM") else 1_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@MANY
@given(
    values=ANY_CONFIG,
    card=st.sampled_from(CARDS),
    data=st.sampled_from([None, 10**6, 10**10]),
    gpus=st.sampled_from([1, 1, 1, 2, 8]),
)
def test_a_plan_or_one_sentence(values, card, data, gpus):
    try:
        planned = plan(RunConfig.from_values(values), card, data=data, gpus=gpus)
    except UserError as error:
        assert error.message
        assert "\n" not in error.message
        assert error.hint
        return
    json.dumps(planned.to_json(), allow_nan=False)
    assert planned.memory.fits in ("yes", "tight", "no")
    assert all(str(note) for note in (*planned.warnings, *planned.memory.changes))


GROWS = {
    "batch_size": (
        "memory.allocated_bytes.mid",
        "memory.process_bytes.mid",
        "time.step_seconds.mid",
        "tokens.total",
    ),
    "n_layer": (
        "memory.allocated_bytes.mid",
        "memory.process_bytes.mid",
        "time.step_seconds.mid",
        "params.total",
        "energy.kwh.mid",
    ),
    "n_embd": (
        "memory.allocated_bytes.mid",
        "memory.process_bytes.mid",
        "time.step_seconds.mid",
        "params.total",
    ),
    "gradient_accumulation_steps": ("time.step_seconds.mid", "tokens.per_step"),
    "max_iters": ("time.total_seconds.mid", "energy.cost.mid", "flops.total_exact"),
    "block_size": ("memory.allocated_bytes.mid", "flops.per_token_exact", "time.step_seconds.mid"),
}


@settings(max_examples=150, deadline=None)
@given(
    values=SENSIBLE,
    card=st.sampled_from(CARDS),
    key=st.sampled_from(sorted(GROWS)),
    factor=st.integers(2, 4),
)
def test_more_is_more(values, card, key, factor):
    small = RunConfig.from_values(
        {**values, "max_iters": 1000, "warmup_iters": 10, "lr_decay_iters": 1000}
    )
    assume(small.n_embd % small.n_head == 0)
    large = small.replace(**{key: getattr(small, key) * factor})
    before, after = plan(small, card).to_json(), plan(large, card).to_json()
    for path in GROWS[key]:
        assert at(after, path) >= at(before, path), path
    assert at(after, GROWS[key][-1]) > at(before, GROWS[key][-1])


def test_here_is_the_default_and_cpu_is_this_machine():
    assert plan(RunConfig(), "cpu").device.kind == "cpu"
    assert plan(RunConfig(), "cpu").dtype == "float32"


def test_several_cards():
    config = load("fineweb-124M-80gb")
    one, eight = plan(config, "A100 80GB"), plan(config, "A100 80GB", gpus=8)
    assert eight.tokens.per_step == one.tokens.per_step
    assert one.time.step_seconds.mid / 8 < eight.time.step_seconds.mid < one.time.step_seconds.mid
    with pytest.raises(UserError, match="shared by 3 cards") as error:
        plan(config, "A100 80GB", gpus=3)
    near = int(re.search(r"(\d+) would do", error.value.hint or "")[1])  # type: ignore[index]
    plan(config.replace(gradient_accumulation_steps=near), "A100 80GB", gpus=3)


def test_finish_is_the_clock_time():
    start = datetime(2026, 1, 1, 8, 0)
    planned = plan(load("fineweb-41M-12gb"), "RTX 4070", now=start)
    assert datetime.fromisoformat(planned.time.finish) > start
    forever = plan(load("train_gpt2", ["--max_iters=1000000000"]), "cpu", now=start)
    assert forever.time.finish is None


def test_prices():
    cheap, dear = (plan(load("gpt2"), "RTX 4070", price=p).energy for p in ("0.1", "0.5EUR"))
    assert (cheap.currency, dear.currency) == ("USD", "EUR")
    assert dear.cost.mid == pytest.approx(5 * cheap.cost.mid)
    spain, japan = (plan(load("gpt2"), "RTX 4070", price=p).energy for p in ("ES", "JP"))
    assert str(spain.price_source).endswith("(an estimate; no source was found)")
    assert str(japan.price_source).endswith(".com; an estimate)")
    for bad in ("abc", "1.2.3", "-1", ""):
        with pytest.raises(UserError):
            plan(load("gpt2"), "RTX 4070", price=bad)


def test_data_sets():
    assert plan(load("gpt2"), "RTX 4070", data="fineweb-edu-10B").tokens.epochs == pytest.approx(
        1.0, abs=0.02
    )
    for words in (
        "3.7B",
        "3.7 B",
        "3.7BT",
        "3.7B tokens",
        "3,700,000,000",
        "3_700_000_000",
        "3.7e9",
    ):
        assert plan(load("gpt2"), "RTX 4070", data=words).tokens.unique == 3_700_000_000
    for bad in ("fineweb-nope", "0", "12 parsecs", "", " "):
        with pytest.raises(UserError):
            plan(load("gpt2"), "RTX 4070", data=bad)


def test_a_prepared_folder_gives_its_real_count(tmp_path):
    (tmp_path / "train.bin").write_bytes(b"\x01\x00" * 5000)
    (tmp_path / "val.bin").write_bytes(b"\x01\x00" * 100)
    assert plan(load("gpt2"), "RTX 4070", data=str(tmp_path)).tokens.unique == 5000


def test_every_formula_names_a_figure():
    planned = plan(load("gpt2"), "RTX 4070", data="fineweb-edu-10B")
    answer = planned.to_json()
    for path, formula in planned.formulas.items():
        assert at(answer, path) is not None
        assert formula


def test_no_loss_from_scratch_is_promised_for_a_released_model():
    tuned = load("gpt2", ["--init_from=gpt2"])
    assert plan(load("gpt2"), "RTX 4070").loss is not None
    assert plan(tuned, "RTX 4070").loss is None


def test_no_cards():
    with pytest.raises(UserError, match="0 cards"):
        plan(load("gpt2"), "RTX 4070", gpus=0)


def test_the_plan_counts_the_evaluations_that_the_loop_makes():
    """2,000 steps with an evaluation every 500: four, each a third of a step's work for each micro-batch."""
    config = load("gpt2", ["max_iters=2000", "eval_interval=500", "eval_iters=40"])
    config = config.replace(gradient_accumulation_steps=10)
    time = plan(config, "RTX 4070").time
    steps = (time.total_seconds.mid - time.compile_seconds) / time.step_seconds.mid
    assert steps == pytest.approx(2000 + 4 * 40 / 10 / 3)
