"""The terminal view: nothing wider than the terminal, frames closed, colour only where wanted, ASCII where it must be."""

import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_plans import plan_4070, plan_tiny, plan_too_large

from onecard.errors import UserError
from onecard.messages import T
from onecard.report import show, wants_color
from onecard.report.document import (
    Column,
    Document,
    Figure,
    Figures,
    Level,
    LineChart,
    Notes,
    Paragraph,
    Part,
    Quantity,
    Section,
    Series,
    StackedBar,
    Table,
)
from onecard.report.plan_view import plan_document

PLANS = {"fits": plan_4070, "too large": plan_too_large, "tiny": plan_tiny}


def cells(line: str) -> int:
    """Columns on a terminal, as glibc's wcwidth and tmux count: marks that do not space take none."""
    return sum(
        0
        if unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in line
    )


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("width", [60, 80, 119, 120, 140])
def test_frames_close_and_nothing_is_wider_than_the_terminal(plan, lang: str, width: int) -> None:
    shown = show(
        plan_document(plan(), explain=width == 80),
        lang=lang,
        width=width,
        color=False,
        encoding="utf-8",
    )
    for line in shown.splitlines():
        assert cells(line) <= width
        if line[:1] in "│╭╰":
            assert line[-1] in "│╮╯"
            if line.count("│") != 2 or width < 120:
                assert cells(line) in (width, (width - 1) // 2)
    assert "{" not in shown
    assert not re.search("[\ue000-\uf8ff]", shown), "a stand-in was left behind"


def test_values_of_the_headline_stand_beside_each_other_where_a_label_is_wrapped() -> None:
    figures = (
        Figure(T("a label of so many words that it takes more than one line"), Quantity(1, "int")),
        Figure(T("short"), Quantity(2, "int"), note=T("a note")),
    )
    lines = show(Document(T("t"), (), headline=figures), width=50, color=False).splitlines()
    assert [line for line in lines if re.search(r"│ +1 +│ +2 +│", line)]
    assert [line for line in lines if re.search(r"│ +│ +a note +│", line)]


@pytest.mark.parametrize(("value", "aligned"), [("none", "left"), (Quantity(7, "int"), "right")])
def test_words_begin_and_numbers_end_below_each_other(value, aligned) -> None:
    rows = (Figure(T("first"), T("of six words")), Figure(T("second"), value))
    text = show(Document(T("t"), (Section(T("s"), (Figures(rows),)),)), width=80, color=False)
    first, second = (line for line in text.splitlines() if "first" in line or "second" in line)
    if aligned == "left":
        assert first.index("of six") == second.index("none")
    else:
        assert first.index("words") + len("words") == second.index("7") + 1


def test_two_columns_only_where_there_is_room() -> None:
    document = plan_document(plan_4070())
    narrow, wide = (
        show(document, lang="en", width=w, color=False, encoding="utf-8") for w in (119, 120)
    )
    assert any(line.count("╭") == 2 for line in wide.splitlines())
    assert all(line.count("╭") < 2 for line in narrow.splitlines())
    assert len(wide.splitlines()) < len(narrow.splitlines()) * 0.8


def test_colour_changes_nothing_but_colour() -> None:
    document = plan_document(plan_too_large(), explain=True)
    plain = show(document, lang="en", width=80, color=False, encoding="utf-8")
    coloured = show(document, lang="en", width=80, color=True, encoding="utf-8")
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    stripped = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    letters = [
        re.sub("[█▓▒░▞▤▪◦]", "#", "\n".join(map(str.rstrip, text.splitlines())))
        for text in (plain, stripped)
    ]
    assert letters[0] == letters[1]


def test_a_terminal_without_unicode_gets_ascii() -> None:
    for lang in ("en", "es"):
        shown = show(
            plan_document(plan_4070(), explain=True),
            lang=lang,
            width=80,
            color=False,
            encoding="ascii",
        )
        assert shown.isascii()
        assert (
            "?"
            not in shown.replace("fit?", "")
            .replace("long?", "")
            .replace("expect?", "")
            .replace("cost?", "")
            or lang == "es"
        )
        assert "10^18" in shown
        assert max(map(len, shown.splitlines())) <= 80


def test_hindi_is_refused_where_it_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    document = plan_document(plan_4070())
    with pytest.raises(UserError, match="हिन्दी") as caught:
        show(document, lang="hi", encoding="cp1252")
    assert caught.value.hint
    monkeypatch.setenv("LC_ALL", "hi_IN")
    assert "What this run needs" in show(document, encoding="ascii", color=False)


def test_no_colour_in_a_pipe_or_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_color()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False, raising=False)
    assert not wants_color()


def test_explain_puts_the_formula_under_its_figure() -> None:
    plan = plan_4070()
    shown = show(
        plan_document(plan, explain=True), lang="en", width=140, color=False, encoding="utf-8"
    )
    words = re.sub(r"[│\s]+", " ", shown)
    for path in (
        "params.total",
        "memory.allocated_bytes",
        "tokens.per_step",
        "mfu.card",
        "energy.kwh",
    ):
        assert plan.formulas[path].split()[0] in words, path
    assert (
        "= "
        not in show(plan_document(plan), lang="en", width=140, color=False, encoding="utf-8").split(
            "Warnings"
        )[0]
    )


def every_block(text: str, value: float) -> Document:
    number = Quantity(value, ",.2f", "GiB")
    return Document(
        title=text,
        headline=(Figure(text, number, (number, number), note=text, tone="bad"),),
        sections=(
            Section(
                text,
                (
                    Figures((Figure(text, number, note=text, formula=text),)),
                    Table(
                        (Column(text), Column(text, "right")),
                        ((text, number), (text, number)),
                        marked=(1,),
                        bar=1,
                    ),
                    StackedBar(
                        (Part(text, number), Part(text, number)),
                        Quantity(value * 1.5, "bytes"),
                        text,
                        Quantity(value * 2, "bytes"),
                        text,
                        text,
                    ),
                    LineChart(
                        text,
                        (
                            Series(text, ((1, value), (10, value / 2), (100, value / 3))),
                            Series(text, ((1, 1.0),)),
                        ),
                        text,
                        text,
                        log_x=True,
                        levels=(Level(text, 2.0),),
                    ),
                    Paragraph(text),
                    Notes((text, T("{x:percent} of it", x=0.5)), "bad"),
                ),
            ),
        ),
        summary=(text, text),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.text(
        st.characters(exclude_categories=("Cc", "Cs", "Co", "Cf", "Zl", "Zp", "Mn", "Me", "Mc")),
        max_size=60,
    ),
    st.floats(1e-6, 1e15),
    st.sampled_from([40, 80, 140]),
)
def test_any_words_are_laid_out(text: str, value: float, width: int) -> None:
    document = every_block(text, value)
    for encoding in ("utf-8", "ascii"):
        shown = show(document, lang="en", width=width, color=False, encoding=encoding)
        assert shown.endswith("\n")
    for form in ("markdown", "html"):
        assert show(document, form, lang="es")


def test_a_plan_that_does_not_fit_says_so_first() -> None:
    shown = show(
        plan_document(plan_too_large()), lang="en", width=80, color=False, encoding="utf-8"
    )
    assert "✗ does not fit" in "\n".join(shown.splitlines()[:6])
    assert "▲ the card has" in shown
