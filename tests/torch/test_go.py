"""`onecard go`: the whole path by its public commands, on a text made here; interrupted, it goes on."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onecard.cli import main
from onecard.planner.calibration_file import known_calibration

HOURS = "0.003"  # eleven seconds of training


@pytest.fixture(autouse=True)
def not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What another test measured, on a busy machine perhaps, is not for this one; nor the other way round."""
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    known_calibration.cache_clear()
    yield
    known_calibration.cache_clear()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    words = ("the card", "a step", "of tokens", "and loss", "is memory", "in hours")
    lines = [
        " ".join(words[(i * j + j) % len(words)] for j in range(1, 20)) + "." for i in range(3000)
    ]
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def command(text: Path, *more: str) -> list[str]:
    return [
        "go",
        "--hours",
        HOURS,
        "--data",
        str(text),
        "--device",
        "cpu",
        "--yes",
        "--no-open",
        *more,
    ]


def test_a_killed_go_continues_and_ends_with_model_and_report(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [sys.executable, "-m", "onecard", *command(text)]
    with open("first.log", "w") as log:
        first = subprocess.Popen(
            words, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        deadline = time.monotonic() + 200
        steps = Path("onecard-go/run/log.jsonl")
        while first.poll() is None and time.monotonic() < deadline:
            if steps.is_file() and '"step"' in steps.read_text(encoding="utf-8"):
                first.send_signal(signal.SIGTERM)
                break
            time.sleep(0.05)
        assert first.wait(60) == 143, Path("first.log").read_text()
    assert not Path("onecard-go/model").exists()

    assert main([*command(text), "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert Path(answer["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "train onecard-go/run.toml --out_dir=onecard-go/run --resume" in shown.err
    assert "onecard data" not in shown.err, "what was done is not done again"
    assert Path("onecard-go/model/model.safetensors").is_file()

    assert main([*command(text), "--hours", "1"]) == 2, "another question needs another folder"
    assert "another question" in capsys.readouterr().err


def test_without_a_network_it_ends_before_training_and_names_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code = main(["go", "--hours", "20", "--device", "cpu", "--yes"])
    assert code in (1, 2)
    assert "--data" in capsys.readouterr().err
    assert not Path("onecard-go/run").exists()


def test_nobody_to_ask_and_a_dry_run(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in command(text, "--hours", "1") if word != "--yes"]
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words) == 2
    assert "--yes" in capsys.readouterr().err
    assert main([*words, "--dry-run"]) == 0
    assert "What will happen" in capsys.readouterr().out
    assert not Path("onecard-go").exists()


def test_a_budget_shortens_the_training(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["go", "--hours", "10", "--data", str(text), "--device", "cpu", "--dry-run"]
    assert main([*words, "--price", "0.20EUR", "--budget", "0.01EUR"]) == 0
    shown = capsys.readouterr().out
    assert "€0.01" in shown
    assert main([*words, "--price", "0.20EUR", "--budget", "5USD"]) == 2
    assert "one currency" in capsys.readouterr().err


def test_a_file_that_is_damaged(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("onecard-go").mkdir()
    Path("onecard-go/go.json").write_text('{"schema": "onecard.go/1", "question": []}')
    assert main(command(text)) == 2
    assert "damaged" in capsys.readouterr().err
