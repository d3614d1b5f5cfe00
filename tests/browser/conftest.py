"""A real Chromium, where one is installed, driven by Playwright; elsewhere these tests are skipped with a word."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))

from ui_server import running

from onecard.ui.settings import Settings

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (found := shutil.which(name))
    ),
    None,
)


@pytest.fixture(scope="module")
def browser():
    """One for a file: while Playwright is open its event loop runs, in which tests of other files cannot start theirs."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    root = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=root)
        yield opened
        opened.close()


class Watched:
    """A page, what it complained of, and what it asked for."""

    def __init__(self, page, port: int):
        self.page = page
        self.address = f"http://127.0.0.1:{port}"
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: str) -> None:
        self.page.goto(self.address + path)

    def check(self) -> None:
        """No error in the console, no request that leaves the machine."""
        assert self.complaints == []
        foreign = [url for url in self.asked if not url.startswith((self.address, "blob:"))]
        assert foreign == []


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(port: int, **options) -> Watched:
        context = browser.new_context(**{"locale": "en-GB", **options})
        context.set_default_timeout(30_000)
        contexts.append(context)
        return Watched(context.new_page(), port)

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.fixture
def port(root):
    with running(Settings(root=root, control=True, device="cpu")) as number:
        yield number
