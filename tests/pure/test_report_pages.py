"""Markdown, HTML and SVG: well formed, self-contained, safe against untrusted names, every figure there."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_plans import plan_4070, plan_tiny, plan_too_large

from onecard.messages import T
from onecard.report import language, show, svg
from onecard.report.document import (
    Column,
    Document,
    Figure,
    Figures,
    Level,
    LineChart,
    Notes,
    Part,
    Quantity,
    Section,
    Series,
    StackedBar,
    Table,
)
from onecard.report.plan_view import plan_document
from onecard.units import show_duration

VOID = {"meta", "br", "hr", "img", "link"}
HOSTILE = "<script>alert(1)</script> | `x` [a](http://b) \"quoted\" & 'so' _on_"


class Tags(HTMLParser):
    """Tags must close in order; every tag and attribute is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("plan", [plan_4070, plan_too_large, plan_tiny])
def test_the_page_is_whole_and_alone(plan, lang: str) -> None:  # type: ignore[no-untyped-def]
    page = show(plan_document(plan(), explain=True), "html", lang)
    tags = parsed(page)
    assert {"svg", "table", "h1", "h2", "style", "title"} <= tags.seen
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "embed"}
    assert not [
        value for name, value in tags.attributes if name in ("src", "href", "srcset", "data")
    ]
    assert "url(" not in page
    assert "@import" not in page
    assert f'<html lang="{lang}">' in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    bad = plan is plan_too_large
    assert ('<td class="value bad">' in page) == bad


def test_untrusted_names_stay_names() -> None:
    hostile = Document(
        title=HOSTILE,
        subtitle=T("{card}", card=HOSTILE),
        headline=(Figure(HOSTILE, HOSTILE, note=HOSTILE),),
        sections=(
            Section(
                HOSTILE,
                (
                    Figures((Figure(HOSTILE, HOSTILE, formula=HOSTILE),)),
                    Table((Column(HOSTILE), Column("n")), ((HOSTILE, Quantity(1, "int")),), bar=1),
                    StackedBar(
                        (Part(HOSTILE, Quantity(1, "bytes")),),
                        Quantity(2, "bytes"),
                        HOSTILE,
                        Quantity(1, "bytes"),
                        HOSTILE,
                        HOSTILE,
                    ),
                    LineChart(
                        HOSTILE,
                        (Series(HOSTILE, ((1, 2), (2, 1))),),
                        HOSTILE,
                        HOSTILE,
                        levels=(Level(HOSTILE, 1.5),),
                    ),
                    Notes((HOSTILE,)),
                ),
            ),
        ),
        summary=(HOSTILE,),
    )
    assert "script" not in parsed(show(hostile, "html", "en")).seen
    markdown = show(hostile, "markdown", "en")
    assert "<script>" not in re.sub(r"`[^`]*`", "", markdown).replace("\\<", "")
    for line in markdown.splitlines():
        if line.startswith("|"):  # a bar in a name must not make a column
            assert len(re.findall(r"(?<!\\)\|", line)) in (2, 3, 4)


CHANGES = Table(
    (Column("key"), Column("small", breaks=True), Column("wide", breaks=True), Column("effect")),
    (("learning_rate", "0.001", "0.0003", "changes how fast it learns, not how fast it runs"),),
)


def test_figures_stay_whole_and_sentences_have_room_on_a_narrow_page() -> None:
    """Where names may be broken, numbers are not; a sentence at the end of a row gets a line of its own."""
    page = show(Document(T("x"), (Section(T("y"), (CHANGES,)),)), "html", lang="en")
    assert '<td class="short">0.001</td>' in page
    assert '<td class="short">0.0003</td>' in page
    assert '<td class="long">changes how fast' in page
    assert '<table class="worded">' in page
    assert 'class="breaks"' not in page
    endless = replace(CHANGES, rows=(("out_dir", "a" * 60, "0.0003", "no effect"),))
    page = show(Document(T("x"), (Section(T("y"), (endless,)),)), "html", lang="en")
    assert '<td class="breaks">aaa' in page
    assert "worded" not in page.split("</style>")[1]


def test_commands_are_set_as_code_and_their_options_stay_whole() -> None:
    note = T("`{command}` or --out FILE", command="onecard data <x> --tokens 3B")
    document = Document(T("x"), (Section(T("y"), (Notes((note,)),)),), footer=note)
    page = show(document, "html", lang="en")
    code = (
        '<code class="typed">onecard data &lt;x&gt; <span class="opt">--tokens</span> 3B</code>'
        ' or <span class="opt">--out</span> FILE'
    )
    assert page.count(code) == 2
    assert "`" not in page.split("</style>")[1]


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
def test_charts_are_well_formed_and_spoken(lang: str) -> None:
    speech = language(lang)
    parts = tuple(Part(f"part {n}", Quantity(n * 2**30, "bytes")) for n in range(1, 8))
    drawn = [
        svg.stacked_bar(
            StackedBar(
                parts,
                Quantity(12 * 2**30, "bytes"),
                "card",
                Quantity(28 * 2**30, "bytes"),
                "all",
                "m",
            ),
            speech,
        ),
        svg.line_chart(
            LineChart(
                "c",
                (
                    Series("a", ((1, 5), (10, 4), (1000, 3)), ((1, 4, 6), (1000, 2, 4))),
                    Series("b", ((1, 4.0), (1000, 2.0))),
                ),
                "x",
                "y",
                log_x=True,
            ),
            speech,
        ),
        svg.line_chart(LineChart("one point", (Series("a", ((5, 5),)),), "x", "y"), speech),
        svg.mini_bar(0.5, True),
    ]
    for drawing in drawn[:-1]:
        root = ET.fromstring(drawing)
        assert root.get("role") == "img"
        assert root.find("{*}title") is not None
        assert root.find("{*}desc") is not None
        numbers = re.findall(r'(?:x|width)="(-?[\d.]+)"', drawing)
        assert all(-1 <= float(number) <= svg.WIDTH + 1 for number in numbers)
        assert "nan" not in drawing
    ET.fromstring(drawn[-1])


def test_a_logarithmic_axis_is_marked_at_powers_of_ten() -> None:
    assert svg.log_ticks(1, 1000) == [1, 10, 100, 1000]
    assert svg.log_ticks(2, 120) == [10, 100]
    assert svg.log_ticks(2, 50) == [2, 50]


def test_the_stacked_bar_is_to_scale() -> None:
    """A part of 3 GiB on a card of 12 is a quarter of the drawing."""
    chart = StackedBar(
        (Part("a", Quantity(3 * 2**30, "bytes")), Part("b", Quantity(6 * 2**30, "bytes"))),
        Quantity(12 * 2**30, "bytes"),
        "card",
        Quantity(9 * 2**30, "bytes"),
        "all",
        "m",
    )
    drawing = ET.fromstring(svg.stacked_bar(chart, language("en")))
    rects = [rect for rect in drawing.findall("{*}rect") if rect.get("y") == "4"]
    assert [float(rect.get("width") or 0) / svg.WIDTH for rect in rects] == pytest.approx(
        [0.25, 0.5], abs=0.002
    )
    assert float(rects[1].get("x") or 0) == pytest.approx(svg.WIDTH / 4, abs=0.1)
    caption = next(text for text in drawing.findall("{*}text") if "card" in (text.text or ""))
    assert caption.get("text-anchor") == "end"
    assert float(caption.get("x") or 0) < svg.WIDTH


@pytest.mark.parametrize(
    ("low", "high"), [(3.52, 5.2), (0, 20_000), (1e-9, 2e-9), (2.9, 2.9), (-5, 5)]
)
def test_ticks_are_round_and_cover(low: float, high: float) -> None:
    found = svg.ticks(low, high, 5)
    assert found[0] <= low
    assert found[-1] >= high - 1e-12
    assert 1 <= len(found) <= 8
    assert svg.ticks(0, 5, 5) == [0, 1, 2, 3, 4, 5]  # a step that is just right is taken


def test_markdown_tables_are_even() -> None:
    """Each table's rows have as many cells as its head, in every language."""
    for lang in ("en", "es", "hi"):
        for table in show(plan_document(plan_too_large(), explain=True), "markdown", lang).split(
            "\n\n"
        ):
            lines = [line for line in table.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1


def test_the_plan_holds_every_answer() -> None:
    """Every item the plan must answer is in the report, by its figure."""
    plan = plan_4070()
    shown = show(plan_document(plan), "markdown", "en")
    for figure in (
        "524,288",
        "10.49 B",
        "40,953,216",
        "40.56 M",
        "21.24 M",
        "2.55 × 10¹⁸",
        "2.85",
        "0.25 EUR",
        "312 TFLOPS",
        show_duration(plan.time.compile_seconds),
        f"{plan.loss.expected.mid:.2f}",
        f"{plan.energy.kwh.mid:.1f} kWh",
        f"{plan.mfu.card.mid:.0%}",
        f"{plan.mfu.nanogpt.mid:.1%}",
    ):
        assert figure in shown, figure
    for row in plan.time.what_if:
        assert f"{row.total_seconds / 3600:,.1f}" in shown
    for run in plan.known_runs:
        assert run.name in shown.replace("\\", "")
    for note in (*plan.warnings, plan.loss.beats_gpt2):
        assert str(note) in shown.replace("\\", "")


def test_a_long_section_is_not_set_beside_a_short_one() -> None:
    """In two columns half of the page would stay empty below the short one."""

    def rows(number: int) -> Figures:
        return Figures(tuple(Figure(f"row {row}", "1") for row in range(number)))

    def page(*heights: int) -> str:
        sections = tuple(Section(f"s{number}", (rows(number),)) for number in heights)
        return show(Document("d", sections=sections), "html", "en")

    assert '<div class="sections">' in page(6, 12)
    assert '<div class="sections">' in page(7, 40, 10, 20)
    uneven = page(6, 40)
    assert '<div class="sections">' not in uneven
    assert uneven.count('<section class="wide">') == 2
