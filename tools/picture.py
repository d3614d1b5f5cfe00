"""Pictures for the README: `onecard plan` and `onecard go` in a terminal as SVG, reports as PNG where Chromium is installed.

python tools/picture.py        # writes docs/images/plan.svg and go.svg and, with Chromium, docs/images/report.png;
                               # after `make demo`, docs/images/demo-report.png too
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from onecard.cli.stages import page_of
from onecard.config import load
from onecard.planner import plan
from onecard.report import shortened, show
from onecard.report.document import Document
from onecard.report.plan_view import plan_document

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
COMMAND = 'onecard plan fineweb-41M-12gb --gpu "RTX 4070" --data 3.68B'
GO = ["go", "--hours", "0.25", "--data", "stdlib", "--out", "my-first-gpt", "--dry-run"]
WIDTH = 100


def terminal(command: str, text: str) -> str:
    """The view as rich draws terminals, with fonts every machine has instead of one from the network."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(f"\x1b[1m$\x1b[0m {command}\n\n{text.rstrip()}"))
    picture = console.export_svg(title=" ".join(command.split()[:2]))
    while "@font-face" in picture:
        start = picture.index("@font-face")
        picture = picture[:start] + picture[picture.index("}", start) + 1 :]
    return picture.replace("Fira Code", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas")


def page(html: str, target: Path) -> bool:
    """A screenshot of the report; False where no browser is."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return False
    root = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "report.html"
        source.write_text(html, encoding="utf-8")
        subprocess.run(
            [
                browser,
                "--headless",
                "--disable-gpu",
                "--hide-scrollbars",
                *root,
                "--window-size=1280,1500",
                f"--screenshot={target}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
        )
    return True


def document() -> Document:
    started = datetime(2026, 3, 13, 9, 30)
    return plan_document(plan(load("fineweb-41M-12gb"), "RTX 4070", data="3.68B", now=started))


def plan_picture() -> str:
    view = show(shortened(document()), "terminal", "en", WIDTH, True, "utf-8")
    return terminal(COMMAND, view)


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    (IMAGES / "plan.svg").write_text(plan_picture(), encoding="utf-8")
    os.environ["COLUMNS"] = str(WIDTH)
    (IMAGES / "go.svg").write_text(
        terminal(shlex.join(["onecard", *GO[:-1]]), page_of(GO)), encoding="utf-8"
    )
    if not page(show(document(), "html", "en"), IMAGES / "report.png"):
        print("no Chromium here: docs/images/report.png was left as it is", file=sys.stderr)
    demo = Path("onecard-demo/comparison.html")  # what `make demo` writes
    if demo.is_file():
        page(demo.read_text(encoding="utf-8"), IMAGES / "demo-report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
