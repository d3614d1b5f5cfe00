"""The report in a real browser, where there is one: it lays out, fetches nothing, shapes Devanagari, prints."""

import json
import os
import re
import shutil
import subprocess
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

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

PROBE = """<script>addEventListener("load", () => {
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
  document.title = JSON.stringify({wide, over, texts, asked, cut, full, ink: getComputedStyle(document.body).backgroundColor});
});</script>"""


def chromium(*words: str) -> str:
    assert CHROMIUM is not None
    sandbox = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    run = subprocess.run(
        [CHROMIUM, "--headless", "--disable-gpu", "--hide-scrollbars", *sandbox, *words],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def page(tmp_path: Path, lang: str, probe: bool = True) -> Path:
    text = show(plan_document(plan_4070(), explain=True), "html", lang)
    if probe:  # the page itself forbids scripts: the probe goes into a copy that allows them
        text = re.sub("<meta http-equiv=[^\n]*\n", "", text).replace("</head>", PROBE + "</head>")
    path = tmp_path / f"{lang}.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("lang", ["en", "es", "hi"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_and_nothing_is_fetched(tmp_path: Path, lang: str, width: int) -> None:
    shown = chromium("--dump-dom", f"--window-size={width},1200", page(tmp_path, lang).as_uri())
    title = re.search("<title>(.*?)</title>", shown)
    assert title is not None
    assert '"wide":0' in title[1].replace("&quot;", '"')
    assert '"over":0' in title[1]
    assert '"texts":0' in title[1], "a chart's words leave its frame"
    assert '"asked":0' in title[1]


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("name", ["compare", "can"])
def test_tables_stay_in_their_cards_and_no_half_page_is_empty(
    tmp_path: Path, name: str, width: int
) -> None:
    text = show(_document(name, tmp_path), "html", "es")
    text = re.sub("<meta http-equiv=[^\n]*\n", "", text).replace("</head>", PROBE + "</head>")
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    shown = chromium("--dump-dom", f"--window-size={width},1200", path.as_uri())
    title = re.search("<title>(.*?)</title>", shown)
    assert title is not None
    seen = json.loads(title[1].replace("&quot;", '"'))
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


def test_dark_is_dark(tmp_path: Path) -> None:
    path = page(tmp_path, "en")
    grounds = set()
    for scheme in ("0", "1"):
        shown = chromium(
            "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}", path.as_uri()
        )
        grounds |= set(re.findall(r'"ink":"(rgb[^"]*)"', shown))
    assert grounds == {"rgb(15, 19, 23)", "rgb(246, 247, 249)"}


def test_it_prints(tmp_path: Path) -> None:
    path = page(tmp_path, "hi", probe=False)
    pdf = tmp_path / "hi.pdf"
    chromium("--no-pdf-header-footer", f"--print-to-pdf={pdf}", path.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 1 <= pages <= 8
