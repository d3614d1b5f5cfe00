"""From sources to shards: what comes out is what went in, whatever the workers, files and formats."""

import gzip
import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from data_texts import corpus, digests, documents, documents_in, write_jsonl, write_parquet

from onecard.data import open_dataset, prepare
from onecard.data.tokenizers.bpe import gpt2
from onecard.errors import RunFailure, UserError


def each(texts: list[str]) -> list[tuple[int, ...]]:
    ids, offsets = gpt2().encode_batch(texts)
    return [tuple(ids[low:high].tolist()) for low, high in pairwise(offsets)]


def encoded(texts: list[str]) -> Counter[tuple[int, ...]]:
    return Counter(each(texts))


def prepared(folder: Path) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(ids) for split in open_dataset(folder).splits for ids in documents_in(folder, split)
    )


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with several files of each kind, enough text for several units."""
    folder = tmp_path_factory.mktemp("big")
    for index in range(3):
        write_parquet(folder / f"p{index}.parquet", documents(800, index, 400), row_group=200)
        write_jsonl(folder / f"j{index}.jsonl", documents(400, 10 + index, 400))
    with gzip.open(folder / "z.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents(300, 20))
    (folder / "notes.txt").write_text("\n".join(documents(50, 30)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def plain(big: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain") / "set"
    prepare([str(big)], out, workers=1, name="set")
    return out


def test_every_document_once_and_shuffled(big: Path, plain: Path) -> None:
    texts = [t for i in range(3) for t in documents(800, i, 400)] + [
        t for i in range(3) for t in documents(400, 10 + i, 400)
    ]
    texts += [*documents(300, 20), "\n".join(documents(50, 30))]
    assert prepared(plain) == encoded(texts)
    order = [tuple(ids) for ids in documents_in(plain, "train")]
    place = {ids: index for index, ids in enumerate(each(texts))}
    places = np.array([place[ids] for ids in order])
    assert (
        abs(np.corrcoef(places, np.arange(len(places)))[0, 1]) < 0.08
    )  # a uniform shuffle has 0 ± 0.016
    manifest = open_dataset(plain).manifest
    assert manifest["splits"]["train"]["documents"] == len(order)
    assert sum(split["bytes"] for split in manifest["splits"].values()) == sum(
        len(text.encode()) for text in texts
    )


def test_any_number_of_workers_gives_the_same_bytes(big: Path, plain: Path, tmp_path: Path) -> None:
    prepare([str(big)], tmp_path / "set", workers=3, name="set")
    assert digests(tmp_path / "set") == digests(plain)


def test_unit_and_part_sizes_do_not_show(
    big: Path, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onecard.data.preparation.request._UNIT_BYTES", (100_000, 300_000))
    monkeypatch.setattr("onecard.data.preparation.order.BUCKET_TOKENS", 50_000)
    prepare([str(big)], tmp_path / "set", workers=2, name="set")
    assert digests(tmp_path / "set") == digests(plain)


def test_small_shards_hold_the_same_stream(big: Path, plain: Path, tmp_path: Path) -> None:
    prepare([str(big)], tmp_path / "set", workers=1, shard_tokens=30_000)
    one, many = open_dataset(plain), open_dataset(tmp_path / "set")
    for name, split in one.splits.items():
        assert np.array_equal(split.read(0, split.tokens), many.splits[name].read(0, split.tokens))
        assert {shard.tokens for shard in many.splits[name].shards[:-1]} <= {30_000}
    assert len(many.splits["train"].shards) > 10
    assert not many.splits["train"].verify()


def test_validation_is_by_text_alone(big: Path, plain: Path, tmp_path: Path) -> None:
    prepare([str(big)], tmp_path / "set", workers=1, seed=7)
    assert documents_in(tmp_path / "set", "train") != documents_in(plain, "train")
    assert Counter(map(tuple, documents_in(tmp_path / "set", "val"))) == Counter(
        map(tuple, documents_in(plain, "val"))
    )
    share = len(documents_in(plain, "val")) / 3_901
    assert 0.07 < share < 0.13


def test_tokens_takes_the_beginning(tmp_path: Path) -> None:
    texts = documents(3000, 1)
    source = write_parquet(tmp_path / "x.parquet", texts)
    out = prepare([str(source)], tmp_path / "set", 20_000, workers=2)
    lengths = np.cumsum([len(gpt2().encode(text)) + 1 for text in texts])
    count = int(np.searchsorted(lengths, 20_000)) + 1
    assert out.tokens == lengths[count - 1]
    assert prepared(tmp_path / "set") == encoded(texts[:count])


def test_duplicates(tmp_path: Path) -> None:
    texts = documents(400, 1)
    source = write_jsonl(tmp_path / "x.jsonl", texts[:300] + texts[:300] + texts)
    kept = prepare([str(source)], tmp_path / "kept", workers=1, val_fraction=0.2)
    assert prepared(tmp_path / "kept") == encoded(texts[:300] + texts[:300] + texts)
    val = set(map(tuple, documents_in(tmp_path / "kept", "val")))
    assert not val & set(
        map(tuple, documents_in(tmp_path / "kept", "train"))
    )  # copies never sit on both sides
    dropped = prepare([str(source)], tmp_path / "dropped", workers=2, dedup=True, val_fraction=0.2)
    assert prepared(tmp_path / "dropped") == encoded(texts)
    assert dropped.skipped == {"duplicate": 600}
    assert kept.skipped == {}


def test_duplicates_do_not_count_as_tokens(tmp_path: Path) -> None:
    texts = documents(2000, 1, 400)
    source = tmp_path / "x"
    write_jsonl(source / "a.jsonl", texts[:10] * 1500)
    write_jsonl(source / "b.jsonl", texts)
    out = prepare([str(source)], tmp_path / "set", 50_000, workers=2, dedup=True)
    assert 50_000 <= out.tokens < 52_000
    assert max(prepared(tmp_path / "set").values()) == 1


def test_filters(tmp_path: Path) -> None:
    texts = documents(300, 1)
    languages = ["en" if index % 3 else "fr" for index in range(300)]
    scores = [index / 300 for index in range(300)]
    source = write_parquet(tmp_path / "x.parquet", texts, language=languages, language_score=scores)
    wanted = [
        t
        for t, lang, s in zip(texts, languages, scores, strict=True)
        if lang == "en" and s >= 0.5 and len(t) >= 40
    ]
    rows = [
        {"text": t, "language": a, "language_score": s}
        for t, a, s in zip(texts, languages, scores, strict=True)
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("x.parquet", "x.jsonl"):
        out = prepare(
            [str(tmp_path / name)],
            tmp_path / f"set-{name}",
            workers=1,
            language="en",
            min_language_score=0.5,
            min_chars=40,
        )
        assert prepared(tmp_path / f"set-{name}") == encoded(wanted)
        assert out.skipped == {"filtered": 300 - len(wanted)}
    assert source.exists()


def test_packed_and_plain_files_agree(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(500, 3)).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress(lines))
    pack = zstandard.ZstdCompressor().compress
    (tmp_path / "a.jsonl.zst").write_bytes(
        pack(lines[:5000]) + pack(lines[5000:])
    )  # two frames, as pzstd writes
    shards = set()
    for suffix in ("", ".gz", ".xz", ".zst"):
        out = prepare([str(tmp_path / f"a.jsonl{suffix}")], tmp_path / f"out{suffix}", workers=1)
        shards.add(out.splits["train"]["shards"][0]["sha256"])
    assert len(shards) == 1


def test_a_single_text_is_kept_in_order(tmp_path: Path) -> None:
    text = "\n".join(documents(16_000, 5))  # several pieces
    (tmp_path / "story.txt").write_text(text, encoding="utf-8")
    out = prepare([str(tmp_path / "story.txt")], tmp_path / "set", workers=2)
    cut = out.splits["train"]["bytes"]
    raw = text.encode()
    assert abs(cut - int(len(raw) * 0.9)) < 4
    assert documents_in(tmp_path / "set", "train") == [gpt2().encode(raw[:cut].decode())]
    assert documents_in(tmp_path / "set", "val") == [gpt2().encode(raw[cut:].decode())]
    assert (out.order, out.splits["train"]["documents"]) == ("running text", 1)


def test_shakespeare_as_nanogpt_cuts_it(tmp_path: Path) -> None:
    source = str(corpus("tinyshakespeare.txt"))
    chars = prepare([source], tmp_path / "chars", workers=1, tokenizer="chars")
    assert [chars.splits[s]["tokens"] for s in ("train", "val")] == [1_003_854, 111_540]
    assert chars.tokenizer["vocab_size"] == 65
    text = corpus("tinyshakespeare.txt").read_text()
    data = open_dataset(tmp_path / "chars")
    assert data.tokenizer.decode(data.splits["val"].read(0, 111_540).tolist()) == text[1_003_854:]
    bpe = prepare([source], tmp_path / "gpt2", workers=1)
    assert [bpe.splits[s]["tokens"] - 1 for s in ("train", "val")] == [
        301_966,
        36_059,
    ]  # one separator each


def test_bytes_and_trained_bpe(tmp_path: Path) -> None:
    texts = documents(300, 4)
    source = str(write_jsonl(tmp_path / "x.jsonl", texts))
    for tokenizer in ("bytes", "chars", "bpe:500"):
        out = tmp_path / tokenizer.replace(":", "-")
        manifest = prepare([source], out, workers=1, tokenizer=tokenizer)
        data = open_dataset(out)
        found = Counter(
            data.tokenizer.decode(ids) for split in data.splits for ids in documents_in(out, split)
        )
        assert found == Counter(texts)
        assert manifest.tokenizer["vocab_size"] == data.tokenizer.vocab_size
    assert data.vocab_size == 500


def test_stdlib_needs_nothing(tmp_path: Path) -> None:
    out = prepare([], tmp_path / "set", 200_000, workers=1)
    assert out.sources[0]["licence"] == "PSF-2.0"
    assert 200_000 <= out.tokens < 260_000
    assert set(out.splits) == {"train", "val"}


def test_few_documents_still_have_a_validation(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", ["one", "two", "three"])
    out = prepare([str(source)], tmp_path / "set", workers=1, val_fraction=0.001)
    assert out.splits["val"]["documents"] == 1
    assert prepared(tmp_path / "set") == encoded(["one", "two", "three"])
    none = prepare([str(source)], tmp_path / "none", workers=1, val_fraction=0)
    assert set(none.splits) == {"train"}


def test_the_same_call_again_changes_nothing(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(50))
    first = prepare([str(source)], tmp_path / "set", workers=1)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "set").iterdir()}
    assert prepare([str(source)], tmp_path / "set", workers=2) == first
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "set").iterdir()} == before
    with pytest.raises(UserError, match="another data set"):
        prepare([str(source)], tmp_path / "set", seed=3)
    write_jsonl(source, documents(60))
    with pytest.raises(UserError, match="has changed"):
        prepare([str(source)], tmp_path / "set")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.doc").touch()
    with pytest.raises(UserError, match="other files"):
        prepare([str(source)], tmp_path / "other")


def test_two_runs_into_one_folder(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(50))
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib; from onecard.data.preparation.work_folder import WorkFolder\n"
            f"with WorkFolder(pathlib.Path({str(tmp_path / 'set')!r})): print('held', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"being prepared by process {holder.pid}"):
        prepare([str(source)], tmp_path / "set", workers=1)
    holder.kill()  # kill -9: the lock goes with it
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert prepare([str(source)], tmp_path / "set", workers=1).tokens
    assert not (tmp_path / "set" / ".work").exists()


def test_changed_arguments_or_input_are_refused_half_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "x.jsonl", documents(50))

    def stop(*_: object, **__: object) -> None:
        raise RunFailure("the power went")

    with monkeypatch.context() as patch:
        patch.setattr("onecard.data.preparation.stages.lay_out", stop)
        with pytest.raises(RunFailure, match="the power went"):
            prepare([str(source)], tmp_path / "set", workers=1, seed=1)
    with pytest.raises(UserError, match="other arguments"):
        prepare([str(source)], tmp_path / "set", workers=1, seed=2)
    write_jsonl(source, documents(49))
    with pytest.raises(UserError, match="has changed since this was started"):
        prepare([str(source)], tmp_path / "set", workers=1, seed=1)
    assert prepare([str(source)], tmp_path / "set", workers=1, fresh=True).tokens
    assert not (tmp_path / "set" / ".work").exists()


def test_a_nanogpt_folder_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "fineweb"
    folder.mkdir()
    ids = [15496, 995, 50256, 1, 50256]
    (folder / "train.bin").write_bytes(np.array(ids, "<u2").tobytes())
    (folder / "val.bin").write_bytes(np.array(ids[:3], "<u2").tobytes())
    out = prepare([str(folder)])
    assert (out.format, out.splits["train"]["documents"], out.splits["val"]["bytes"]) == (
        "nanogpt",
        2,
        11,
    )
    assert (folder / "train.bin").stat().st_size == 10
    data = open_dataset(folder)
    assert data.splits["train"].read(0, 5).tolist() == ids
    assert data.bytes_per_token == round((11 + 12) / 8, 6)
    assert (
        data.text_bytes_per_token("val") == 11 / 3
    )  # a loss per byte is of the text it was measured on
    assert not data.splits["train"].verify()
    with pytest.raises(UserError, match="used as it is"):
        prepare([str(folder)], tmp_path / "elsewhere")
    (folder / "manifest.json").unlink()
    (folder / "val.bin").write_bytes(np.array([60000], "<u2").tobytes())
    with pytest.raises(UserError, match=r"val\.bin, offset 0: token id 60000"):
        prepare([str(folder)])


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    """Workers are plain commands: a script that calls the library at its top level is not run again by them."""
    source = write_jsonl(tmp_path / "x.jsonl", documents(20))
    script = tmp_path / "script.py"
    script.write_text(
        f"print('once')\nimport onecard.data\nprint(onecard.data.prepare([{str(source)!r}], {str(tmp_path / 'set')!r}, workers=2).tokens)"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.split()[0] == "once", done.stderr
    assert len(done.stdout.split()) == 2
    assert os.listdir(tmp_path / "set")
