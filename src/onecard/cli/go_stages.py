"""The stages of `onecard go`, each a command of its own; a stage that is done is passed over."""

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from onecard.cli.go_record import Expectation, Progress
from onecard.cli.stages import is_finished, page_of, print_command, print_reason, run_stage
from onecard.errors import OnecardError
from onecard.files import write_text
from onecard.messages import T
from onecard.report import Language

LONG_RUN_SECONDS = 3600.0  # above it a full probe and a full check are worth their minutes
CHECK_SECONDS, QUICK_CHECK_SECONDS = 90.0, 10.0
PROBE_SECONDS, QUICK_PROBE_SECONDS = 120.0, 20.0
AFTERWARDS_SECONDS = 60.0  # evaluation, export and report of a small model


EVALUATION = T("how good is it? on held-out text of its own")


def evaluation(run: Path, data: Path) -> list[str]:
    return ["eval", str(run), "--text", str(data), "--bytes", "1M"]


class Places:
    """Where things are below the folder of one `go`."""

    def __init__(self, root: Path):
        self.root = root
        self.data = root / "data"
        self.config = root / "run.toml"
        self.run = root / "run"
        self.model = root / "model"
        self.report = root / "report.html"


@dataclass(frozen=True)
class Stage:
    """One stage of `go`, as announced before it starts: how long it takes and what it fetches and writes."""

    what: T
    seconds: float
    download_bytes: float = 0
    disk_bytes: float = 0


def planned_stages(expected: Expectation) -> list[Stage]:
    long_run = expected.train_seconds > LONG_RUN_SECONDS
    weights = 4.0 * expected.params
    checkpoints = 2 * 4 * weights  # two are kept, each at most weights, two moments and an average
    data = Stage(
        T("get the data"), expected.data_seconds, expected.download_bytes, expected.data_bytes
    )
    return [
        *([data] if expected.source else []),
        Stage(T("check the machine"), CHECK_SECONDS if long_run else QUICK_CHECK_SECONDS),
        Stage(T("measure it, plan again"), PROBE_SECONDS if long_run else QUICK_PROBE_SECONDS),
        Stage(T("train"), expected.train_seconds, disk_bytes=checkpoints),
        Stage(T("evaluate, export, report"), AFTERWARDS_SECONDS, disk_bytes=weights),
    ]


def perform(out: Console, progress: Progress, words: Language, lang: str | None) -> Path:
    """Every stage that is not done yet; returns the report."""
    return _Stages(out, progress, words, ["--lang", lang] if lang else []).perform()


@dataclass(frozen=True)
class _Stages:
    """One `go`'s stages; each looks for itself whether it is done."""

    out: Console
    progress: Progress
    words: Language
    lang: list[str]  # for the commands that answer in words

    @property
    def expected(self) -> Expectation:
        return self.progress.expected

    @property
    def places(self) -> Places:
        return Places(self.progress.root)

    def perform(self) -> Path:
        self._data()
        self._check_and_measure()
        self._plan_again()
        self._train()
        self._evaluate()
        self._export()
        return self._report()

    def _run(self, why: T, *command: str, optional: bool = False) -> bool:
        return run_stage(self.out, self.words.text(why), *command, optional=optional)

    def _data(self) -> None:
        expected = self.expected
        if expected.source is None or (Path(expected.data) / "manifest.json").is_file():
            return
        from onecard.cli.go_plan import with_other_text

        command = ["data", expected.source, "--out", expected.data]
        command += ["--tokens", str(expected.fetch_tokens)] if expected.fetch_tokens else []
        command += ["--tokenizer", expected.tokenizer] if expected.tokenizer else []
        try:
            self._run(T("get the text and turn it into tokens"), *command)
        except OnecardError as error:
            raise with_other_text(error) from None

    def _check_and_measure(self) -> None:
        long_run = self.expected.train_seconds > LONG_RUN_SECONDS
        device = ["--device", "cpu"] if self.expected.device == "cpu" else []
        quick = [] if long_run else ["--quick"]
        for stage, why in (
            ("doctor", T("does this machine work?")),
            ("probe", T("measure it, so that the plan is for this machine")),
        ):
            if not self.progress.done(stage):
                self._run(why, stage, *quick, *device, optional=True)
                self.progress.mark(stage)

    def _plan_again(self) -> None:
        config = self.places.config
        if config.is_file():
            return
        command = ["recommend", *self.expected.words, "--data", self.expected.data]
        command += ["--out", str(config), *self.lang]
        self._run(T("the run, planned with what was measured"), *command)

    def _train(self) -> None:
        run = self.places.run
        if is_finished(run):
            return
        command = ["train", str(self.places.config), f"--out_dir={run}"]
        command += ["--resume"] if (run / "run.json").is_file() else []
        with self._page():
            self._run(T("train; Ctrl-C saves, the same command continues"), *command)

    @contextlib.contextmanager
    def _page(self) -> Iterator[None]:
        """`onecard ui` beside the training, where a person watches and the extra is installed; it cannot end the run."""
        if not self.out.is_terminal or importlib.util.find_spec("uvicorn") is None:
            yield
            return
        command = ["ui", str(self.progress.root), "--no-browser"]
        self.out.print()
        print_reason(self.out, self.words.text(T("the run on a page, as long as it trains")))
        print_command(self.out, command, end=" &")
        page = subprocess.Popen(
            [sys.executable, "-m", "onecard", *command, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the training's
        )
        try:
            assert page.stdout is not None
            with contextlib.suppress(ValueError, KeyError):  # it did not start, and printed why
                self.out.print(str(json.loads(page.stdout.readline())["url"]), markup=False)
            yield
        finally:
            page.terminate()
            page.communicate()

    def _evaluate(self) -> None:
        if self.progress.done("eval"):
            return
        run = str(self.places.run)
        command = evaluation(self.places.run, Path(self.expected.data))
        self._run(EVALUATION, *command, optional=True)
        if self.expected.loss is not None:  # web text in GPT-2's tokens: benchmarks mean something
            command = ["eval", run, "--hellaswag", "--lambada", "--limit", "1000"]
            self._run(T("and beside the released GPT-2s"), *command, optional=True)
        self.progress.mark("eval")

    def _export(self) -> None:
        if self.places.model.exists():
            return
        command = ["export", str(self.places.run), "--to", "hf", "--out", str(self.places.model)]
        self._run(T("the model for transformers and the hub"), *command)

    def _report(self) -> Path:
        places = self.places
        run, root = str(places.run), str(places.root)
        report, model = str(places.report), str(places.model)
        self._run(T("some text by it"), "sample", run, "--tokens", "100", optional=True)
        self._run(T("what was predicted, what happened, and why"), "explain", run, *self.lang)
        write_text(places.report, page_of(["explain", run, "--html", *self.lang]))
        for line in (
            T("report {report} · model {model} · run {run}", report=report, model=model, run=run),
            T(
                "next: `onecard ui {root}` shows it all, `onecard sample {run}` writes more",
                root=root,
                run=run,
            ),
        ):
            self.out.print(self.words.text(line), markup=False, soft_wrap=True)
        return places.report
