"""What the gain of the modern recipe rests on: the lengths of the public runs, and our own comparisons as the fit reads them."""

import dataclasses
import json
import re
import sys
from typing import Any

import pytest
from bench_scripts import ROOT

from onecard.advise.budget import Budget
from onecard.advise.own_runs import SHARES
from onecard.advise.recipe_choice import Contest, choose, gain_of
from onecard.advise.small_run import small_run
from onecard.facts.gpus import find_gpu
from onecard.planner.loss_settings import loss_fit
from onecard.units import HOUR

sys.path[:0] = [str(ROOT)]
PAGE = ROOT / "docs" / "performance.md"


def contest(card: str, hours: float, data: str | int | None = None) -> Contest:
    return choose(find_gpu(card), Budget(seconds=hours * HOUR), data=data)


def messages(found: Contest) -> dict[str, str]:
    return {note.code: str(note) for note in found.notes()}


@pytest.mark.parametrize(("hours", "data"), [(1, None), (20, 50_000_000)])
def test_a_run_shorter_than_every_public_one_says_what_its_gain_rests_on(hours, data):
    found = contest("RTX 4070", hours, data)
    assert found.best.config.recipe == "modern"
    assert found.best.tokens < loss_fit()["modern_runs"]["tokens"][0]
    words = messages(found)["recipe-length-below"]
    assert "its shortest public run (819.20 M tokens)" in words
    assert "2.00 M to 16.00 M tokens of GPT-2's recipe" in words


def test_a_run_longer_than_every_public_one_says_so_and_more_hours_stay_no_worse():
    short, long = contest("H100 SXM", 200), contest("H100 SXM", 500)
    assert long.best.tokens > loss_fit()["modern_runs"]["tokens"][-1] > short.best.tokens
    assert "its longest public run has 45.00 B tokens" in messages(long)["recipe-length-beyond"]
    assert long.best.loss <= short.best.loss
    assert "recipe-length-beyond" not in messages(short)


def test_little_more_time_is_never_worse_and_the_recipe_stays():
    """Under three tokens a parameter no public run covers either recipe's; GPT-2's was taken there, 1.8 nats above."""
    found = [contest("RTX 4070", hours) for hours in (0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)]
    assert {each.best.config.recipe for each in found} == {"modern"}
    losses = [each.best.loss for each in found]
    assert losses == sorted(losses, reverse=True)


def test_a_length_that_public_runs_have_needs_no_warning():
    found = contest("RTX 4070", 20)
    assert not [code for code in messages(found) if code.startswith("recipe-length")]
    assert "819.20 M to 45.00 B tokens" in messages(found)["recipe-runs"]


def test_the_gain_is_less_certain_at_lengths_that_no_public_run_has():
    found = contest("RTX 4070", 20)
    assert found.other is not None
    assert found.gain is not None
    wide = found.gain.high - found.gain.low
    for tokens in (300_000_000, 90_000_000_000):
        unusual = gain_of(dataclasses.replace(found.best, tokens=tokens), found.other)
        assert unusual.high - unusual.low > 1.2 * wide


def test_the_gpt2_run_that_was_asked_for_says_the_same_of_the_other_one():
    found = choose(find_gpu("RTX 4070"), Budget(seconds=HOUR), recipe="gpt2")
    assert "recipe-length-below" in messages(found)


def test_a_small_run_and_unknown_text_are_two_reasons():
    """A large run was justified by runs of 1 M parameters, and a small one on public text by its text."""
    small = {note.code: str(note) for note in small_run("cpu", 360).reasons}
    assert {"small-run-loss", "small-run-recipe"} < set(small)
    other = {
        note.code: str(note)
        for note in small_run(find_gpu("RTX 4070"), 72_000, data="wikipedia").reasons
    }
    assert {"unknown-text-loss", "recipe-other-text"} < set(other)
    assert "50.92 M to 1.55 B parameters" in other["recipe-other-text"]
    for words in (small["small-run-recipe"], other["recipe-other-text"]):
        assert "26% of 16.00 M (code alone): its lead shrinks as runs grow" in words
        assert "time" not in words


def test_what_is_said_of_our_own_runs_is_what_the_page_has():
    """On the worst corpus of the shortest and the longest budget, in whole per cents; the longest has code alone."""
    page = PAGE.read_text(encoding="utf-8")
    tokens = {"small": 2e6, "large": 16e6}
    found = re.findall(r"^\| (\w+), (small|large) \|.*?(0\.\d+): \**(?:not )?reached", page, re.M)
    shares = {}
    for _corpus, budget, share in found:
        shares[tokens[budget]] = max(shares.get(tokens[budget], 0.0), round(float(share), 2))
    assert {corpus for corpus, budget, _share in found if budget == "large"} == {"code"}
    assert shares == SHARES


def test_the_fit_reads_every_share_of_the_page():
    from fit.loss_evidence import own_rows

    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\w+), (small|middle|large) \|.*?\*{0,2}(0\.\d{3}): \**(?:not )?reached", text, re.M
    )
    ours = {(row.corpus, row.budget): round(1 / row.worth, 3) for row in own_rows()}
    assert len(ours) >= 7
    assert ours == {(corpus, budget): float(share) for corpus, budget, share in rows}


def shipped_and_without_ours() -> list[dict[str, Any]]:
    from fit.loss import fit_loss
    from fit.losses import all_losses

    return [loss_fit(), fit_loss(all_losses(), ours=())]


def test_the_fit_is_nearer_to_our_own_runs_with_them_than_without():
    from fit.loss_evidence import expected_share, own_rows

    def miss(fit: dict[str, Any]) -> float:
        return sum(abs(expected_share(row, fit) * row.worth - 1) for row in own_rows())

    fitted, public_alone = shipped_and_without_ours()
    assert miss(fitted) < miss(public_alone)


def test_a_head_of_its_own_counts_in_our_own_runs_as_in_any_plan():
    """It was left out, and a token of the modern recipe was then expected to be worth 1.08 times more than was measured."""
    import numpy as np
    from fit.loss_evidence import own_rows, own_runs

    keys = ["modern-muon", "fade", "untied"]
    theta = np.array([[0.8], [0.1], [0.08]])
    tied = np.array([[0.88], [0.1], [0.0]])
    assert not any(row.model.tied for row in own_rows())
    np.testing.assert_allclose(own_runs(theta, keys, own_rows()), own_runs(tied, keys, own_rows()))


def test_what_the_shipped_fit_says_of_the_public_runs_is_in_order():
    known = json.loads((ROOT / "src" / "onecard" / "facts" / "loss_fit.json").read_text())
    runs = known["modern_runs"]
    assert len(runs["sizes"]) == len(runs["tokens"])
    assert runs["sizes"] == sorted(runs["sizes"])
    assert runs["tokens"] == sorted(runs["tokens"])
    assert max(runs["own_tokens"]) < min(runs["tokens"])
