"""The page in a real browser: figures, languages, accessibility, hostile names."""

import json
import math
import random
import shlex
import shutil
from urllib.parse import urlencode

import pytest
from test_ui_plan import random_state
from ui_server import make_run

from onecard.cli import main
from onecard.config import load
from onecard.planner import plan
from onecard.runs.log import LogWriter
from onecard.runs.record import RunRecord

PLAN = "/plan?gpu=RTX+4070&preset=gpt2&data=fineweb-edu-10B"


def planned_run(path, steps=400, noise=0.0, step_seconds=3.9):
    """A run that logged as if it had been trained, with its plan."""
    config = load("fineweb-41M-12gb", ["max_iters=1000", "lr_decay_iters=1000", "warmup_iters=100"])
    made = plan(config, "RTX 4070")
    record = RunRecord(path)
    record.write_new(config, made, {"gpu": "RTX 4070"})
    record.begin()
    log = LogWriter(path / "log.jsonl")
    for step in range(1, steps + 1):
        loss = 3 + 7 * math.exp(-step / 100) + noise
        tokens = step * config.tokens_per_step
        log.write(
            kind="step",
            step=step,
            tokens=tokens,
            loss=loss,
            step_seconds=step_seconds,
            seconds=4.0 * step,
            memory_bytes=7e9,
            watts=190.0,
            kwh=step / 5000,
            data_wait=0.001,
            tokens_per_second=134000.0,
        )
        if step % 100 == 0:
            log.write(kind="eval", step=step, tokens=tokens, val_loss=loss, bits_per_byte=1.0)
            log.write(kind="sample", step=step, text="Once upon a time")
    log.write(kind="event", step=310, event="oom", text="halved the micro-batch at step 310")
    log.close()
    record.end("finished")


def shown(page) -> dict[str, str]:
    """The figures on the page, as the numbers behind them."""
    page.wait_for_function(
        "() => document.querySelector('.results')?.dataset.query === location.search.slice(1)"
    )
    return page.evaluate(
        "() => [...document.querySelectorAll('#answers .value')].map((e) => e.dataset.raw)"
    )


@pytest.mark.parametrize(
    "seeds",
    [range(8), pytest.param(range(8, 30), marks=pytest.mark.long)],
    ids=["some", "the rest"],
)
def test_thirty_settings_show_the_commands_figures(port, open_page, capsys, seeds):
    watched = open_page(port)
    for seed in seeds:
        state = random_state(random.Random(100 + seed))
        watched.open("/plan?" + urlencode(state))
        figures = shown(watched.page)
        command = shlex.split(watched.page.inner_text("#command"))[1:]
        capsys.readouterr()
        assert main([*command, "--json"]) == 0
        message = json.loads(capsys.readouterr().out)
        wanted = [message["memory"]["fits"], message["time"]["total_seconds"]["mid"]]
        wanted += [message["loss"]["expected"]["mid"]] if message["loss"] else []
        wanted.append(message["energy"]["cost"]["mid"])
        assert figures[0] == wanted[0]
        assert [float(figure) for figure in figures[1:]] == wanted[1:]
        bar = watched.page.evaluate(
            "() => [...document.querySelectorAll('.bar [data-bytes]')].map((e) => +e.dataset.bytes)"
        )
        assert bar == [size for size in message["memory"]["parts"].values() if size]
    watched.check()


def test_sliders_the_address_and_the_recommended_run(port, open_page):
    watched = open_page(port)
    page = watched.page
    watched.open(PLAN)
    before = shown(page)
    page.fill("#n_layer", "6")
    page.wait_for_function("() => location.search.includes('n_layer=6')")
    assert shown(page) != before
    assert "--n_layer=6" in page.inner_text("#command")
    sent = page.url
    page.click("#take", timeout=60_000)
    page.wait_for_function("() => !location.search.includes('preset=gpt2')")
    taken = shown(page)
    loss = float(page.get_attribute("#advice dl", "data-loss"))
    assert float(taken[2]) == loss
    other = open_page(port)
    other.open(sent.removeprefix(watched.address))
    assert "--n_layer=6" in (shown(other.page), other.page.inner_text("#command"))[1]
    page.fill("#n_embd", "100")
    page.fill("#n_head", "7")
    page.wait_for_selector(".notice.bad:not([hidden])")
    assert "divisible" in page.inner_text(".notice.bad")
    assert all("422" in text for text in watched.complaints)  # the browser logs what was refused


# A slider that moves at every frame until the figures have followed three times, then once more; how often it moved.
MOVES = """async () => {
  const range = document.querySelector("#n_layer").previousSibling, seen = new Set();
  const move = (layers) => { range.value = layers; range.dispatchEvent(new Event("input", { bubbles: true })); };
  let moves = 0;
  for (; seen.size < 4 && moves < 2000; moves++) {
    move(2 + moves % 38);
    await new Promise(requestAnimationFrame);
    seen.add(document.querySelector("#answers .value[data-raw*='.']").dataset.raw);
  }
  move(41);
  return moves;
}"""


def test_a_moving_slider_is_followed_without_a_flood_of_questions(port, open_page):
    watched = open_page(port)
    page = watched.page
    watched.open(PLAN)
    shown(page)
    out, most = set(), []

    def asked(request):
        if "/api/plan" in request.url:
            out.add(request)
            most.append(len(out))

    page.on("request", asked)
    for ended in ("requestfinished", "requestfailed"):
        page.on(ended, lambda request: out.discard(request))
    moves = page.evaluate(MOVES)
    shown(page)
    assert "--n_layer=41" in page.inner_text("#command")
    assert moves < 2000
    assert len(most) <= moves
    assert max(most) <= 3  # two, and one that is being given up
    # an answer that does not come holds nothing up, and is not drawn when it comes after a newer one
    late = []
    page.route(lambda url: "n_layer=7" in url, lambda route: late.append(route))
    page.fill("#n_layer", "7")
    page.fill("#n_layer", "8")
    before = shown(page)
    assert "--n_layer=8" in page.inner_text("#command")
    late[0].continue_()
    late[0].request.response()
    page.wait_for_timeout(100)
    assert shown(page) == before
    watched.check()


def test_the_card_is_found_by_keyboard_alone(port, open_page):
    watched = open_page(port)
    page = watched.page
    watched.open(PLAN)
    shown(page)
    page.focus("[role=combobox]")
    page.keyboard.type("4090 ada 24")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.search.includes('gpu=RTX+4090')")
    shown(page)
    for _ in range(2):  # from field to field: the list of choices is no stop of its own
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.role") == "combobox"
    watched.check()


@pytest.mark.parametrize(
    ("locale", "words", "number"),
    [
        ("en-GB", "What will this run need?", "3.05"),
        ("es-ES", "¿Qué necesitará esta ejecución?", "3,05"),
        ("hi-IN", "इस रन को क्या-क्या चाहिए?", "3.05"),
    ],
)
def test_three_languages_by_the_browsers_own_and_a_switch(port, open_page, locale, words, number):
    watched = open_page(port, locale=locale)
    watched.open(PLAN)
    shown(watched.page)
    assert watched.page.inner_text("h1") == words
    assert watched.page.inner_text("#answers .value >> nth=2")[:2] == number[:2]
    watched.page.select_option("#language", "es")
    watched.page.wait_for_function("() => document.documentElement.lang === 'es'")
    assert "necesitará" in watched.page.inner_text("h1")
    watched.check()


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.long)])
def test_no_serious_violation_of_accessibility(port, root, open_page, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    planned_run(root / "one")
    planned_run(root / "two", noise=0.2)
    watched = open_page(port, color_scheme=theme, bypass_csp=True)  # axe is a script of its own
    page = watched.page
    for address, ready in (
        (PLAN, "#take"),
        ("/runs?compare=one&compare=two", "#compared h2"),
        ("/runs?id=one", "#findings li"),
        ("/talk", "#generate"),
    ):
        watched.open(address)
        page.wait_for_selector(ready, timeout=60_000)
        if address == PLAN:
            page.click("details.all summary")
        found = axe.run(page).response["violations"]
        serious = [
            (each["id"], each["nodes"][0]["html"][:120])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], address


@pytest.mark.parametrize("wide", [360, 1280])
def test_nothing_is_wider_than_the_screen(port, root, open_page, wide):
    name = "a-run-with-quite-a-long-name-for-a-telephone-" + "o" * 150
    planned_run(root / name, step_seconds=0.039)  # with long labels at its axis
    planned_run(root / "two", noise=0.2)
    # Hindi has the longest words at the axes
    watched = open_page(port, viewport={"width": wide, "height": 740}, locale="hi-IN")
    for address, ready in (
        (PLAN, "#take"),
        ("/runs", "#runs a"),
        (f"/runs?id={name}", "#findings li"),
        (f"/runs?compare=two&compare={name}", "#compared h2"),
        ("/talk", "#generate"),
    ):
        watched.open(address)
        watched.page.wait_for_selector(ready, timeout=60_000)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= wide, address
        cut = "[...document.querySelectorAll('.chart svg text')].filter((t) => t.getBBox().x < 0)"
        assert watched.page.evaluate(f"{cut}.map((t) => t.textContent)") == [], address
    watched.check()


def test_a_run_against_its_plan_with_zoom_and_downloads(port, root, open_page):
    planned_run(root / "one")
    watched = open_page(port)
    page = watched.page
    watched.open("/runs?id=one")
    page.wait_for_selector('#loss [data-series="train"]')
    assert page.locator("#loss [data-band]").count() >= 1  # what its plan expects
    assert "halved the micro-batch" in page.inner_text(".events >> nth=1")
    assert page.locator("#findings li").count() > 0
    page.select_option("#loss select", "hours")
    page.wait_for_function("() => location.search.includes('x=hours')")
    box = page.locator("#loss svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    assert page.locator("#loss .tip").is_visible()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 50)
    page.mouse.up()
    page.wait_for_selector("#loss button:not([hidden])")
    with page.expect_download() as csv:
        page.click("#loss button:text('CSV')")
    lines = csv.value.path().read_text().splitlines()
    assert len(lines) > 100
    with page.expect_download() as png:
        page.click("#loss button:text('PNG')")
    assert png.value.path().read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    page.check("#loss label:has-text('log x') input")
    page.focus("#loss svg")
    for key in "++----------":
        page.keyboard.press(key)
    page.wait_for_selector("#loss button:text('Whole run')", state="hidden")
    watched.check()  # no coordinate that is none


def test_a_page_says_when_its_run_or_the_server_is_gone(port, root, open_page):
    make_run(root / "one")
    make_run(root / "two")
    watched = open_page(port)
    page = watched.page
    watched.open("/runs?id=two")
    page.wait_for_selector("#facts .value")
    shutil.rmtree(root / "two")
    page.wait_for_selector(".notice.bad:not([hidden])")
    assert "no run 'two' here" in page.inner_text(".notice.bad:not([hidden])")
    watched.open("/runs")
    row = page.wait_for_selector("#runs [data-run=one]")
    page.check("#runs [data-run=one] input")
    page.context.set_offline(True)
    page.route("**/api/runs/live", lambda route: route.abort())  # not even the same machine answers
    page.evaluate("() => dispatchEvent(new PopStateEvent('popstate'))")
    page.wait_for_selector(".notice.bad:not([hidden])")
    assert "onecard ui" in page.inner_text(".notice.bad:not([hidden])")
    page.context.set_offline(False)
    page.unroute("**/api/runs/live")
    page.wait_for_selector(".notice.bad", state="hidden")
    # new figures come into the row that is there: a click that has begun is not lost
    row = page.wait_for_selector("#runs [data-run=one]")
    with (root / "one" / "log.jsonl").open("a") as log:
        log.write('{"kind": "step", "step": 777, "loss": 3.0, "seconds": 1.0}\n')
    page.wait_for_selector("#runs [data-run=one]:has-text('777')")
    assert row.evaluate("(node) => node.isConnected && node.querySelector('input').checked")


def test_hostile_names_and_logs_run_nothing(port, root, open_page):
    bad = "<img src=x onerror='document.title=1337'>"
    make_run(root / bad.replace("/", ""))
    (root / "log").mkdir()
    watched = open_page(port)
    page = watched.page
    watched.open("/runs")
    page.wait_for_selector("#runs a")
    assert page.inner_text("#runs a") == bad
    page.click("#runs a")
    page.wait_for_selector(".events li")
    log = "\n".join(f"iter {i}: loss 5.0, time 100.00ms, mfu 10.00%" for i in range(30))
    watched.open("/runs")
    page.set_input_files(
        "input[type=file]",
        {"name": bad + ".log", "mimeType": "text/plain", "buffer": log.encode()},
    )
    page.wait_for_selector("#facts")
    assert page.locator("img[src=x]").count() == 0
    assert "1337" not in page.title()
    watched.check()
