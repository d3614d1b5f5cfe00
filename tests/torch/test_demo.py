"""`make demo` from its first to its last line: both recipes trained, an evaluation, an exported folder, a report with both."""

import json

import pytest

from onecard.cli import demo, main
from onecard.planner.calibration_file import known_calibration
from onecard.runs.eval_results import kept


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_demo_ends_with_an_evaluation_and_an_exported_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(demo, "HOURS", 0.003)
    known_calibration.cache_clear()
    words = ["demo", "--out", str(tmp_path / "demo"), "--no-open", "--json", "--lang", "en"]
    assert main(words) == 0
    known_calibration.cache_clear()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    (result,) = kept(tmp_path / "demo" / "run") or [None]
    assert result is not None
    assert result.figure("bits_per_byte") is not None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(answer["model"])
    tokenizer = AutoTokenizer.from_pretrained(answer["model"])
    assert tokenizer.decode(tokenizer("def main").input_ids) == "def main"
    with open(answer["report"], encoding="utf-8") as file:
        page = file.read()
    assert "bits per byte" in page
    assert f"{result.figure('bits_per_byte').value:.3f}"[:4] in page
    assert f"hf: {answer['model']}" in page
    assert set(answer["runs"]) == {"gpt2", "modern"}
