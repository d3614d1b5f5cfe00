"""Mixes: shares of tokens, repetition, per-source reading, whose each validation token is; the same bytes every time."""

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_texts import MARKS, digests, marked_texts, tokens_of, write_jsonl

from onecard.data import gpt2, open_dataset, prepare
from onecard.data.preparation.pipeline import sized
from onecard.data.sources.documents import batches
from onecard.data.sources.unit import Reading, Unit
from onecard.errors import UserError


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three corpora of three kinds: parquet with scores, jsonl, a folder of texts."""
    folder = tmp_path_factory.mktemp("sources")
    web = marked_texts("web", 1500)
    table = pa.table({"text": web, "score": [index % 5 for index in range(len(web))]})
    pq.write_table(table, folder / "web.parquet", row_group_size=300)
    write_jsonl(folder / "code.jsonl", marked_texts("code", 900))
    (folder / "notes").mkdir()
    for index, text in enumerate(marked_texts("notes", 60)):
        (folder / "notes" / f"{index:04d}.md").write_text(text)
    return {
        "web": str(folder / "web.parquet"),
        "code": str(folder / "code.jsonl"),
        "notes": str(folder / "notes"),
    }


def words(sources: dict[str, str]) -> list[str]:
    return [f"{sources['web']}=60%", f"{sources['code']}=30%", f"{sources['notes']}=10%"]


def owners(folder: Path, split: str) -> tuple[dict[str, int], list[str]]:
    """Tokens by source as the shards themselves show, document by document; and the owner of every token."""
    data = open_dataset(folder)
    ids = data.splits[split].read(0, data.splits[split].tokens)
    starts = np.flatnonzero(ids == data.eot).tolist()
    assert starts[0] == 0
    found = dict.fromkeys(MARKS, 0)
    whose: list[str] = []
    for low, high in zip(starts, [*starts[1:], len(ids)], strict=True):
        text = gpt2().decode(ids[low + 1 : high].tolist())
        name = next(key for key, mark in MARKS.items() if text.startswith(mark))
        found[name] += high - low
        whose += [name] * (high - low)
    return found, whose


def check_shares(folder: Path, wanted: dict[str, float], longest: int) -> None:
    found, _ = owners(folder, "train")
    whole = sum(found.values())
    for name, share in wanted.items():
        assert abs(found[name] / whole - share) <= max(0.002, longest / whole), (name, found)


def test_shares_measured_from_the_shards(sources: dict[str, str], tmp_path: Path) -> None:
    made = prepare(words(sources), tmp_path / "mix", 20_000, workers=1)
    check_shares(tmp_path / "mix", {"web": 0.6, "code": 0.3, "notes": 0.1}, 90)
    found, _ = owners(tmp_path / "mix", "train")
    assert [entry["splits"]["train"]["tokens"] for entry in made.sources] == list(found.values())
    assert abs(made.tokens - 20_000) < 600
    assert made.order == "shuffled"


def test_each_validation_token_belongs_to_its_source(
    sources: dict[str, str], tmp_path: Path
) -> None:
    made = prepare(words(sources), tmp_path / "mix", 20_000, workers=1)
    found, whose = owners(tmp_path / "mix", "val")
    assert all(found.values())
    data = open_dataset(tmp_path / "mix")
    names = data.sources.names
    assert names == ["web", "code", "notes"]
    assert [names[place] for place in data.sources.of("val", 0, len(whose))] == whose
    assert [names[place] for place in data.sources.of("val", 100, 50)] == whose[100:150]
    assert [entry["splits"]["val"]["tokens"] for entry in made.sources] == list(found.values())


def test_one_and_three_workers_give_the_same_bytes(
    sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for workers in (1, 3):
        prepare(
            words(sources), tmp_path / str(workers), 60_000, workers=workers, repeat=True, seed=3
        )
    assert digests(tmp_path / "1") == digests(tmp_path / "3")
    runs = (tmp_path / "1" / "web-and-more_val_sources.bin").read_bytes()
    assert runs == (tmp_path / "3" / "web-and-more_val_sources.bin").read_bytes()


def test_npy_shards_are_a_source_of_a_mix(sources: dict[str, str], tmp_path: Path) -> None:
    """Their ids come out as they are, document by document, whatever the ranges that workers read."""
    (tmp_path / "shards").mkdir()
    documents = [gpt2().encode(text) for text in marked_texts("code", 300)]
    for number, part in enumerate((documents[:140], documents[140:])):
        ids = [i for document in part for i in (50256, *document)]
        np.save(tmp_path / "shards" / f"code_train_{number:06d}.npy", np.array(ids, np.uint16))
    whole = sum(map(len, documents)) + len(documents)
    mix = [f"{sources['web']}=50%", f"{tmp_path / 'shards'}=50%"]
    size, _ = sized(mix, tmp_path / "mix", whole, workers=1)
    assert not size.uncertain
    made = prepare(mix, tmp_path / "mix", whole, workers=1)
    found, _ = owners(tmp_path / "mix", "train")
    assert abs(found["code"] / (found["web"] + found["code"]) - 0.5) < 0.01
    data = open_dataset(tmp_path / "mix").splits["train"]
    ids = data.read(0, data.tokens)
    starts = [*np.flatnonzero(ids == 50256).tolist(), len(ids)]
    seen = {tuple(ids[low + 1 : high].tolist()) for low, high in pairwise(starts)}
    assert len(seen & {tuple(document) for document in documents}) > 100
    assert made.sources[1]["name"] == "shards"
    with pytest.raises(UserError, match="holds GPT-2's tokens"):
        prepare(mix, tmp_path / "bytes", 10_000, workers=1, tokenizer="bytes")
    unit = Unit(0, "tokens", ((0, str(tmp_path / "shards" / "code_train_000000.npy")),), 0, 0)
    length = sum(len(document) + 1 for document in documents[:140])
    cut = [replace(unit, start=low, stop=low + 37) for low in range(0, length, 37)]
    pieces = [ids for part in cut for batch in batches(part, Reading()) for ids in batch.ids]
    assert [ids[1:].tolist() for ids in pieces] == documents[:140]


def test_a_source_that_is_too_small_by_little_is_named_before_anything_is_tokenised(
    sources: dict[str, str], tmp_path: Path
) -> None:
    whole = tokens_of(marked_texts("notes", 60))
    for times in (1.15, 1.6):
        out = tmp_path / str(times)
        total = round(times * whole / 0.1)
        with pytest.raises(UserError, match=r"notes is too small: 10% .* repeated 1\.\d times"):
            prepare(words(sources), out, total, workers=1)
        assert not list(out.rglob("*.part"))
        assert not (out / ".work").exists()
    for times in (0.8, 0.97):  # so few documents are all counted: no margin is needed
        size, _ = sized(words(sources), tmp_path / "mix", round(times * whole / 0.1), workers=1)
        assert not size.uncertain


def test_a_source_near_its_limit_is_counted_before_the_others_are_read(
    sources: dict[str, str], tmp_path: Path
) -> None:
    rng = random.Random(1)
    lines = [" ".join(f"{rng.getrandbits(40):x}" for _ in range(8)) for _ in range(120)]
    packed = tmp_path / "packed.jsonl.gz"  # its size says little: only counting helps
    packed.write_bytes(gzip.compress("".join(f'{{"text": "{t}"}}\n' for t in lines).encode()))
    mine = tokens_of(lines)
    mix = [f"{sources['web']}=50%", f"{packed}=50%"]
    size, _ = sized(mix, tmp_path / "mix", 3 * mine, workers=1)
    assert [name for name, _, _ in size.uncertain] == [str(packed)]
    seen: list[int] = []
    with pytest.raises(UserError, match=r"packed is too small: 50% .* repeated 1\.\d times"):
        prepare(
            mix, tmp_path / "mix", 3 * mine, workers=1, progress=lambda e: seen.append(e.tokens)
        )
    assert max(seen) <= mine  # nothing of the web has been tokenised
    # what was tokenised serves where the same command is given with `repeat`
    assert prepare(mix, tmp_path / "mix", 3 * mine, workers=1, repeat=True).tokens > 2 * mine


def test_a_source_that_is_too_small(sources: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "mix"
    with pytest.raises(
        UserError, match=r"notes is too small: 10% .* repeated \d+\.\d times"
    ) as error:
        prepare(words(sources), out, 60_000, workers=1)
    assert "`repeat`" in str(error.value.hint)
    made = prepare(words(sources), out, 60_000, workers=1, repeat=True)  # the same parts serve
    check_shares(out, {"web": 0.6, "code": 0.3, "notes": 0.1}, 90)
    epochs = made.sources[2]["epochs"]
    assert epochs > 1.5
    ids = open_dataset(out).splits["train"]
    seen: dict[bytes, int] = {}
    stream = ids.read(0, ids.tokens)
    starts = np.flatnonzero(stream == 50256).tolist()
    for low, high in zip(starts, [*starts[1:], len(stream)], strict=True):
        document = stream[low:high].tobytes()
        seen[document] = seen.get(document, 0) + 1
    times = {count for document, count in seen.items()}
    assert times <= {1, int(epochs), int(epochs) + 1}  # evenly, and the others once
    largest = prepare(words(sources), tmp_path / "small", 60_000, workers=1, largest=True)
    assert largest.sources[2]["epochs"] == pytest.approx(1, abs=0.05)
    assert largest.tokens < made.tokens
    check_shares(tmp_path / "small", {"web": 0.6, "code": 0.3, "notes": 0.1}, 90)


def test_validation_documents_are_never_trained_on(sources: dict[str, str], tmp_path: Path) -> None:
    prepare(words(sources), tmp_path / "mix", 60_000, workers=1, repeat=True)
    data = open_dataset(tmp_path / "mix")
    sides = []
    for split in ("train", "val"):
        ids = data.splits[split].read(0, data.splits[split].tokens)
        starts = np.flatnonzero(ids == 50256).tolist()
        pairs = zip(starts, [*starts[1:], len(ids)], strict=True)
        sides.append({ids[low:high].tobytes() for low, high in pairs})
    assert not sides[0] & sides[1]


def test_a_mix_file_with_a_reading_for_each_source(tmp_path: Path) -> None:
    table = pa.table(
        {
            "title": [f"alpha {n}" for n in range(300)],
            "body": [f"text {n}" if n % 7 else None for n in range(300)],
            "lang": ["en" if n % 2 else "de" for n in range(300)],
            "score": [n / 300 for n in range(300)],
        }
    )
    pq.write_table(table, tmp_path / "pages.parquet")
    stories = [f"beta story {n} " + "and so on " * 5 for n in range(200)]
    (tmp_path / "stories.txt").write_text("<|endoftext|>".join(stories))
    ids = [gpt2().encode(f"gamma {n} " + "token " * 10) for n in range(200)]
    rows = [{"tokens": [*row, 50256]} for row in ids] + [{"tokens": [99999]}, {"tokens": "no"}]
    (tmp_path / "ready.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mix.toml").write_text(
        f"""
name = "three"
[[source]]
from = "{tmp_path}/pages.parquet"
share = "50%"
template = "{{title}}\\n\\n{{body}}"
where = ["lang=en", "score>=0.5"]
licence = "CC0-1.0"
[[source]]
from = "{tmp_path}/stories.txt"
share = 0.25
separator = "<|endoftext|>"
[[source]]
from = "{tmp_path}/ready.jsonl"
column = "tokens"
"""
    )
    made = prepare([str(tmp_path / "mix.toml")], tmp_path / "mix", workers=1)
    assert made.name == "three"
    assert made.sources[0]["licence"] == "CC0-1.0"
    check_shares(tmp_path / "mix", {"web": 0.5, "code": 0.25, "notes": 0.25}, 40)
    assert made.skipped["not token ids"] == 1
    assert made.skipped["no text"] == 1
    assert made.skipped["filtered"] == 225
    data = open_dataset(tmp_path / "mix")
    every = [gpt2().decode(data.splits[s].read(0, data.splits[s].tokens)) for s in ("train", "val")]
    documents = [text for split in every for text in split.split("<|endoftext|>")[1:]]
    assert "alpha 299\n\ntext 299" in documents
    assert "alpha 203\n\n" in documents  # a column without a value is empty
    assert any(text.startswith("gamma 5 token token") for text in documents)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[[source]]\nfrom = 'a'\nshare = '-10%'", "a share of -10%"),
        ("[[source]]\nfrom = 'a'\nshare = 3", "a share of 300%"),
        ("[[source]]\nshare = '10%'", "without from"),
        ("[[source]]\nfrom = 'a'\ncolum = 'x'", "unknown key 'colum'"),
        ("[[source]]\nfrom = 'a'\nshare = 1\nwhere = 'score'", "not a condition"),
        ("[[source]]\nfrom = 'a'\nshare = 1\ntemplate = '{a.__class__}{'", "brace"),
        ("[[source]]\nfrom = 'a'\nshare = 1\ntemplate = 'no column'", "not a template"),
        ("tokens = ", "not a mix file"),
        ("", "names no"),
    ],
)
def test_a_wrong_mix_file_gets_one_sentence(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "mix.toml").write_text(content)
    with pytest.raises(UserError, match=says):
        prepare([str(tmp_path / "mix.toml")], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9")
@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.long)])
def test_killed_again_and_again(sources: dict[str, str], tmp_path: Path, times: int) -> None:
    rng = random.Random(5)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}

    def command(out: str, workers: int) -> list[str]:
        start = [sys.executable, "-m", "onecard", "data", *words(sources), "--tokens", "60000"]
        return [*start, "--repeat", "--out", str(tmp_path / out), "--workers", str(workers)]

    began = time.monotonic()
    subprocess.run(command("plain", 1), check=True, capture_output=True, env=environment)
    whole = time.monotonic() - began
    kills = 0
    while kills < times:
        run = subprocess.Popen(
            command("killed", rng.choice([1, 2])),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.3, 0.95) * whole)
        os.kill(run.pid, signal.SIGKILL)
        if run.wait(timeout=60) == 0:  # it was faster
            assert digests(tmp_path / "killed") == digests(tmp_path / "plain")
            (tmp_path / "killed").rename(tmp_path / f"whole{kills}-{rng.random()}")
        else:
            kills += 1
    subprocess.run(command("killed", 2), check=True, capture_output=True, env=environment)
    assert digests(tmp_path / "killed") == digests(tmp_path / "plain")
    assert not (tmp_path / "killed" / ".work").exists()


def test_npy_shards_are_read_as_they_are(tmp_path: Path) -> None:
    ids = np.concatenate([[50256], gpt2().encode("Hello world, a shard of numpy's")])
    for name in ("edu_val_000000.npy", "edu_train_000001.npy", "edu_train_000002.npy"):
        np.save(tmp_path / name, ids.astype(np.uint16))
    data = open_dataset(tmp_path)
    assert {name: split.tokens for name, split in data.splits.items()} == {
        "val": len(ids),
        "train": 2 * len(ids),
    }
    assert data.splits["train"].read(0, 2 * len(ids)).tolist() == [*ids, *ids]
    made = prepare([str(tmp_path)])
    assert made.format == "npy"
    assert made.splits["train"]["documents"] == 2
    assert open_dataset(tmp_path).splits["val"].read(0, len(ids)).tolist() == ids.tolist()
    np.save(tmp_path / "edu_train_000003.npy", ids.astype(np.uint32))
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(UserError, match="numbers of the kind <u4"):
        open_dataset(tmp_path)
    (tmp_path / "edu_train_000003.npy").write_bytes(
        (tmp_path / "edu_val_000000.npy").read_bytes()[:-3]
    )
    with pytest.raises(UserError, match="has room for"):
        open_dataset(tmp_path)
