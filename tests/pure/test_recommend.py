"""Recommendations: they fit, they keep to the time, more of anything never makes them worse, and they beat the advice
in circulation."""

import dataclasses
import functools
import json
import os
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.advise.budget import Budget
from onecard.advise.config_file import config_text
from onecard.advise.fit import fit
from onecard.advise.memory_table import TYPICAL, memory_table
from onecard.advise.recipe_choice import chosen_run, search_of
from onecard.advise.recommend import recommend
from onecard.advise.review import review
from onecard.advise.savers import fastest, with_memory
from onecard.cli import main
from onecard.cli import recommend as recommend_command
from onecard.config import PRESETS, load
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.facts.rentals import rentals
from onecard.messages import T
from onecard.planner import plan
from onecard.planner.loss_settings import loss_fit
from onecard.report import shortened, show
from onecard.report.recommend_view import recommend_document
from onecard.units import GIB, HOUR

pytestmark = pytest.mark.usefixtures("tuned_once")
ADVICE = [name for name in PRESETS if name.startswith("fineweb-") and name.endswith("gb")]
CARDS = ("RTX 4060", "RTX 4070", "RTX 3090", "RTX 4090", "A100 80GB")
hours = st.floats(0.2, 2000)


def drawn(cases: int) -> settings:
    """So many where new ones are drawn each time; half of them where they are the same every time."""
    count = cases if os.environ.get("ONECARD_RANDOM") else cases // 2
    return settings(max_examples=count, deadline=None)


@pytest.mark.parametrize("card", ["RTX 4070", "RTX 4090", "RTX 3090", "A100 80GB", "H100 SXM"])
@pytest.mark.parametrize("name", ADVICE)
def test_at_least_as_good_as_the_advice_in_circulation(card, name):
    row = plan(load(name), card)
    _, best = chosen_run(
        find_gpu(card), Budget(seconds=row.time.total_seconds.mid), data=row.config.dataset
    )
    assert best.seconds <= row.time.total_seconds.mid
    assert best.loss <= row.loss.expected.mid
    assert best.tuned.memory.fits == "yes"


@drawn(25)
@given(card=st.sampled_from(CARDS), first=hours, second=hours)
def test_more_hours_never_give_a_worse_loss(card, first, second):
    device = find_gpu(card)
    less, more = sorted((first, second))
    assert loss_in(device, more) <= loss_in(device, less) + 1e-12


@drawn(25)
@given(card=st.sampled_from(CARDS), time=hours, first=st.floats(6, 100), second=st.floats(6, 100))
def test_more_memory_never_gives_a_worse_loss(card, time, first, second):
    device = find_gpu(card)
    less, more = (with_memory(device, gib) for gib in sorted((first, second)))
    assert loss_in(more, time) <= loss_in(less, time) + 1e-12


@drawn(15)
@given(card=st.sampled_from(CARDS), time=hours, first=st.floats(6, 100), second=st.floats(6, 100))
def test_more_memory_never_takes_longer_to_a_loss(card, time, first, second):
    device = find_gpu(card)
    less, more = (with_memory(device, gib) for gib in sorted((first, second)))
    goal = Budget(loss=loss_in(less, time))
    assert (
        chosen_run(more, goal)[1].seconds <= chosen_run(less, goal)[1].seconds * 1.02
    )  # micro-batches of equal speed differ by their waves


search = functools.cache(search_of)  # its tuned shapes serve every budget


def loss_in(device, time):
    return search(device).with_budget(Budget(seconds=time * HOUR)).best().loss


@drawn(20)
@given(
    card=st.sampled_from(CARDS),
    time=hours,
    data=st.sampled_from([None, "fineweb-10B", "300M", "5B"]),
)
def test_every_recommendation_fits_keeps_the_time_and_stays_where_losses_are_known(
    card, time, data
):
    answer = recommend(card, Budget(seconds=time * HOUR), data=data)
    again = plan(answer.config, card, data=data)
    assert again.memory.fits == "yes"
    assert again.time.total_seconds.mid <= time * HOUR
    assert again.loss is not None
    assert again.loss.expected.mid == pytest.approx(answer.expected_loss.mid, abs=1e-3)
    assert again.loss.in_support or answer.config.n_embd == 384
    assert answer.config.block_size == 1024
    assert answer.config.n_embd // answer.config.n_head == 64
    if again.tokens.epochs is not None:
        assert again.tokens.epochs <= 4
    assert not [
        note
        for note in again.warnings
        if note.code in ("learning-rate", "warmup", "schedule-unfinished", "head-width")
    ]
    assert answer.limited_by in ("memory", "compute", "data")
    assert 1 <= len(answer.runners_up) <= 3


def test_the_same_question_has_the_same_answer(monkeypatch):
    monkeypatch.setattr("onecard.advise.search.fastest", fastest)  # tuned again, both times
    first, second = (recommend("RTX 4070", Budget(seconds=20 * HOUR)) for _ in range(2))
    assert first.config == second.config
    assert [r.config for r in first.runners_up] == [r.config for r in second.runners_up]


def test_what_limits_it():
    assert recommend("RTX 4060", Budget(seconds=2000 * HOUR)).limited_by == "memory"
    assert recommend("H100 SXM", Budget(seconds=2 * HOUR)).limited_by == "compute"
    few = recommend("H100 SXM", Budget(seconds=100 * HOUR), data="500M")
    assert few.limited_by == "data"
    assert few.plan.time.total_seconds.mid < 50 * HOUR  # a run that ends early is allowed


def test_sensitivity_says_how_flat_the_optimum_is():
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR), recipe="gpt2")
    s, size = answer.sensitivity, answer.plan.params.total
    assert s.half is not None
    assert s.double is not None
    assert s.half.params == pytest.approx(size / 2, rel=0.25)
    assert s.double.params == pytest.approx(size * 2, rel=0.25)
    assert s.half.loss > answer.expected_loss.mid < s.double.loss
    assert s.flat_params[0] <= size <= s.flat_params[1]
    assert s.unsure_params[0] <= s.flat_params[0]
    assert s.flat == (s.flat_params[1] >= 1.5 * s.flat_params[0])
    assert min(size.loss for size in answer.sizes) == pytest.approx(answer.expected_loss.mid)


def test_runners_up_have_different_names():
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR))
    table = next(s for s in recommend_document(answer).sections if s.title == T("What else"))
    labels = [str(row[0]) for row in table.blocks[0].rows]
    assert len(set(labels)) == len(labels) == 3
    assert labels[-1] == "half the time"
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR), data="100M")
    table = next(s for s in recommend_document(answer).sections if s.title == T("What else"))
    trades = [str(line).partition(":")[0] for line in table.blocks[1].items]
    assert len(set(trades)) == len(trades) == 3  # two of them slightly smaller


def test_until_loss_is_the_inverse_of_hours():
    best = recommend("RTX 4070", Budget(seconds=20 * HOUR))
    back = recommend("RTX 4070", Budget(loss=best.expected_loss.mid + 1e-6))
    assert back.plan.time.total_seconds.mid == pytest.approx(20 * HOUR, rel=0.05)
    assert back.expected_loss.mid <= best.expected_loss.mid + 1e-3


def test_tokens_keep_the_size_within_what_they_feed():
    answer = recommend("A100 80GB", Budget(tokens=10e9))
    assert answer.plan.tokens.total == pytest.approx(10e9, rel=0.01)
    assert answer.plan.tokens.compute_optimal <= 10e9
    assert answer.plan.params.total > 300e6


def test_a_short_run_gets_a_smaller_batch_rather_than_few_steps():
    short, long = (
        recommend("RTX 4070", Budget(seconds=hours * HOUR)).config for hours in (0.5, 20)
    )
    assert short.max_iters >= 1000
    assert short.tokens_per_step < long.tokens_per_step


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
@pytest.mark.parametrize("ending", [".toml", ".py"])
def test_the_written_config_is_read_back_the_same(tmp_path, recipe, ending):
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR), recipe=recipe)
    path = tmp_path / f"run{ending}"
    path.write_text(config_text(answer, path.name), encoding="utf-8")
    assert load(path) == answer.config
    lines = [
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    chosen = (
        "n_layer",
        "n_embd",
        "batch_size",
        "gradient_accumulation_steps",
        "max_iters",
        "learning_rate",
        "optimizer",
        "recompute",
    )
    for key in chosen:
        assert any(line.startswith(f"{key} = ") and "  # " in line for line in lines), key


@pytest.mark.parametrize("name", ADVICE)
def test_fit_keeps_the_model_and_the_total_batch(name):
    config = load(name)
    answer = fit(config, "RTX 4070")
    assert answer.plan.memory.fits == "yes"
    assert answer.config.tokens_per_step == config.tokens_per_step
    assert answer.config.shape == answer.before.config.shape
    assert answer.config.max_iters == config.max_iters
    if answer.before.memory.fits == "yes":
        assert answer.plan.time.step_seconds.mid <= answer.before.time.step_seconds.mid * 1.01


def test_fit_says_when_nothing_helps():
    with pytest.raises(UserError, match="even with every memory saver"):
        fit(load("gpt2-xl"), "GTX 1060 6GB")


def test_review_of_the_160M_that_is_81M():
    answer = review("fineweb-81M-24gb", "RTX 4090")
    assert answer.plan.params.nanogpt == 81_360_000
    assert [claim.size for claim in answer.claims] == ["160M"]
    assert answer.better is not None
    assert answer.better.expected_loss.mid <= answer.plan.loss.expected.mid
    assert answer.better.plan.time.total_seconds.mid <= answer.plan.time.total_seconds.mid
    assert {"review-is", "review-claim", "review-time", "review-better"} <= {
        note.code for note in answer.answers
    }


@pytest.mark.parametrize("name", ADVICE)
def test_review_answers_every_row_of_the_advice(name):
    answer = review(name, "RTX 4090")
    codes = {note.code for note in answer.answers}
    assert codes & {"review-fits", "review-tight", "review-no-fit"}
    assert codes & {"review-better", "review-good"}
    assert json.dumps(answer.to_json(), allow_nan=False)


def test_a_right_name_is_no_claim():
    assert review("fineweb-124M-12gb", "RTX 4070").claims == []


def test_the_table_has_every_class_and_its_own_cards():
    table = memory_table(Budget(seconds=24 * HOUR), recipe="gpt2")
    assert [row.memory_gb for row in table.rows] == [8, 10, 12, 16, 20, 24, 32, 48, 80]
    for row in table.rows:
        device = find_gpu(TYPICAL[row.memory_gb])
        assert device.memory_bytes == row.memory_gb * GIB
        assert row.params == 12 * row.n_layer * row.n_embd**2 + row.n_embd * (
            50304 + 1024 + 2 * row.n_layer + 1
        )
        tokens = row.batch_size * row.gradient_accumulation_steps * 1024
        assert row.hours_10b == pytest.approx(10e9 / tokens * row.step_seconds / 3600)


def test_rented_cards_are_all_known_and_sorted_by_money():
    for rental in rentals():
        find_gpu(rental.gpu)
        assert (rental.low or 0) <= rental.typical <= (rental.high or 1e9)
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR), rent=True)
    assert answer.rentals
    assert [r.cost for r in answer.rentals] == sorted(r.cost for r in answer.rentals)
    for offer in answer.rentals:
        assert (
            offer.batch_size * offer.gradient_accumulation_steps * 1024
            == answer.config.tokens_per_step
        )
        assert offer.cost == pytest.approx(offer.seconds.mid / 3600 * offer.price)


def test_json_has_what_is_promised():
    answer = recommend("RTX 4070", Budget(seconds=20 * HOUR)).to_json()
    assert {"config", "plan", "limited_by", "runners_up", "sensitivity"} <= set(answer)
    assert answer["plan"]["schema"] == "onecard.plan/1"
    json.dumps(answer, allow_nan=False)


def test_support_is_kept_to_even_with_endless_time_and_memory():
    device = dataclasses.replace(find_gpu("H100 SXM"), usable_bytes=10_000 * GIB)
    _, best = chosen_run(device, Budget(seconds=50 * 365 * 24 * HOUR))
    support = loss_fit()["support"]
    assert best.estimate.in_support
    assert best.tokens <= support["tokens_per_param"][1] * support["params"][1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "4070", "--hours", "0"], "above zero"),
        (["--gpu", "4070", "--hours", "-3"], "above zero"),
        (["--gpu", "4070", "--hours", "nan"], "above zero"),
        (["--gpu", "4070", "--hours", "1e9"], "hundred years"),
        (["--gpu", "4070", "--hours", "0.000001"], "too little"),
        (["--gpu", "4070", "--days", "0"], "above zero"),
        (["--gpu", "4070", "--tokens", "0"], "above zero"),
        (["--gpu", "4070", "--tokens", "1000"], "too few"),
        (["--gpu", "4070", "--until-loss", "1"], "to reach a loss of 1"),
        (["--gpu", "4071"], "unknown GPU"),
        (["--gpu", "4070", "--tokens", "1B", "--data", "shakespeare_char"], "no public losses"),
        (["--gpu", "4070", "--n_layer=3"], "for recommend to choose"),
        (["--gpu", "4070", "--lang", "xx"], "language"),
        (["--gpu", "GTX 1060 6GB", "--fit", "gpt2-xl"], "even with every memory saver"),
        (["--review", "no-such-config", "--gpu", "4070"], "no config file"),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(capsys, words, message):
    assert main(["recommend", *words]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "hint:" in err
    assert "Traceback" not in err
    assert not out


def test_out_writes_once_and_asks_before_replacing(tmp_path, capsys):
    path = tmp_path / "run.toml"
    assert main(["recommend", "--gpu", "4070", "--hours", "20", "--out", str(path)]) == 0
    first = path.read_bytes()
    assert "n_layer" in tomllib.loads(first.decode())
    assert main(["recommend", "--gpu", "4070", "--hours", "2", "--out", str(path)]) == 2
    assert path.read_bytes() == first
    assert main(["recommend", "--gpu", "4070", "--hours", "2", "--out", str(path), "--force"]) == 0
    assert path.read_bytes() != first
    assert list(tmp_path.iterdir()) == [path]
    assert main(["recommend", "--gpu", "4070", "--out", str(tmp_path / "run.yaml")]) == 2


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ([], "A6000"),
        (["--gpu", "4070", "--hours", "20", "--rent"], "H100 SXM"),
        (["--fit", "gpt2", "--gpu", "4090"], "16 × 32"),
        (["--review", "fineweb-81M-24gb", "--gpu", "4090"], "20 × 1280"),
        (["--gpu", "4070", "--until-loss", "3.2"], "micro-batch"),
    ],
)
def test_every_view_is_shown_and_has_json(monkeypatch, words, answer):
    """The answer is in the short form, too."""
    given = []
    monkeypatch.setattr(recommend_command, "show_report", lambda args, *both: given.append(both))
    assert main(["recommend", *words]) == 0
    ((as_json, document),) = given
    assert as_json()["schema"].startswith("onecard.")
    whole = document()
    for form, message in (("terminal", shortened(whole)), ("markdown", whole), ("html", whole)):
        shown = show(message, form, lang="en").replace("\N{NO-BREAK SPACE}", " ")
        assert answer in shown
        assert "{" not in shown.partition("<style")[0].partition("</style>")[0]
