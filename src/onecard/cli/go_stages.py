"""The stages of `onecard go`, each a command of its own; a stage that is done is passed over."""

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.cli.stages import is_finished, page_of, run_stage, typed

if TYPE_CHECKING:
    from rich.console import Console

    from onecard.cli.go_record import Expectation, Progress

LONG_RUN_SECONDS = 3600.0  # above it a full probe and a full check are worth their minutes
CHECK_SECONDS, QUICK_CHECK_SECONDS = 90.0, 10.0
PROBE_SECONDS, QUICK_PROBE_SECONDS = 120.0, 20.0
AFTERWARDS_SECONDS = 60.0  # evaluation, export and report of a small model


@dataclass(frozen=True)
class Places:
    """Where things are below the folder of one `go`."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def config(self) -> Path:
        return self.root / "run.toml"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def report(self) -> Path:
        return self.root / "report.html"


@dataclass(frozen=True)
class Stage:
    """One stage of `go`, as announced before it starts: how long it takes and what it fetches and writes."""

    what: str
    seconds: float
    download_bytes: float = 0
    disk_bytes: float = 0


def planned_stages(expected: "Expectation") -> list[Stage]:
    long_run = expected.train_seconds > LONG_RUN_SECONDS
    weights = (
        16.0 * expected.params
    )  # two checkpoints of weights and two moments, fp32, less than that
    stages = [
        Stage("data", expected.data_seconds, expected.download_bytes, expected.data_bytes)
        if expected.source
        else None,
        Stage("check", CHECK_SECONDS if long_run else QUICK_CHECK_SECONDS),
        Stage("measure", PROBE_SECONDS if long_run else QUICK_PROBE_SECONDS),
        Stage("train", expected.train_seconds, disk_bytes=2 * weights),
        Stage("evaluate, export, report", AFTERWARDS_SECONDS, disk_bytes=4.0 * expected.params),
    ]
    return [stage for stage in stages if stage is not None]


def perform(out: "Console", progress: "Progress", lang: str | None) -> Path:
    """Every stage that is not done yet; returns the report."""
    expected, places = progress.expected, Places(progress.root)
    _data(out, expected)
    _check_and_measure(out, progress)
    _plan_again(out, expected, places)
    _train(out, places)
    _evaluate(out, progress, places)
    _export(out, places)
    return _report(out, places, lang)


def _data(out: "Console", expected: "Expectation") -> None:
    if expected.source is None or (Path(expected.data) / "manifest.json").is_file():
        return
    from onecard.cli.go_plan import with_other_text
    from onecard.errors import OnecardError

    words = ["data", expected.source, "--out", expected.data]
    words += ["--tokens", str(expected.fetch_tokens)] if expected.fetch_tokens else []
    words += ["--tokenizer", expected.tokenizer] if expected.tokenizer else []
    try:
        run_stage(out, "get the text and turn it into tokens", *words)
    except OnecardError as error:
        raise with_other_text(error) from None


def _check_and_measure(out: "Console", progress: "Progress") -> None:
    long_run = progress.expected.train_seconds > LONG_RUN_SECONDS
    device = ["--device", "cpu"] if progress.expected.device == "cpu" else []
    quick = [] if long_run else ["--quick"]
    for stage, why in (
        ("doctor", "does this machine work?"),
        ("probe", "measure it, so that the plan is for it"),
    ):
        if not progress.done(stage):
            run_stage(out, why, stage, *quick, *device, optional=True)
            progress.mark(stage)


def _plan_again(out: "Console", expected: "Expectation", places: Places) -> None:
    if places.config.is_file():
        return
    words = ["recommend", *expected.words, "--data", expected.data, "--out", str(places.config)]
    run_stage(out, "the run, planned with what was measured", *words)


def _train(out: "Console", places: Places) -> None:
    if is_finished(places.run):
        return
    words = ["train", str(places.config), f"--out_dir={places.run}"]
    words += ["--resume"] if (places.run / "run.json").is_file() else []
    with _page(out, places.root):
        run_stage(out, "train; Ctrl-C saves, the same command goes on", *words)


@contextlib.contextmanager
def _page(out: "Console", root: Path) -> Iterator[None]:
    """`onecard ui` beside the training, where a person watches and the extra is installed; it cannot end the run."""
    if not out.is_terminal or importlib.util.find_spec("uvicorn") is None:
        yield
        return
    words = ["ui", str(root), "--no-browser"]
    out.print("\n[bold cyan]# the run on a page, as long as it trains[/]", highlight=False)
    out.print(f"$ {typed(words)} &", style="bold", markup=False, soft_wrap=True)
    page = subprocess.Popen(
        [sys.executable, "-m", "onecard", *words],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the training's
    )
    try:
        yield
    finally:
        page.terminate()
        page.wait()


def _evaluate(out: "Console", progress: "Progress", places: Places) -> None:
    if progress.done("eval"):
        return
    run = str(places.run)
    words = ["eval", run, "--text", progress.expected.data, "--bytes", "1MB"]
    run_stage(out, "how good is it? on held-out text of its own", *words, optional=True)
    if (
        progress.expected.loss is not None
    ):  # GPT-2's tokens of web text: the benchmarks mean something
        words = ["eval", run, "--hellaswag", "--lambada", "--limit", "1000"]
        run_stage(out, "and beside the released GPT-2s", *words, optional=True)
    progress.mark("eval")


def _export(out: "Console", places: Places) -> None:
    if places.model.exists():
        return
    words = ["export", str(places.run), "--to", "hf", "--out", str(places.model)]
    run_stage(out, "the model for transformers and the hub", *words)


def _report(out: "Console", places: Places, lang: str | None) -> Path:
    from onecard.files import write_text

    run_stage(out, "some text by it", "sample", str(places.run), "--tokens", "100", optional=True)
    language = ["--lang", lang] if lang else []
    run_stage(out, "what was predicted, what came, and why", "explain", str(places.run), *language)
    write_text(places.report, page_of(["explain", str(places.run), "--html", *language]))
    out.print(f"\nreport {places.report} · model {places.model} · run {places.run}", markup=False)
    return places.report
