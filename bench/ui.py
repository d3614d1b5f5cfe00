"""The page, measured: time to the first page, a change of the plan and the recommended run, a log line's way to its point on
the page, the server's memory, a run of a million lines.

python bench/ui.py [--runs 100 --lines 100000 --million] [--json] [--save]      # --million 50000 tries it; --save: bench/results/ui-DATE.json

Needs Chromium and the extras `ui` and `test`. Beside the times stands what the same machine takes to open an empty page, so that
a busy machine shows.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from onecard.config import load
from onecard.planner import plan
from onecard.runs.record import RunRecord

CHROMIUM = next((f for n in ("chromium", "google-chrome") if (f := shutil.which(n))), None)


def step_line(step: int) -> str:
    values = {
        "kind": "step",
        "step": step,
        "tokens": step * 524288,
        "loss": round(3 + 7 / (1 + step / 200), 4),
        "lr": 6e-4,
        "step_seconds": 3.9,
        "tokens_per_second": 134433.0,
        "mfu": 0.69,
        "grad_norm": 0.41,
        "data_wait": 0.001,
        "epoch": 0.1,
        "micro_batch": 16,
        "memory_bytes": 7000000000,
        "watts": 196.0,
        "kwh": step / 5000,
        "seconds": 4.0 * step,
    }
    return json.dumps(values) + "\n"


def make_runs(root: Path, runs: int, lines: int) -> None:
    config = load("fineweb-41M-12gb", [f"max_iters={lines}", f"lr_decay_iters={lines}"])
    made = plan(config, "RTX 4070")
    text = "".join(step_line(step) for step in range(1, lines + 1))
    for number in range(runs):
        record = RunRecord(root / f"run-{number:03}")
        record.write_new(config, made, {"gpu": "RTX 4070"})
        record.begin()
        (record.path / "log.jsonl").write_text(text)
        record.end("finished")


class Server:
    """`onecard ui` in a process of its own."""

    def __init__(self, root: Path):
        words = ["-m", "onecard", "ui", str(root), "--port", "0", "--no-browser", "--json"]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["url"]
        self.start_seconds = time.perf_counter() - began

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(found.split()[1]) * 1024

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=120) as answer:
            return json.load(answer)

    def seconds(self, path: str, rounds: int = 15) -> float:
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            self.get(path)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def first_page(browser: Any, address: str, rounds: int = 5) -> dict[str, float]:
    """Until the plan's figures stand on the page, each time in a new browser profile; and an empty page beside it."""
    ours: list[float] = []
    empty: list[float] = []
    for _ in range(rounds):
        for place, times in (
            ("about:blank", empty),
            (address + "plan?gpu=RTX+4070&preset=gpt2", ours),
        ):
            context = browser.new_context()
            page = context.new_page()
            began = time.perf_counter()
            page.goto(place)
            if place != "about:blank":
                page.wait_for_selector("#answers .value")
            times.append(time.perf_counter() - began)
            context.close()
    return {"page": statistics.median(ours), "empty_page": statistics.median(empty)}


# In the page itself: from the input event until the figures of the new question stand there; and of that what passed before
# the request went out, in the request, and after it.
_CHANGE = """async ([layers, place, path]) => {
  const box = document.querySelector("#n_layer");
  performance.clearResourceTimings();
  const began = performance.now();
  box.value = layers;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  for (;;) {
    await new Promise(requestAnimationFrame);
    if (document.querySelector(place)?.dataset.query === location.search.slice(1)) break;
  }
  const end = performance.now();
  const asked = performance.getEntriesByType("resource").filter((entry) => new URL(entry.name).pathname === path).at(-1);
  return [end - began, asked.startTime - began, asked.responseEnd - asked.startTime, end - asked.responseEnd].map((t) => t / 1000);
}"""


def planner_changes(page: Any, place: str, layers: range, pause: float) -> dict[str, float]:
    """Seconds from an input event until the page shows its answer: `.results` the plan's, `#advice` the recommended run's."""
    path = "/api/plan" if place == ".results" else "/api/recommend"
    times = []
    for number in layers:
        times.append(page.evaluate(_CHANGE, [number, place, path]))
        time.sleep(pause)  # 0: the next change comes while the curve of the last is being computed
    whole, before, request, after = (list(column) for column in zip(*times, strict=True))
    parts = {"before_request": before, "request": request, "after": after}
    medians = {name: statistics.median(part) for name, part in parts.items()}
    return {"median": statistics.median(whole), "worst": max(whole), **medians}


def planner(browser: Any, address: str) -> dict[str, Any]:
    page = browser.new_page()
    page.goto(address + "plan?gpu=RTX+4070&preset=gpt2&data=fineweb-edu-10B")
    page.wait_for_selector("#advice dl", timeout=60_000)
    found = {
        "plan": planner_changes(page, ".results", range(3, 23), 0.3),
        "plan_at_once": planner_changes(page, ".results", range(4, 24), 0.0),
        "recommend": planner_changes(page, "#advice", range(24, 39), 0.3),
    }
    page.close()
    return found


def line_to_point(
    browser: Any, server: Server, root: Path, run: str, last: int, rounds: int = 12
) -> list[float]:
    """Seconds from a line written to its step on the run's page."""
    page = browser.new_page()
    log = root / run / "log.jsonl"
    page.goto(f"{server.address}runs?id={run}")
    shown = (
        "() => +document.querySelector('#facts [data-key=step]')?.textContent.replace(/\\D/g, '')"
    )
    page.wait_for_function(f"() => ({shown})() === {last}", timeout=120_000)
    page.wait_for_selector("#loss [data-series]", timeout=120_000)
    times = []
    for step in range(last + 1, last + 1 + rounds):
        began = time.perf_counter()
        with log.open("a") as file:
            file.write(step_line(step))
        page.wait_for_function(f"() => ({shown})() === {step}", timeout=60_000, polling=20)
        times.append(time.perf_counter() - began)
        time.sleep(0.37)
    page.close()
    return times


def million(root: Path, server: Server, browser: Any, lines: int) -> dict[str, Any]:
    """A run of a million lines (or fewer, to try it): until its curve is there, until it is read; what the planner's page takes meanwhile; then a
    line's way to its point, and a closer look."""
    make_runs(root / "large", 1, lines)
    time.sleep(4)
    plan_page = browser.new_page()
    plan_page.goto(server.address + "plan?gpu=RTX+4070&preset=gpt2&data=fineweb-edu-10B")
    plan_page.wait_for_selector("#advice dl", timeout=60_000)
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(f"{server.address}runs?id=large/run-000")
    page.wait_for_selector("#loss [data-series]", timeout=300_000)
    answer: dict[str, Any] = {"first_curve": time.perf_counter() - began}
    answer["plan_meanwhile"] = planner_changes(plan_page, ".results", range(3, 18), 0.2)
    plan_page.close()
    page.wait_for_selector("#findings li", timeout=300_000)
    answer["whole"] = time.perf_counter() - began
    answer["memory_bytes"] = server.memory_bytes()
    page.close()
    answer["zoom"] = server.seconds(
        f"api/run/zoom?id=large/run-000&from={lines // 2}&to={lines // 2 + 10_000}", 3
    )
    times = line_to_point(browser, server, root, "large/run-000", lines)
    answer["line_to_point"] = {"median": statistics.median(times), "worst": max(times)}
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--million", type=int, nargs="?", const=1_000_000, metavar="LINES")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    if CHROMIUM is None:
        print("no Chromium here", file=sys.stderr)
        return 2
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        root = Path(place).resolve()
        make_runs(root, args.runs, args.lines)
        server = Server(root)
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        try:
            answer: dict[str, Any] = {"start_seconds": server.start_seconds}
            answer["load"] = os.getloadavg()[0]  # other programs' share in the times
            answer["memory_empty_bytes"] = server.memory_bytes()
            answer["first_page_seconds"] = first_page(browser, server.address)
            began = time.perf_counter()
            server.get("api/runs")
            answer["list_first_seconds"] = time.perf_counter() - began
            answer["list_again_seconds"] = server.seconds("api/runs")
            answer["plan_seconds"] = server.seconds("api/plan?gpu=RTX+4070&preset=gpt2")
            answer["planner_seconds"] = planner(browser, server.address)
            times = line_to_point(browser, server, root, "run-000", args.lines)
            answer["line_to_point_seconds"] = {
                "median": statistics.median(times),
                "worst": max(times),
            }
            for number in range(1, min(11, args.runs)):  # more than are kept in memory
                page = browser.new_page()
                page.goto(f"{server.address}runs?id=run-{number:03}")
                page.wait_for_selector("#findings li", timeout=120_000)
                page.close()
            answer["memory_bytes"] = server.memory_bytes()
            if args.million:
                answer["million"] = million(root, server, browser, args.million)
        finally:
            browser.close()
            server.close()
    if args.save:
        today = datetime.date.today().isoformat()
        asked = {"runs": args.runs, "lines": args.lines, "cores": os.cpu_count()}
        file = Path(__file__).parent / "results" / f"ui-{today}.json"
        file.write_text(json.dumps({"date": today, **asked, **answer}, indent=1) + "\n")
    print(
        json.dumps(answer, indent=1)
        if args.json
        else "\n".join(f"{k}: {v}" for k, v in answer.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
