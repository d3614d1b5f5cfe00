"""Data, broken on purpose: foreign files, files that change, odd names and times, Windows."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_texts import documents, write_jsonl, write_parquet

from onecard.cli import main
from onecard.data import (
    open_dataset,
    prepare,
)
from onecard.data.read.shard_files import header
from onecard.data.sources.documents import batches
from onecard.data.sources.local_files import input_of, local_source
from onecard.data.sources.parquet_headers import read_footer
from onecard.data.sources.unit import Reading, Unit
from onecard.errors import OnecardError, RunFailure, UserError


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None
        for p in folder.rglob("*")
    }


# ---- foreign files ----


def test_a_foreign_work_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    mine = tmp_path / "out" / ".work"
    mine.mkdir(parents=True)
    (mine / "thesis.doc").write_text("years of work")
    (mine / "parts").mkdir()
    before = tree(tmp_path / "out")
    for fresh in (False, True):
        with pytest.raises(UserError, match="not made by this version"):
            prepare([str(source)], tmp_path / "out", workers=1, fresh=fresh)
        assert tree(tmp_path / "out") == before


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
def test_links_are_never_followed_for_deletion(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / ".x.tmp").write_text("mine")
    (foreign / "plan.json").write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".work").symlink_to(foreign, target_is_directory=True)
    with pytest.raises(UserError, match="is a link"):
        prepare([str(source)], tmp_path / "out", workers=1)
    (tmp_path / "out" / ".work").unlink()
    from onecard.data.preparation.work_folder import WorkFolder

    with WorkFolder(tmp_path / "out") as work:
        (work.path / "parts").symlink_to(foreign, target_is_directory=True)
    with pytest.raises(UserError, match="link"), WorkFolder(tmp_path / "out") as work:
        work.folder("parts")
    assert prepare([str(source)], tmp_path / "out", workers=1, tokenizer="bytes").tokens
    assert sorted(p.name for p in foreign.iterdir()) == [".x.tmp", "plan.json"]


def test_a_mistyped_source_leaves_an_empty_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="does not exist"):
        prepare([str(tmp_path / "nothing.jsonl")], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(UserError, match="does not exist"):
        prepare([str(tmp_path / "nothing.jsonl")], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_foreign_file_of_the_same_name_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onecard.data.preparation import pipeline

    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    finish = pipeline.finish

    def put_in_the_way(*args: object) -> object:
        (tmp_path / "out" / "x_train_000001.bin").write_text("mine")
        return finish(*args)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "finish", put_in_the_way)
        with pytest.raises(UserError, match="in the way"):
            prepare([str(source)], tmp_path / "out", workers=1, tokenizer="bytes")
    assert (tmp_path / "out" / "x_train_000001.bin").read_text() == "mine"
    (tmp_path / "out" / "x_train_000001.bin").unlink()
    assert prepare([str(source)], tmp_path / "out", workers=1, tokenizer="bytes").tokens


# ---- a larger set after a first taste ----


def test_fresh_replaces_a_finished_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onecard.data.preparation import pipeline

    source, out = write_parquet(tmp_path / "x.parquet", documents(2000, 1)), tmp_path / "set"
    taste = prepare([str(source)], out, 2_000, workers=1, shard_tokens=500)
    with pytest.raises(UserError, match="holds another data set") as caught:
        prepare([str(source)], out, 20_000, workers=1)
    assert "`fresh`" in str(caught.value.hint)

    def stop(*_: object) -> None:
        raise RunFailure("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "finish", stop)
        with pytest.raises(RunFailure):
            prepare([str(source)], out, 20_000, workers=1, fresh=True)
    assert open_dataset(out).splits["train"].tokens == taste.splits["train"]["tokens"]
    whole = prepare([str(source)], out, 20_000, workers=1)  # continues without `fresh`
    assert whole.tokens >= 20_000
    assert not open_dataset(out).splits["train"].verify()
    assert sorted(p.name for p in out.iterdir()) == [
        "manifest.json",
        "x_train_000001.bin",
        "x_val_000000.bin",
    ]


def test_fresh_never_replaces_tokens_that_others_made(tmp_path: Path) -> None:
    folder = tmp_path / "owt"
    folder.mkdir()
    (folder / "train.bin").write_bytes(np.array([1, 2, 50256], "<u2").tobytes())
    prepare([str(folder)])
    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    with pytest.raises(UserError, match="others made"):
        prepare([str(source)], folder, fresh=True)
    assert (folder / "train.bin").stat().st_size == 6


# ---- input that changes ----


def test_an_edit_that_keeps_the_size_is_noticed(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(50))
    first = prepare([str(source)], tmp_path / "set", workers=1, tokenizer="bytes")
    content = source.read_bytes()
    stat = source.stat()
    source.write_bytes(content.replace(b"#7", b"#9", 1))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # even with its old time
    with pytest.raises(UserError, match="has changed since"):
        prepare([str(source)], tmp_path / "set", workers=1, tokenizer="bytes")
    source.unlink()
    source.write_bytes(content)  # another file, the same content
    assert prepare([str(source)], tmp_path / "set", workers=1, tokenizer="bytes") == first


def test_a_text_that_grows_while_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "log.txt"
    source.write_text("a line of text\n" * 1000)
    item, size = input_of(source), source.stat().st_size
    with open(source, "a") as file:
        file.write("more\n" * 500_000)
    unit = Unit(0, "running", ((0, str(source)),), 0, 1, size, size)
    assert sum(len(t) for b in batches(unit, Reading()) for t in b.texts) == size
    assert item.size == size
    stop = threading.Event()

    def grow() -> None:
        with open(source, "a") as file:
            while not stop.is_set():
                file.write("more\n" * 10)
                file.flush()
                time.sleep(0.01)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        with pytest.raises(OnecardError, match="has changed while it was read"):
            prepare([str(source)], tmp_path / "set", workers=1, tokenizer="bytes")
    finally:
        stop.set()
        thread.join()


def test_a_shard_cut_short_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "x_train_000001.bin"
    path.write_bytes(header(100_000) + np.zeros(100_000, "<u2").tobytes())
    split = open_dataset(tmp_path).splits["train"]
    assert split.read(90_000, 10).tolist() == [0] * 10
    os.truncate(path, 1024 + 2 * 50_000)
    with pytest.raises(RunFailure, match=r"x_train_000001\.bin was cut short.* offset 101,024"):
        split.read(49_990, 20)
    assert split.read(0, 5).tolist() == [0] * 5
    path.unlink()  # the open file stays readable
    assert split.read(0, 5).tolist() == [0] * 5


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), OSError("the disk is gone")])
def test_a_shard_that_the_disk_does_not_give_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    path = tmp_path / "x_train_000001.bin"
    path.write_bytes(header(100) + np.zeros(100, "<u2").tobytes())
    split = open_dataset(tmp_path).splits["train"]

    def failing(*_: object) -> int:
        raise error

    monkeypatch.setattr("onecard.data.read.shards._read_at", failing)
    with pytest.raises(RunFailure) as caught:
        split.read(0, 5)
    assert caught.value.message == f"{path} cannot be read: {error.strerror or error}"


# ---- names, times, columns ----


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "..", ".hidden", "", "a\0b", "c:\\x", "x" * 200]
)
def test_names_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    source = write_jsonl(tmp_path / "in" / "x.jsonl", documents(5))
    before = tree(tmp_path)
    with pytest.raises(UserError, match="cannot be a data set's name"):
        prepare([str(source)], tmp_path / "in" / "out", name=name)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "word", ["hf:../..", "hf:owner/..", "hf:o/n:../../x", "hf:o/n@../x", "hf:-a/.git"]
)
def test_hub_names_cannot_lead_elsewhere(
    tmp_path: Path, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onecard.data.sources.hub.check_hub", lambda: None)
    with pytest.raises(UserError, match="not a hub name"):
        prepare([word])
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())


@pytest.mark.parametrize("epoch", ["abc", "1e9", "9" * 30, "-" + "9" * 18])
def test_source_date_epoch(tmp_path: Path, epoch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    source = write_jsonl(tmp_path / "x.jsonl", documents(5))
    with pytest.raises(UserError, match="SOURCE_DATE_EPOCH"):
        prepare([str(source)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_hint_about_a_column_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1, 2, 3], "body": ["one", "two", "three"]}), "x.parquet")
    (tmp_path / "y.jsonl").write_text('{"id": 1, "body": "one"}\n{"id": 2, "body": "two"}\n')
    for name in ("x.parquet", "y.jsonl"):
        assert main(["data", name, "--workers", "1"]) == 2
        hint = capsys.readouterr().err.split("hint: ")[1]
        assert "--column" in hint
        assert name == "y.jsonl" or "text: body" in hint
        assert main(["data", name, "--workers", "1", "--column", "body"]) == 0


def test_order_ignores_the_systems_comparison_of_paths(tmp_path: Path) -> None:
    for name in ("b.txt", "A.txt", "a/z.txt", "B/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [Path(i.path).relative_to(tmp_path).as_posix() for i in local_source(tmp_path).inputs]
    assert found == ["A.txt", "B/c.txt", "a/z.txt", "b.txt"]


@pytest.mark.parametrize("dictionary", [False, True])
def test_the_first_page_of_a_column_is_its_dictionary_where_it_has_one(
    tmp_path: Path, dictionary: bool
) -> None:
    path = tmp_path / "a.parquet"
    texts = ["one", "two", "three"] * 5
    pq.write_table(pa.table({"n": list(range(15)), "text": texts}), path, use_dictionary=dictionary)
    known = pq.ParquetFile(path).metadata.row_group(0).column(1)
    wanted = known.dictionary_page_offset if dictionary else known.data_page_offset
    (group,) = read_footer(path)
    assert group.chunks["text"].first_page == wanted > 4


# ---- Windows ----


def test_workers_load_their_libraries_before_they_listen(tmp_path: Path) -> None:
    """Loading a library while another thread reads a piped standard input can block for ever on Windows."""
    code = (
        "import sys, threading\n"
        "start = threading.Thread.start\n"
        "def checked(self):\n"
        "    for name in ('numpy', 'pyarrow.parquet', 'onecard.data.preparation.order'):\n"
        "        assert name in sys.modules, name\n"
        "    print('checked', file=sys.stderr)\n"
        "    start(self)\n"
        "threading.Thread.start = checked\n"
        "from onecard.data.preparation.worker import main\n"
        "main()"
    )
    setup = {
        "op": "setup",
        "work": str(tmp_path),
        "tokenizer": {"name": "bytes"},
        "libraries": ["pyarrow.parquet"],
        "readings": [],
        "cuttings": [{"seed": 1, "val_fraction": 0.1}],
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(setup) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert '{"ready": true}' in done.stdout, done.stderr
    assert "checked" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="an open file is not removed there")
def test_who_begins_as_another_ends_keeps_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the first and the removal of its folder."""
    from onecard.data.preparation.work_folder import WorkFolder
    from onecard.files import Lock

    release, next_one = Lock.release, WorkFolder(tmp_path / "out")

    def release_and_begin(lock: Lock) -> None:
        release(lock)
        monkeypatch.undo()
        next_one.__enter__()

    with WorkFolder(tmp_path / "out") as work:
        work.remove_on_exit = True
        monkeypatch.setattr(Lock, "release", release_and_begin)
    with pytest.raises(UserError, match="is being prepared"):
        WorkFolder(tmp_path / "out").__enter__()
    next_one.__exit__()


def test_the_lock_is_released_before_its_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where an open file cannot be deleted."""
    from onecard.data.preparation.work_folder import WorkFolder

    unlink = Path.unlink
    with WorkFolder(tmp_path / "out") as work:

        def refuse_open_lock(path: Path, missing_ok: bool = False) -> None:
            if path.name == "lock" and work._lock.held:
                raise PermissionError(13, "in use")
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", refuse_open_lock)
        work.remove_on_exit = True
    assert not (tmp_path / "out").exists()
