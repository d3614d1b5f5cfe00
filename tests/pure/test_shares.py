"""Shares of a mix: parsed, checked, allotted, drawn."""

import pytest

from onecard.data.shares import allot, draw, parse_percent, parse_shares, shortages
from onecard.errors import UserError


def shares(*words):
    return [(item.word, round(item.share, 6)) for item in parse_shares(words)]


def test_words_with_shares():
    assert shares("a=60%", "b=40%") == [("a", 0.6), ("b", 0.4)]
    assert shares("a=60%", "b") == [("a", 0.6), ("b", 0.4)]
    assert shares("a=33.3%", "b=33.3%", "c=33.3%") == [(n, 0.333333) for n in "abc"]
    assert shares("shakespeare=text.txt=100%") == [("shakespeare=text.txt", 1.0)]


def test_words_without_a_share_are_no_mix():
    assert parse_shares(["fineweb-edu"]) is None
    assert parse_shares(["shakespeare=text.txt", "b"]) is None


def test_a_file_whose_name_looks_like_a_share_is_that_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profit=5%").write_text("x")
    assert parse_shares(["profit=5%"]) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a=-10%", "b=110%"], "a has a share of -10%"),
        (["a=0%", "b"], "a has a share of 0%"),
        (["a=300%"], "a has a share of 300%"),
        (["a=100%", "b=100%", "c=100%"], "add up to 300%"),
        (["a=60%", "b=30%"], "add up to 90%"),
        (["a=60%", "b=40%", "c"], "nothing is left for c"),
        (["a=60%", "b", "c"], "b and c have no share"),
        (["a=50%", "a=50%"], "a is named twice"),
        (["=50%", "b"], "names no source"),
        (["a=much%", "b"], "'much%' is not a share"),
        (["a=nan%", "b"], "'nan%' is not a share"),
    ],
)
def test_wrong_shares_get_one_sentence(words, says):
    with pytest.raises(UserError, match=says) as error:
        parse_shares(words)
    assert error.value.hint


def test_the_hint_keeps_the_proportions():
    with pytest.raises(UserError) as error:
        parse_shares(["b=100%", "c=50%"])
    assert error.value.hint == "in the same proportions: b=66.67% c=33.33%"


def test_percent():
    assert parse_percent("10%") == 0.1
    with pytest.raises(UserError):
        parse_percent("10")


def test_too_small_names_source_repeats_and_the_largest_mix():
    with pytest.raises(UserError) as error:
        allot(["web", "notes"], [0.9, 0.1], [10_000_000, 20_000], 1_000_000)
    assert "notes is too small: 10% of 1.00 M tokens is 100,000" in error.value.message
    assert "repeated 5.0 times" in error.value.message
    assert "200,000 tokens" in error.value.hint
    assert "`repeat`" in error.value.hint
    assert allot(["web", "notes"], [0.9, 0.1], [10**7, 20_000], 10**6, "repeat") == [
        900_000,
        100_000,
    ]
    assert allot(["web", "notes"], [0.9, 0.1], [10**7, 20_000], 10**6, "largest") == [
        180_000,
        20_000,
    ]
    assert [item.name for item in shortages("abc", [0.2, 0.4, 0.4], [1, 3, 9], 10)] == ["a", "b"]


def test_drawn_items_keep_shares_to_half_an_item_and_repeat_evenly():
    sizes = [[7, 11, 13] * 50, [5, 3] * 20]
    found = draw(sizes, allot(["a", "b"], [0.5, 0.5], [1550, 160], 1400, "repeat"))
    assert abs(found.tokens[0] - 700) <= 13 / 2
    assert abs(found.tokens[1] - 700) <= 5 / 2
    assert found.epochs[1] == pytest.approx(700 / 160, abs=0.02)
    times = [found.picks.count((1, item)) for item in range(40)]
    assert max(times) - min(times) == 1
    assert found == draw(sizes, [700, 700])
    assert found.picks != draw(sizes, [700, 700], seed=1).picks
    assert [s for s, _ in found.picks] != sorted(s for s, _ in found.picks)
