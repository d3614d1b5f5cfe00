"""Data, broken on purpose: foreign files, damaged fields, files that change or unpack without end, no network."""

import gzip
import io
import json
import lzma
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from data_texts import corpus, documents, write_jsonl, write_parquet

from onecard.cli import main
from onecard.data import (
    keep_record,
    kept_record,
    kept_tokenizer,
    open_dataset,
    prepare,
)
from onecard.data.read.shard_files import header
from onecard.data.sources.documents import batches, units_of
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


# ---- the tokeniser ----


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


# ---- what is shown ----


def test_strangers_text_cannot_steer_the_terminal(
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


# ---- files that unpack without end ----


def test_a_small_dictionary_does_not_fill_the_memory(tmp_path: Path) -> None:
    """20,000 rows of one value of 4 MB: 80 GB of text in a file of some kilobytes."""
    value = pa.array(["x" * 4_000_000])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), value)
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"text": column}), path, compression="zstd", row_group_size=20_000)
    assert path.stat().st_size < 20_000
    assert_bounded(path, "unpacks to more than 1,000 times its size", tmp_path)


def test_a_parquet_page_of_gigabytes_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "page.parquet"
    table = pa.table({"text": ["y" * 280_000_000]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    del table
    assert path.stat().st_size < 100_000
    assert_bounded(path, "a page that unpacks to 267 MiB", tmp_path)


@pytest.mark.parametrize("kind", ["gz", "zst", "xz"])
def test_packed_bombs_and_endless_lines(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"bomb.jsonl.{kind}"
    zeros = bytes(16 * 2**20)
    if kind == "gz":
        content = gzip.compress(zeros, 9) * 20
    elif kind == "zst":
        content = zstandard.ZstdCompressor().compress(zeros) * 20
    else:
        content = lzma.compress(zeros) * 20
    path.write_bytes(content)
    assert_bounded(path, "unpacks to more", tmp_path)


def assert_bounded(path: Path, wanted: str, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from onecard.errors import OnecardError; from onecard.data import prepare\n"
        "try:\n"
        f"    prepare([{str(path)!r}], {str(tmp_path / 'out')!r}, workers=1, tokenizer='bytes')\n"
        "except OnecardError as error: print(error)\n"
        # the kernel counts what this process was before it began to run Python: the test's own memory
        "from pathlib import Path; status = Path('/proc/self/status')\n"
        "own = int(status.read_text().split('VmHWM:')[1].split()[0]) if status.exists() else "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    said, peak = done.stdout.strip().rsplit("\n", 1)
    assert wanted in said, said
    assert int(peak) * (1 if sys.platform == "darwin" else 1024) < 1_300_000_000, peak


def test_long_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.sources.jsonl_lines.MOST_LINE_BYTES", 1000)
    lines = [json.dumps({"text": t}) for t in ("one", "x" * 5000, "two", "y" * 982, "z" * 990)]
    content = "\n".join(lines).encode()
    (tmp_path / "x.jsonl").write_bytes(content)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(content))
    for name in ("x.jsonl", "x.jsonl.gz"):
        path = tmp_path / name
        (unit,) = units_of([(0, input_of(path), path)], 10**6, 0, Reading())
        (batch,) = batches(unit, Reading())
        assert [len(text) for text in batch.texts] == [3, 3, 982]
        assert batch.skipped == {"line too long": 2}
    cut = [
        Unit(i, "jsonl", ((0, str(tmp_path / "x.jsonl")),), a, a + 700)
        for i, a in enumerate(range(0, len(content), 700))
    ]
    texts = [t for unit in cut for b in batches(unit, Reading()) for t in b.texts]
    assert [len(text) for text in texts] == [3, 3, 982]


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


# ---- estimates, named sets, no network ----


def test_the_estimate_of_a_parquet_and_its_bar(tmp_path: Path) -> None:
    from onecard.data.preparation.pipeline import sized

    texts = [text * 3 for text in documents(3000, 1, 200)]
    source = write_parquet(tmp_path / "x.parquet", texts, notes=["n" * 50] * 3000)
    size, _ = sized([str(source)], tokenizer="bytes")
    events = []
    made = prepare(
        [str(source)], tmp_path / "a", workers=1, tokenizer="bytes", progress=events.append
    )
    assert size.tokens == pytest.approx(made.tokens, rel=0.05)
    half = made.tokens // 2
    prepare(
        [str(source)], tmp_path / "b", half, workers=1, tokenizer="gpt2", progress=events.append
    )
    for event in events:
        assert event.done <= event.total
    whole = [event for event in events if event.stage == "tokenising" and event.done]
    assert (
        min(event.done / event.total for event in whole) < 0.9
    )  # the rest is counted from the first
    assert whole[-1].done == pytest.approx(whole[-1].total, rel=0.05)
    lines = write_jsonl(tmp_path / "y.jsonl", texts[:500], padding="p" * 2000)
    size, _ = sized([str(lines)], tokenizer="bytes")
    made = prepare([str(lines)], tmp_path / "c", workers=1, tokenizer="bytes")
    assert size.tokens == pytest.approx(made.tokens, rel=0.1)


def test_prose_is_estimated_within_a_tenth() -> None:
    from onecard.data.preparation.pipeline import sized

    size, _ = sized([str(corpus("prose.parquet"))])
    assert size.tokens == pytest.approx(5_470_000, rel=0.1)


def test_shakespeare_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text("To be, or not to be\n" * 100)
    assert main(["data", "shakespeare_char=input.txt", "--workers", "1"]) == 0
    data = open_dataset("shakespeare_char")
    assert data.layout.tokenizer is not None
    assert (data.layout.tokenizer["name"], data.eot) == ("chars", None)
    assert data.splits["train"].tokens == 1800
    assert main(["data", "shakespeare_char=nothing.txt"]) == 2


def test_shakespeare_from_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded once, checked, kept: then no network is needed."""
    import http.server

    from onecard.facts import datasets

    text = corpus("tinyshakespeare.txt").read_bytes()
    sent = [text[:-1] + b"?", text]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = sent.pop(0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    facts = datasets.find_dataset("shakespeare_char")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/input.txt"
        named = datasets.DatasetFacts(**{**facts.__dict__, "url": url})
        monkeypatch.setattr(datasets, "all_datasets", lambda: (named,))
        with pytest.raises(RunFailure, match="is not shakespeare_char's text"):
            prepare(["shakespeare_char"], workers=1)
        made = prepare(["shakespeare_char"], workers=1)
        server.shutdown()
    assert [made.splits[name]["tokens"] for name in ("train", "val")] == [1_003_854, 111_540]
    assert prepare(["shakespeare_char"], tmp_path / "again", workers=1).tokens == made.tokens


@pytest.mark.parametrize("words", [["fineweb-edu"], ["fineweb-edu", "--dry-run"], ["hf:me/set"]])
def test_without_a_network_it_fails_at_once_and_leaves_nothing(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for name in (
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "HF_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)
    began = time.monotonic()
    assert main(["data", *words]) == 1
    assert time.monotonic() - began < 15
    said = capsys.readouterr().err
    assert "127.0.0.1 cannot be reached" in said
    assert "kept" not in said
    assert not list(tmp_path.glob("data/*"))


def test_failed_folders_are_not_listed_as_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("failed", "unfinished", "whole"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "unfinished" / ".work").mkdir()
    (tmp_path / "data" / "unfinished" / "x_train_000001.bin").write_bytes(header(1) + b"\0\0")
    (tmp_path / "data" / "whole" / "train.bin").write_bytes(b"\0\0")
    with pytest.raises(UserError) as caught:
        open_dataset("other")
    assert caught.value.hint == "prepared here: whole"


def test_a_server_that_accepts_and_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onecard.data.sources import network

    monkeypatch.setattr(network, "_CONNECT_SECONDS", 0.2)
    answer = threading.Event()
    monkeypatch.setattr(
        network.socket, "create_connection", lambda *_: answer.wait(60) and io.BytesIO()
    )
    with pytest.raises(RunFailure, match="no answer within"):
        network.check_reachable("https://hub.example")
    answer.set()


@pytest.mark.parametrize(
    ("url", "proxies", "address"),
    [
        ("https://hub.example/sets", {}, ("hub.example", 443)),
        ("http://hub.example", {}, ("hub.example", 80)),
        ("http://hub.example:8080", {}, ("hub.example", 8080)),
        (
            "https://hub.example",
            {"https_proxy": "http://gate.example:3128"},
            ("gate.example", 3128),
        ),
        ("https://hub.example", {"ALL_PROXY": "gate.example"}, ("gate.example", 80)),
    ],
)
def test_the_address_that_is_asked_first(url: str, proxies: dict, address: tuple) -> None:
    from onecard.data.sources import network

    assert network._address(url, proxies) == address


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
