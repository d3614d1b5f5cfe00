"""The report in a real browser, where there is one: it lays out, fetches nothing, shapes Devanagari, prints."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
from report_plans import plan_4070

from onecard.advise.can import can
from onecard.planner import resolve_device
from onecard.report import show
from onecard.report.can_view import can_document
from onecard.report.compare_view import compare_document
from onecard.report.document import Document
from onecard.report.plan_view import plan_document
from onecard.runs.compare import compare
from onecard.runs.figures import figures
from onecard.runs.read import read_runs

# What is laid out where, and what the page asked for; the browser runs it beside the page, which itself forbids scripts.
PROBE = """() => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  const over = [...document.querySelectorAll("section, .headline div")].filter(e => e.scrollWidth > e.clientWidth + 1).length;
  const texts = [...document.querySelectorAll("svg.chart")].filter(s => {
    const box = s.getBoundingClientRect();
    return [...s.querySelectorAll("text")].some(t => { const b = t.getBoundingClientRect();
      return b.left < box.left - 2 || b.right > box.right + 2; });
  }).length;
  const cut = [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth + 1).length;
  const boxes = [...document.querySelectorAll("section")].map(e => e.getBoundingClientRect());
  const area = boxes.reduce((sum, b) => sum + b.width * b.height, 0);
  const tall = Math.max(...boxes.map(b => b.bottom)) - Math.min(...boxes.map(b => b.top));
  const full = area / (tall * document.querySelector("main").clientWidth);
  const asked = performance.getEntriesByType("resource").length;
  return {wide, over, texts, asked, cut, full, ink: getComputedStyle(document.body).backgroundColor};
}"""


@pytest.fixture
def opened(browser, tmp_path):
    """A document in the browser, as the file that the command writes."""
    contexts = []

    def opened(document: Document, lang: str, width: int = 1280, scheme: str = "light"):
        path = tmp_path / f"{lang}.html"
        path.write_text(show(document, "html", lang), encoding="utf-8")
        viewport = {"width": width, "height": 1200}
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme))
        page = contexts[-1].new_page()
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


def planned() -> Document:
    return plan_document(plan_4070(), explain=True)


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_and_nothing_is_fetched(opened, lang: str, width: int) -> None:
    seen = opened(planned(), lang, width).evaluate(PROBE)
    assert seen["wide"] == seen["over"] == seen["asked"] == 0
    assert seen["texts"] == 0, "a chart's words leave its frame"


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("name", ["compare", "can"])
def test_tables_stay_in_their_cards_and_no_half_page_is_empty(
    opened, tmp_path: Path, name: str, width: int
) -> None:
    seen = opened(_document(name, tmp_path), "es", width).evaluate(PROBE)
    assert seen["wide"] == seen["over"] == seen["texts"] == 0
    if width >= 800:  # a phone scrolls a wide table inside its card
        assert seen["cut"] == 0
        assert seen["full"] > 0.75


def _document(name: str, folder: Path) -> Document:
    if name == "can":
        return can_document(can("gpt2-xl", "RTX 4070", utilization=0.9))
    from run_logs import small_run, wide_run

    logs = {"small": small_run(), "a-much-wider-model": wide_run()}
    for log, text in logs.items():
        (folder / f"{log}.log").write_text(text, encoding="utf-8")
    card = resolve_device("RTX 4070")
    runs = [figures(read_runs(str(folder / f"{log}.log"))[-1], card) for log in logs]
    return compare_document(compare(runs))


def test_dark_is_dark(opened) -> None:
    grounds = {
        scheme: opened(planned(), "en", scheme=scheme).evaluate(PROBE)["ink"]
        for scheme in ("dark", "light")
    }
    assert grounds == {"dark": "rgb(15, 19, 23)", "light": "rgb(246, 247, 249)"}


def test_it_prints(opened) -> None:
    printed = opened(planned(), "hi").pdf()
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8
