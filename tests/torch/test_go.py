"""`onecard go`: the whole path by its public commands, on a text made here; interrupted, it continues."""

import dataclasses
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

import onecard.cli
import onecard.cli.go
from forked import start_onecard
from onecard.cli import main, parser_of
from onecard.cli.go_plan import MORE_TOKENS, expect
from onecard.cli.go_record import Question
from onecard.cli.go_stages import Places
from onecard.data.preparation.pipeline import sized
from onecard.planner.calibration_file import known_calibration
from onecard.train import probe

HOURS = "0.0015"  # five seconds of training
SHAPES = ((2, 2, 64, 64, 4, 1, 256), (2, 4, 128, 64, 4, 1, 256), (2, 4, 128, 64, 4, 1, 2048))


@pytest.fixture(autouse=True)
def not_calibrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What another test measured, on a busy machine perhaps, is not for this one; nor the other way round. Three small
    shapes are enough for a few seconds of training."""
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(probe, "CPU_QUICK", SHAPES)
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


STAGES = ("data", "doctor", "probe", "recommend", "train", "eval", "export", "sample", "explain")


def shown_commands(text: str) -> list[str]:
    """The stages that a call has begun, by their commands."""
    return [line.split()[2] for line in text.splitlines() if line.startswith("$ onecard ")]


def stopped_before(stage: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The stages that a call begins which Ctrl-C ends as `stage` begins."""
    real = onecard.cli.dispatch

    def interrupted(words: list[str]) -> int:
        if words[0] == stage:
            raise KeyboardInterrupt
        return real(words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onecard.cli, "dispatch", interrupted)
        capsys.readouterr()
        assert onecard.cli.go.run(parser_of("go").parse_args(words[1:])) == 130
    shown = capsys.readouterr().out
    assert "the same command continues" in shown
    assert "left out" not in shown
    return shown_commands(shown)


def test_a_go_stopped_at_every_stage_continues_and_ends_with_model_and_report(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command(text)
    for before, stage in zip((None, *STAGES), STAGES[:5], strict=False):
        # each call does the one stage that the call before had begun, and none again
        began = [before, stage] if before else [stage]
        assert stopped_before(stage, words, capsys) == began

    # a real kill in the middle of the training
    first = start_onecard(*words)
    deadline = time.monotonic() + 200
    steps = Path("onecard-go/run/log.jsonl")
    while first.poll() is None and time.monotonic() < deadline:
        if steps.is_file() and '"step"' in steps.read_text(encoding="utf-8"):
            first.send_signal(signal.SIGTERM)
            break
        time.sleep(0.05)
    assert first.wait(60) == 143, first.communicate(1)

    assert stopped_before("eval", words, capsys) == ["train", "eval"]
    assert stopped_before("export", words, capsys) == ["eval", "export"]
    assert not Path("onecard-go/model").exists()
    assert stopped_before("explain", words, capsys) == ["export", "sample", "explain"]

    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    answer = json.loads(shown.out)
    assert shown_commands(shown.err) == ["sample", "explain"]
    assert Path(answer["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path("onecard-go/model/model.safetensors").is_file()

    assert main([*words, "--hours", "1"]) == 2, "another question needs another folder"
    assert "other options" in capsys.readouterr().err


def test_a_text_file_with_more_tokens_than_the_time_allows_is_prepared_whole(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text.write_bytes(20 * text.read_bytes())  # more than any machine learns in that time
    question = Question(("hours", HOURS), str(text), None, None, None, "cpu")
    expected = expect(question, Places(tmp_path / "go"))
    assert (
        expected.tokens * MORE_TOKENS < sized([str(text)], tokenizer=expected.tokenizer)[0].tokens
    )
    assert expected.fetch_tokens is None
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.txt").write_bytes(text.read_bytes())
    of_folder = expect(dataclasses.replace(question, data=str(folder)), Places(tmp_path / "go"))
    assert of_folder.fetch_tokens is not None


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_a_go_killed_in_the_middle_of_every_stage_continues(text: Path, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    words = [sys.executable, "-m", "onecard", *command(text)]

    def begun(kill_in: str | None) -> list[str]:
        """The stages that one call begins; it is killed a moment after `kill_in` has begun."""
        call = subprocess.Popen(
            words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert call.stdout is not None
        seen = []
        for line in call.stdout:
            seen += shown_commands(line)
            if kill_in in seen:
                time.sleep(0.15)
                call.kill()
                break
        call.communicate()
        if kill_in is None:
            assert call.returncode == 0
        return seen

    for stage in STAGES:
        assert begun(stage)[-1] == stage
    assert begun(None)[-1] == "explain"
    made = tmp_path / "onecard-go"
    assert (made / "model" / "model.safetensors").is_file()
    assert (made / "report.html").is_file()
    kept = json.loads((made / "go.json").read_text(encoding="utf-8"))
    assert kept["done"] == ["doctor", "probe", "eval"]


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("es", ["Qué va a ocurrir", "Etapas", "evaluar, exportar"]),
        pytest.param("hi", ["क्या-क्या होगा", "चरण"], marks=pytest.mark.long),
    ],
)
def test_a_dry_run_announces_in_the_readers_language(
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lang: str,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command(text), "--dry-run", "--lang", lang]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in words)
    assert "What will happen" not in shown
    assert not Path("onecard-go").exists()


def test_without_a_network_it_ends_before_training_and_names_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code = main(["go", "--hours", "20", "--device", "cpu", "--yes"])
    assert code in (1, 2)
    assert "--data" in capsys.readouterr().err
    assert not Path("onecard-go/run").exists()


def test_nobody_to_ask(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [word for word in command(text) if word != "--yes"]
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words) == 2
    assert "--yes" in capsys.readouterr().err
    assert not Path("onecard-go").exists()


def test_a_budget_shortens_the_training(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    longer = Path("longer.txt")
    longer.write_bytes(
        text.read_bytes() * (30_000_000 // text.stat().st_size)
    )  # enough for an hour
    words = ["go", "--hours", "1", "--data", str(longer), "--device", "cpu", "--dry-run"]
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
