"""A tokeniser that is missing, damaged or untrusted, and what is shown of untrusted text."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from onecard.cli import main
from onecard.data import (
    keep_record,
    kept_record,
    kept_tokenizer,
    open_dataset,
    prepare,
)
from onecard.data.read.shard_files import header
from onecard.errors import UserError


@pytest.fixture(scope="module")
def chars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chars")
    (folder / "text.txt").write_text("to be or not to be\n" * 50)
    prepare([str(folder / "text.txt")], folder / "set", workers=1, tokenizer="chars")
    return folder / "set"


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize(
    "damage",
    [
        None,
        b"",
        b"{",
        b'{"chars": ["a"], "separator": false}',
        b'{"type": "chars", "chars": ["\\ud800"], "separator": false}',
        b"[" * 100_000,
    ],
)
def test_a_missing_or_damaged_tokeniser_shows_at_once(
    chars: Path, tmp_path: Path, damage: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(chars, tmp_path / "set")
    if damage is None:
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer.json").write_bytes(damage)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        open_dataset(folder)
    assert main(["data", "verify", str(folder)]) == 1
    assert "tokenizer.json" in capsys.readouterr().err
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["tokenizer"]["sha256"]  # as older sets are
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"tokeniser .* is damaged"):
        open_dataset(folder)


def test_a_surrogate_in_meta_is_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"\0\0\1\0")
    meta = {"itos": {0: "a", 1: "\ud800"}, "stoi": {"a": 0}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.pkl: '\\ud800' is half of a surrogate pair"):
        open_dataset(tmp_path)


def test_a_run_keeps_its_tokeniser_and_manifest(chars: Path, tmp_path: Path) -> None:
    data = open_dataset(chars)
    keep_record(data, tmp_path / "run" / "data")
    found = kept_tokenizer(tmp_path / "run" / "data")
    assert found is not None
    assert found.decode(found.encode("to be")) == "to be"
    record = kept_record(tmp_path / "run" / "data")
    assert record["manifest"] == data.manifest
    assert record["splits"]["train"]["sha256"] == data.splits["train"].sha256
    (tmp_path / "run" / "data" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged"):
        kept_tokenizer(tmp_path / "run" / "data")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.bin").write_bytes(np.array([15496], "<u2").tobytes())
    keep_record(open_dataset(plain), tmp_path / "run2")
    assert kept_tokenizer(tmp_path / "run2").decode([15496]) == "Hello"


def test_untrusted_text_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "s\x1b[2Jt"
    folder.mkdir()
    ids = np.frombuffer("x\x1b]0;owned\x07 \u202eabc".encode(), np.uint8).astype("<u2")
    (folder / "x_train_000001.bin").write_bytes(header(len(ids)) + ids.tobytes())
    manifest = {
        "schema": "onecard.data/1",
        "name": "\x1b[31mname",
        "sources": [{"uri": "hf:\x9b2J", "revision": "\x1b[1m", "licence": "\u202emit\x1b"}],
        "tokenizer": {"name": "bytes", "vocab_size": 257, "eot": 256, "file": None},
        "splits": {
            "train": {
                "tokens": len(ids),
                "shards": [{"file": "x_train_000001.bin", "tokens": len(ids)}],
            }
        },
        "bytes_per_token": 1.0,
        "seed": 1,
        "val_fraction": 0.1,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    main(["data", "show", str(folder)])
    main(["data", "show", str(folder), "--json"])
    main(["data", "verify", str(folder)])
    manifest["sources"] = "\x1b[2J"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    main(["data", "show", str(folder)])
    found = capsys.readouterr()
    assert "\\x1b[31mname" in found.out
    for text in (found.out, found.err):
        assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(text)
