"""`onecard data` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from data_texts import documents, write_jsonl

from onecard.cli import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "pages.jsonl", documents(200))
    return tmp_path


def test_prepare_show_verify(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "pages.jsonl", "--workers", "1", "--tokens", "5000"]) == 0
    message = capsys.readouterr()
    assert "about" in message.err
    assert "shards" in message.err  # sized beforehand
    assert "train" in message.out
    assert main(["data", "show", "pages"]) == 0
    message = capsys.readouterr()
    assert "bytes of text per token" in message.out
    assert "--- val, token 1" in message.out
    assert any(
        text[:30] in message.out.replace("\n  ", "\n") for text in documents(200)
    )  # some document, decoded
    assert main(["data", "verify", "pages"]) == 0
    assert "every sha256, header and id is right" in capsys.readouterr().out
    shard = here / "data" / "pages" / "pages_train_000001.bin"
    content = bytearray(shard.read_bytes())
    content[2000] ^= 1
    shard.write_bytes(content)
    assert main(["data", "verify", "pages"]) == 1
    assert "sha256" in capsys.readouterr().err
    assert main(["data", "verify", "pages", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"]
    shard.write_bytes(content[:-2])
    assert main(["data", "show", "pages"]) == 2
    assert "pages_train_000001.bin, offset 8" in capsys.readouterr().err


def test_json_and_dry_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "pages.jsonl", "--dry-run"]) == 0
    assert "into data" in capsys.readouterr().out
    assert not (here / "data").exists()
    assert (
        main(
            [
                "data",
                "pages.jsonl",
                "--tokenizer",
                "bytes",
                "--workers",
                "1",
                "--json",
                "--out",
                "x",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["schema"] == "onecard.data/1"
    assert main(["data", "show", "./x", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["tokenizer"] == {"name": "bytes", "vocab_size": 257}
    assert shown["problems"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.parquet"], "does not exist"),
        (["pages.jsonl", "--tokens", "many"], "is not a count"),
        (["pages.jsonl", "--val-fraction", "x"], "not a number"),
        (["pages.jsonl", "--workers", "-1"], "not a whole number"),
        (["pages.jsonl", "--tokenizer", "gpt9"], "unknown tokeniser"),
        (["show"], "takes one folder"),
        (["show", "nowhere"], "no data set"),
    ],
)
def test_mistakes_are_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["data", *words]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert "hint:" in found


def test_help_loads_nothing_heavy(here: Path) -> None:
    code = "import sys; from onecard.cli import main; main(['data', '--help']); print(*(m for m in ('numpy', 'pyarrow', 'torch') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == ""
