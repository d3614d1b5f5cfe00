"""A kill or a power cut anywhere in preparing data or exporting a model or a report: whole, or reported as unfinished, or the old one."""

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from runs_in_tests import TINY
from test_crash_consistency import replay

from onecard.data import open_dataset, prepare
from onecard.data.preparation import stages
from onecard.data.preparation.crew import NotYet
from onecard.data.preparation.worker import _Worker
from onecard.errors import OnecardError, UserError
from onecard.export.write import export
from onecard.model.weights import read_weights
from onecard.train.run.loop import train

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the recorder reads /proc")
DRAWS = [0, pytest.param(60, marks=pytest.mark.long)]
TEXT = "the cat sat on the mat, and the dog sat on the log. "


class InThisProcess:
    """The crew's work without its processes, so that the recorder sees every file operation."""

    def __init__(self, size, setup):
        self._worker = _Worker(setup)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, next_job, idle=None):
        while True:
            try:
                job = next_job()
            except NotYet:
                time.sleep(0.001)
                continue
            if job is None:
                return
            yield (self._worker.encode if job["op"] == "encode" else self._worker.shard)(job)


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "Crew", InThisProcess)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for number, path in enumerate(paths):
        path.write_text(TEXT * (20 + number))
    return [str(path) for path in paths]


def prepared(source, **options):
    def work(folder):
        prepare(
            [source], folder / "set", tokenizer="chars", workers=1, shard_tokens=2000, **options
        )

    return work


def content(folder) -> dict[str, bytes] | None:
    """The set's files where it is whole; None where it says that it is not."""
    try:
        opened = open_dataset(folder / "set")
        assert not any(split.verify() for split in opened.splits.values())
    except UserError as error:
        assert any(
            word in error.message
            for word in ("not finished", "holds no tokens", "there is no data set")
        )
        return None
    return {p.name: p.read_bytes() for p in (folder / "set").glob("*.bin")}


def whole(tmp_path, name, source):
    prepared(source)(tmp_path / name)
    return content(tmp_path / name)


@pytest.mark.parametrize("draws", DRAWS)
def test_preparing_data(tmp_path, texts, draws):
    wanted = whole(tmp_path, "calm", texts[0])
    for number, (what, left, promised) in enumerate(
        replay(tmp_path, lambda f: None, prepared(texts[0]), draws)
    ):
        assert content(left) in ([wanted] if promised else [None, wanted]), what
        if draws or number % 23 == 0:  # and the same command continues
            prepared(texts[0])(left)
            assert content(left) == wanted, what


@pytest.mark.long
@pytest.mark.parametrize("draws", DRAWS)
def test_preparing_data_in_the_place_of_an_older_set(tmp_path, texts, draws):
    old, new = (whole(tmp_path, name, text) for name, text in zip("xy", texts, strict=True))
    work = prepared(texts[1], fresh=True)
    for number, (what, left, promised) in enumerate(
        replay(tmp_path, prepared(texts[0]), work, draws)
    ):
        assert content(left) in ([new] if promised else [None, old, new]), what
        if draws or number % 29 == 0:
            work(left)
            assert content(left) == new, what


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one step over the same characters."""
    place = tmp_path_factory.mktemp("runs")
    (place / "text.txt").write_text(TEXT * 30)
    prepare([str(place / "text.txt")], place / "data", tokenizer="chars", workers=1)
    made = []
    for seed in (1, 2):
        config = TINY.replace(
            **{"n_layer": 1, "n_embd": 8, "max_iters": 1, "lr_decay_iters": 1, "warmup_iters": 0},
            **{"eval_interval": 1, "eval_iters": 1, "vocab_size": None, "seed": seed},
            **{"dataset": str(place / "data"), "out_dir": str(place / f"run{seed}")},
        )
        train(config)
        made.append(place / f"run{seed}")
    return made


def exported(run, to, **options):
    def work(folder):
        export(run, to, folder / "model", **options)

    return work


def first_weight(folder, to) -> float | None:
    """From the exported model; None where there is none. Half a model would raise."""
    target = folder / "model"
    if not target.exists():
        return None
    if to == "hf":
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            assert json.loads((target / name).read_text())
        assert (target / "README.md").stat().st_size > 100
    return read_weights(str(target))["transformer.wte.weight"][0, 0].item()


@pytest.mark.parametrize("to", ["hf", "nanogpt"])
@pytest.mark.parametrize("draws", DRAWS)
def test_exporting_a_model_in_the_place_of_an_older_one(tmp_path, runs, to, draws):
    values = []
    for name, run in zip("xy", runs, strict=True):
        exported(run, to)(tmp_path / name)
        values.append(first_weight(tmp_path / name, to))
    assert values[0] != values[1]
    beside = 0
    for what, left, promised in replay(
        tmp_path, exported(runs[0], to), exported(runs[1], to, force=True), draws
    ):
        found = first_weight(left, to)
        if found is None:  # between the two renames: the old one is whole beside its place
            beside += 1
            with pytest.raises(UserError, match="exists already"):
                exported(runs[1], to)(left)  # which puts it back first
            found = first_weight(left, to)
        assert found in (values[1:] if promised else values), what
    assert beside


def test_exporting_a_first_model(tmp_path, runs):
    for what, left, promised in replay(tmp_path, lambda f: None, exported(runs[0], "hf"), 0):
        assert (first_weight(left, "hf") is None) <= (not promised), what


def test_the_recorder_finds_an_export_that_was_not_flushed(tmp_path, runs, monkeypatch):
    """It would be no proof if it could not fail."""
    monkeypatch.setattr("onecard.export.write.sync_files", lambda folder: None)
    damaged = 0
    for _, left, _ in replay(tmp_path, lambda f: None, exported(runs[0], "hf"), 0):
        try:
            first_weight(left, "hf")
        except (OnecardError, AssertionError, OSError, ValueError):
            damaged += 1
        shutil.rmtree(left / "model", ignore_errors=True)
    assert damaged


@pytest.mark.parametrize("draws", DRAWS)
def test_exporting_a_report(tmp_path, draws, capsys):
    from onecard.cli import main
    from onecard.files import write_text

    pages = []
    for model in ("gpt2", "gpt2-medium"):
        assert main(["plan", model, "--gpu", "RTX 4070", "--html"]) == 0
        pages.append(capsys.readouterr().out)
    for what, left, promised in replay(
        tmp_path,
        lambda f: write_text(f / "plan.html", pages[0]),
        lambda f: write_text(f / "plan.html", pages[1]),
        draws,
    ):
        page = Path(left / "plan.html").read_text(encoding="utf-8")
        assert page in (pages[1:] if promised else pages), what
