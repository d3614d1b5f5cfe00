"""Pictures of the page for the README: Plan, and a run that is being trained while the picture is taken.

python tools/page_pictures.py      # needs Chromium and the extras train, ui, test; writes docs/images/page-*.png
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
PLAN = "plan?gpu=RTX+4070&preset=gpt2&data=fineweb-edu-10B&hours=40"
TRAINED = (
    "n_layer=2 n_head=4 n_embd=64 block_size=64 batch_size=8 gradient_accumulation_steps=1 max_iters=3000 "
    "eval_interval=100 eval_iters=20 learning_rate=3e-3 compile=False device=cpu dataset=stdlib out_dir=first-try"
)


def picture(page: Any, name: str) -> None:
    target = IMAGES / name
    page.screenshot(path=target)
    print(target)


def main() -> int:
    from playwright.sync_api import sync_playwright

    browser_file = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_file is None:
        print("no Chromium here: the pictures were left as they are", file=sys.stderr)
        return 2
    onecard = [sys.executable, "-m", "onecard"]
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        root = Path(place) / "my-runs"
        root.mkdir()
        subprocess.run(
            [*onecard, "data", "stdlib", "--tokens", "400K", "--tokenizer", "bytes"],
            cwd=root,
            check=True,
        )
        words = [f"--{word}" for word in TRAINED.split()]
        alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # a tiny model is not faster with more
        training = subprocess.Popen([*onecard, "train", *words, "--quiet"], cwd=root, env=alone)
        server = subprocess.Popen(
            [*onecard, "ui", "--port", "0", "--no-browser", "--json"],
            cwd=root,
            stdout=subprocess.PIPE,
        )
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["url"]
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=browser_file, args=sandbox)
        try:
            size: Any = {"width": 1240, "height": 1080}
            page = browser.new_page(viewport=size, locale="en-GB", device_scale_factor=1.5)
            page.goto(address + PLAN)
            page.wait_for_selector("#take", timeout=60_000)
            page.wait_for_function(  # the curve's points come one by one
                "() => document.querySelectorAll('.two circle').length >= 8", timeout=120_000
            )
            picture(page, "page-plan.png")
            page.goto(address + "runs?id=first-try")
            page.wait_for_function(
                "() => +document.querySelector('#facts [data-key=step]')?.textContent.replace(/\\D/g, '') > 400",
                timeout=600_000,
            )
            page.wait_for_timeout(6000)
            picture(page, "page-run.png")
        finally:
            browser.close()
            for process in (server, training):
                process.terminate()
                process.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
