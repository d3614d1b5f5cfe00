"""Readers: our folders, nanoGPT's, llm.c's and modded-nanogpt's shards, datatrove's .ds; wrong files by name and offset."""

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.data import open_dataset, summary
from onecard.data.read.nanogpt_meta import read_meta
from onecard.data.read.preview import preview
from onecard.data.read.shard_files import header
from onecard.data.sources.documents import batches, units_of
from onecard.data.sources.local_files import input_of
from onecard.data.sources.unit import Reading
from onecard.errors import UserError


def shard(path: Path, ids: list[int] | np.ndarray) -> Path:
    path.write_bytes(header(len(ids)) + np.asarray(ids, "<u2").tobytes())
    return path


def raw(path: Path, ids: list[int]) -> Path:
    path.write_bytes(np.asarray(ids, "<u2").tobytes())
    return path


def test_nanogpt(tmp_path: Path) -> None:
    raw(tmp_path / "train.bin", [1, 2, 3, 50256])
    raw(tmp_path / "val.bin", [4, 50256])
    data = open_dataset(tmp_path)
    assert data.splits["train"].read(1, 3).tolist() == [2, 3, 50256]
    assert (data.vocab_size, data.eot, data.tokenizer.decode([15496])) == (50257, 50256, "Hello")
    assert summary(tmp_path) == (4, 2, 50257, None)


def test_nanogpt_characters(tmp_path: Path) -> None:
    raw(tmp_path / "train.bin", [0, 1, 1])
    raw(tmp_path / "val.bin", [1])
    meta = {"vocab_size": 2, "itos": {0: "x", 1: "é"}, "stoi": {"x": 0, "é": 1}}
    for protocol in (2, 3, 4, 5):
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta, protocol))
        data = open_dataset(tmp_path)
        assert (data.vocab_size, data.eot) == (2, None)
        assert data.tokenizer.decode([0, 1, 1]) == "xéé"
        assert data.tokenizer.encode("éx") == [1, 0]


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):  # type: ignore[no-untyped-def]
            return os.mkdir, (str(tmp_path / "owned"),)

    raw(tmp_path / "train.bin", [1])
    for payload in (Evil(), {"itos": {0: Evil()}}):
        (tmp_path / "meta.pkl").write_bytes(pickle.dumps(payload))
        with pytest.raises(UserError, match="not read"):
            open_dataset(tmp_path)
    assert not (tmp_path / "owned").exists()


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_as_meta(junk: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "meta.pkl"
        path.write_bytes(junk)
        with contextlib.suppress(UserError):
            read_meta(path)


def test_llmc_and_modded_nanogpt(tmp_path: Path) -> None:
    shard(tmp_path / "fineweb_val_000000.bin", range(10))
    shard(tmp_path / "fineweb_train_000001.bin", range(10, 20))
    shard(tmp_path / "fineweb_train_000002.bin", range(20, 25))
    data = open_dataset(tmp_path)
    train = data.splits["train"]
    assert train.tokens == 15
    assert train.read(8, 4).tolist() == [18, 19, 20, 21]
    assert train.read(0, 15).tolist() == list(range(10, 25))
    assert train.read(15, 0).tolist() == []
    assert (train.shards[0].offset_bytes, data.splits["val"].tokens) == (1024, 10)
    with pytest.raises(IndexError):
        train.read(10, 6)


def test_datatrove(tmp_path: Path) -> None:
    raw(tmp_path / "00000_tokens.ds", [5, 6, 50256])
    (tmp_path / "00000_tokens.ds.index").write_bytes(struct.pack("<Q", 3))
    (tmp_path / "00000_tokens.ds.metadata").write_text("gpt2|2\n3\n3 T")
    data = open_dataset(tmp_path)
    assert data.splits["train"].read(0, 3).tolist() == [5, 6, 50256]
    assert data.vocab_size == 50257
    (tmp_path / "00000_tokens.ds.metadata").write_text("someone/other|2\n3\n3 T")
    assert open_dataset(tmp_path).tokenizer is None
    (tmp_path / "00000_tokens.ds.metadata").write_text("big|4\n3\n3 T")
    with pytest.raises(UserError, match="32-bit"):
        open_dataset(tmp_path)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_reads_across_borders(sizes: list[int], draw: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        whole = np.arange(sum(sizes), dtype=np.uint16)
        at = 0
        for index, size in enumerate(sizes):
            shard(Path(folder) / f"x_train_{index:06d}.bin", whole[at : at + size])
            at += size
        split = open_dataset(folder).splits["train"]
        start = draw.draw(st.integers(0, len(whole)))
        count = draw.draw(st.integers(0, len(whole) - start))
        assert np.array_equal(split.read(start, count), whole[start : start + count])
        del split


def test_many_threads_and_more_shards_than_open_files(tmp_path: Path) -> None:
    for index in range(40):
        shard(tmp_path / f"x_train_{index:06d}.bin", range(index * 100, index * 100 + 100))
    split = open_dataset(tmp_path).splits["train"]
    wrong: list[int] = []

    def reader(seed: int) -> None:
        for start in np.random.default_rng(seed).integers(0, 3850, 300):
            if not np.array_equal(split.read(int(start), 150), np.arange(start, start + 150)):
                wrong.append(int(start))

    threads = [threading.Thread(target=reader, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(split._handles) <= 16


def test_ids_out_of_range_name_file_and_offset(tmp_path: Path) -> None:
    shard(tmp_path / "x_train_000001.bin", [1, 2, 50257, 3])
    split = open_dataset(tmp_path).splits["train"]
    with pytest.raises(UserError, match=r"x_train_000001\.bin, offset 1,028: token id 50257"):
        split.read(1, 2)
    assert split.read(0, 2).tolist() == [1, 2]
    assert "offset 1,028" in split.verify()[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too short for a header"),
        (header(5)[:100], "too short for a header"),
        (header(5) + b"\0" * 8, "offset 8: the header says 5 tokens"),
        (struct.pack("<256i", 20240801, 7, 5, *[0] * 253) + b"\0" * 20, "32-bit ids"),
        (
            struct.pack("<256i", 20240520, 2, 5, *[0] * 253) + b"\0" * 10,
            "offset 4: shard version 2",
        ),
        (struct.pack("<256i", 7, 1, 5, *[0] * 253) + b"\0" * 10, "offset 0: not a shard header"),
        (struct.pack("<256i", 20240520, 1, -1, *[0] * 253), "offset 8"),
    ],
)
def test_headers_that_do_not_fit(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x_train_000001.bin").write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        open_dataset(tmp_path)
    assert "x_train_000001.bin" in caught.value.message
    with pytest.raises(UserError, match=message):
        summary(tmp_path)


def test_an_odd_raw_file(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"abc")
    with pytest.raises(UserError, match="offset 2"):
        open_dataset(tmp_path)


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "mine").mkdir(parents=True)
    raw(tmp_path / "data" / "mine" / "train.bin", [1, 2])
    assert open_dataset("mine").splits["train"].tokens == 2
    assert open_dataset("data/mine").splits["train"].tokens == 2
    assert open_dataset(tmp_path / "data" / "mine").name == "mine"
    with pytest.raises(UserError, match="no data set 'yours'") as caught:
        open_dataset("yours")
    assert str(caught.value.hint) == "prepared here: mine"
    with pytest.raises(UserError, match="no data set 'fineweb-edu-10B'") as caught:
        open_dataset("fineweb-edu-10B")
    assert "`onecard data fineweb-edu-10B` prepares it" in str(caught.value.hint)


def test_empty_and_unfinished_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no tokens"):
        open_dataset(tmp_path)
    (tmp_path / ".work").mkdir()
    shard(tmp_path / "x_train_000001.bin", [1])
    with pytest.raises(UserError, match="not finished"):
        open_dataset(tmp_path)


def test_damaged_manifests(tmp_path: Path) -> None:
    for content in (
        "",
        "[]",
        "{}",
        '{"schema": "onecard.data/1"}',
        '{"schema": "onecard.data/9"}',
        '{"schema": "onecard.data/1", "name": "x", "sources": [], "tokenizer": {}, "splits": {"train": 3}, "bytes_per_token": 1, "seed": 1, "val_fraction": 0}',
    ):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(UserError, match="manifest"):
            open_dataset(tmp_path)


def test_a_manifest_cannot_reach_outside_its_folder(tmp_path: Path) -> None:
    import json

    shard(tmp_path / "secret.bin", [1])
    inner = tmp_path / "set"
    inner.mkdir()
    manifest = {
        "schema": "onecard.data/1",
        "name": "x",
        "sources": [],
        "bytes_per_token": 1,
        "seed": 1,
        "val_fraction": 0,
        "tokenizer": {"name": "gpt2", "vocab_size": 50257, "eot": 50256, "file": None},
        "splits": {
            "train": {
                "tokens": 1,
                "shards": [{"file": "../secret.bin", "tokens": 1, "sha256": "0"}],
            }
        },
    }
    (inner / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="outside its folder"):
        open_dataset(inner)


def test_summary_needs_no_numpy(tmp_path: Path) -> None:
    shard(tmp_path / "x_train_000001.bin", [1, 2, 3])
    code = (
        "import sys; sys.modules['numpy'] = None; sys.modules['pyarrow'] = None\n"
        "import onecard.data, onecard.facts.datasets\n"
        f"print(onecard.data.summary({str(tmp_path)!r})[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "3", done.stderr


def test_a_preview_without_separators_begins_at_the_first_token(tmp_path: Path) -> None:
    np.array([0, 1, 0, 1], "<u2").tofile(tmp_path / "train.bin")
    meta = {"vocab_size": 2, "itos": {0: "a", 1: "b"}, "stoi": {"a": 0, "b": 1}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    first = preview(tmp_path)["samples"][0]
    assert (first["at"], first["text"]) == (0, "abab …")


def test_a_shard_of_another_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    np.arange(100).astype("<u2").tofile(tmp_path / "train.bin")
    split = open_dataset(tmp_path).splits["train"]
    os.truncate(tmp_path / "train.bin", 150)
    assert split.verify() == [f"{tmp_path / 'train.bin'}: 150 bytes, expected 200"]


def test_documents_between_separators_have_their_places(tmp_path: Path) -> None:
    text = b"one<|x|>\n two <|x|><|x|>three"
    (tmp_path / "a.txt").write_bytes(text)
    reading = Reading(separator="<|x|>")
    (unit,) = units_of([(0, input_of(tmp_path / "a.txt"), tmp_path / "a.txt")], 1, 0, reading)
    (batch,) = batches(unit, reading)  # and all of them at once: a batch is megabytes
    assert [text[place[1] :].split(b"<|x|>")[0].decode() for place in batch.places] == batch.texts
