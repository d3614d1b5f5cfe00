"""Bad input: a sentence that names it, or a counted skip; nothing half-written that looks whole."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from data_texts import documents, documents_in, write_jsonl, write_parquet

from onecard.data import open_dataset, prepare
from onecard.errors import OnecardError, RunFailure, UserError


def refused(source: Path, out: Path, match: str, **options: object) -> OnecardError:
    with pytest.raises(OnecardError, match=match) as caught:
        prepare([str(source)], out, workers=1, tokenizer="bytes", **options)
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("*.bin")) if out.exists() else True
    assert isinstance(caught.value, OnecardError)
    return caught.value


def test_a_truncated_parquet(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "x.parquet", documents(500))
    source.write_bytes(source.read_bytes()[:-500])
    refused(source, tmp_path / "out", r"x\.parquet is not a whole parquet file")


def test_a_parquet_with_damaged_pages(tmp_path: Path) -> None:
    source = tmp_path / "x.parquet"
    table = pa.table({"text": documents(2000, 1, 200)})
    pq.write_table(table, source, compression="zstd", row_group_size=100)
    content = bytearray(source.read_bytes())
    content[2000:2600] = b"\xff" * 600
    source.write_bytes(content)
    refused(source, tmp_path / "out", r"x\.parquet is damaged near row")


def test_invalid_utf8_in_parquet_is_counted(tmp_path: Path) -> None:
    raw = [text.encode() for text in documents(50)]
    raw[7] = b"\xff\xfe broken"
    column = pa.Array.from_buffers(pa.string(), 50, pa.array(raw, pa.binary()).buffers())
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    out = prepare([str(tmp_path / "x.parquet")], tmp_path / "out", workers=1, tokenizer="bytes")
    assert out.skipped == {"invalid UTF-8": 1}
    assert sum(split["documents"] for split in out.splits.values()) == 49


def test_bad_lines_of_jsonl_are_counted(tmp_path: Path) -> None:
    good = [json.dumps({"text": text}).encode() for text in documents(20)]
    bad = [
        b"{not json",
        b'{"text": "\xff\xfe"}',
        b'{"text": null}',
        b'{"other": 1}',
        b'{"text": "\\ud800 half"}',
        b"",
        b'{"text": 5}',
        b"[" * 5000,
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(good + bad))
    out = prepare([str(tmp_path / "x.jsonl")], tmp_path / "out", workers=1, tokenizer="bytes")
    assert out.skipped == {"invalid UTF-8": 2, "no text": 3, "not JSON": 2}
    assert sum(split["documents"] for split in out.splits.values()) == 20


def test_packed_files_cut_short(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(3000)).encode()
    for name, packed in (
        ("x.jsonl.gz", gzip.compress(lines)),
        ("x.jsonl.zst", zstandard.ZstdCompressor().compress(lines)),
    ):
        (tmp_path / name).write_bytes(packed[: len(packed) // 2])
        refused(tmp_path / name, tmp_path / f"out-{name}", f"{name} is cut short")
        (tmp_path / name).write_bytes(b"neither" * 100)
        refused(tmp_path / name, tmp_path / f"junk-{name}", f"{name} is damaged")


def test_empty_files(tmp_path: Path) -> None:
    for name in ("x.jsonl", "x.txt", "y.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b"") if name.endswith("gz") else b"")
        refused(tmp_path / name, tmp_path / f"out-{name}", "no document to take")
    (tmp_path / "x.parquet").write_bytes(b"")
    refused(tmp_path / "x.parquet", tmp_path / "out-p", "not a whole parquet")
    write_parquet(tmp_path / "none.parquet", [])
    refused(
        tmp_path / "none.parquet",
        tmp_path / "out-n",
        r"column 'text' is null, not text|no document to take",
    )


def test_missing_and_odd_columns(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "x.parquet", documents(10))
    assert (
        "id"
        in refused(
            source, tmp_path / "a", "no column 'body'; it has id, text", column="body"
        ).message
    )
    refused(source, tmp_path / "b", "column 'id' is int64, not text", column="id")
    refused(source, tmp_path / "c", "no column 'language'", language="en")
    lines = write_jsonl(tmp_path / "x.jsonl", documents(10), number=3)
    refused(lines, tmp_path / "d", "no column 'body'; there is text, number", column="body")
    refused(lines, tmp_path / "e", "column 'number' is int, not text", column="number")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    refused(tmp_path / "list.jsonl", tmp_path / "f", "holds list, not an object")


def test_invalid_utf8_in_texts(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for index, text in enumerate(documents(6)):
        (folder / f"{index}.txt").write_text(text, encoding="utf-8")
    (folder / "bad.txt").write_bytes(b"abc \xff\xfe")
    out = prepare([str(folder)], tmp_path / "out", workers=1, tokenizer="bytes")
    assert out.skipped == {"invalid UTF-8": 1}
    refused(folder / "bad.txt", tmp_path / "single", r"bad\.txt, offset 4: invalid UTF-8")


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.parquet", tmp_path / "out", "does not exist")
    assert not (tmp_path / "out").exists()  # a mistyped name leaves no trace
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path / "out", "holds no parquet, jsonl or text")
    with pytest.raises(UserError, match="neither a file nor a known data set"):
        prepare(["finewb-edu"], tmp_path / "out")
    with pytest.raises(UserError, match="not a hub name"):
        prepare(["hf:nonsense"], tmp_path / "out")


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0,
    reason="needs root to become a user without rights",
)
def test_folders_without_rights() -> None:
    """As nobody: root may read everything."""
    import onecard.data.preparation.pipeline  # noqa: F401 — loaded before the rights are dropped

    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        write_jsonl(root / "in" / "y.jsonl", documents(5))
        source = write_jsonl(root / "in" / "sub" / "x.jsonl", documents(5))
        (root / "locked").mkdir(mode=0o755)
        (root / "free").mkdir()
        (root / "free").chmod(0o777)
        os.seteuid(65534)
        try:
            refused(root / "in", root / "locked" / "out", "cannot be made: Permission denied")
            os.seteuid(0)
            source.chmod(0)
            os.seteuid(65534)
            refused(source, root / "free" / "a", r"x\.jsonl cannot be read: Permission denied")
            os.seteuid(0)
            source.parent.chmod(0)
            os.seteuid(65534)
            refused(
                root / "in", root / "free" / "b", "sub cannot be read: Permission denied"
            )  # not silently without it
        finally:
            os.seteuid(0)


def test_options_that_cannot_be(tmp_path: Path) -> None:
    source = str(write_jsonl(tmp_path / "x.jsonl", documents(5)))
    for options, message in (
        ({"tokenizer": "gpt5"}, "unknown tokeniser"),
        ({"tokenizer": "bpe"}, "unknown tokeniser"),
        ({"tokenizer": "bpe:70000"}, "cannot be made"),
        ({"tokenizer": "bpe:x"}, "cannot be made"),
        ({"val_fraction": 1.0}, "cannot be"),
        ({"val_fraction": -0.1}, "cannot be"),
        ({"tokens": 0}, "at least 1"),
        ({"shard_tokens": 0}, "cannot be"),
    ):
        with pytest.raises(UserError, match=message):
            prepare([source], tmp_path / "out", **options)


def test_input_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onecard.data.preparation import stages

    source = write_jsonl(tmp_path / "x.jsonl", documents(50))
    lay_out = stages.lay_out

    def change(*args: object, **named: object) -> object:
        write_jsonl(source, documents(51))
        return lay_out(*args, **named)

    monkeypatch.setattr(stages, "lay_out", change)
    refused(source, tmp_path / "out", "has changed while it was read")


def test_too_little_disk_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(50))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    refused(source, tmp_path / "out", r"this needs .* of disk, .* has 1000 B free")


@pytest.fixture
def small_disk(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A file system of a few megabytes."""
    where = tmp_path / "disk"
    where.mkdir()
    if (
        sys.platform != "linux"
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", where],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("a small file system cannot be mounted here")
    yield where
    subprocess.run(["umount", "-l", where], check=False)


def test_a_disk_that_fills(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_parquet(tmp_path / "x.parquet", documents(6000, 1, 300), row_group=500)
    monkeypatch.setattr(
        "onecard.data.preparation.pipeline.check_disk", lambda *_: None
    )  # as when someone else fills it meanwhile
    out = small_disk / "out"
    with pytest.raises(RunFailure, match="disk is full") as caught:
        prepare([str(source)], out, workers=2, tokenizer="bytes")
    assert "the same command" in str(caught.value.hint)
    assert not (out / "manifest.json").exists()
    with pytest.raises(
        UserError, match=r"not finished|there is no data set"
    ):  # kept if anything was
        open_dataset(out)
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    prepare([str(source)], out, workers=1, tokenizer="bytes")
    plain = prepare([str(source)], tmp_path / "plain", workers=1, tokenizer="bytes")
    assert [s["sha256"] for s in plain.splits["train"]["shards"]] == [
        s["sha256"] for s in open_dataset(out).manifest["splits"]["train"]["shards"]
    ]
    assert documents_in(out, "val") == documents_in(tmp_path / "plain", "val")
