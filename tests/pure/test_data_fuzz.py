"""Untrusted files, mutated: a result or one sentence, in bounded time, and never another exception.

Each reader is given some hundred cases in the ordinary run and many thousands in the long one.
"""

import bz2
import copy
import gzip
import io
import json
import lzma
import pickle
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onecard.data import open_dataset
from onecard.data.read.kept import kept_tokenizer
from onecard.data.read.preview import preview
from onecard.data.read.shard_files import header
from onecard.data.sources.documents import batches, units_of
from onecard.data.sources.local_files import input_of
from onecard.data.sources.unit import Reading
from onecard.data.tokenizers.bpe import bpe_spec, byte_characters
from onecard.errors import OnecardError

Reader = Callable[[Path, bytes], None]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


# ---- how files are damaged ----

Damage = Callable[[random.Random], bytes]
ODD_VALUES = [
    *(None, True, False, 0, 1, -1, 3, 256, 65536, 2**31, 2**62, -(2**70), 10**400),
    *(0.5, -1.5, 1e308, float("nan"), float("inf"), "", "x", "gpt2", "bytes", "chars", "bpe"),
    *("../x", "x.bin", "\ud800", "\0", "\x1b[2J", "a" * 300, [], {}, [[]], [None], {"": 1}),
    *({"file": "x.bin", "tokens": 4}, ["a", "b"], ["\ud800"], ["ab"], [["a", "b"]], {"a": 0}),
]


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    if depth < 2 and rng.random() < 0.2:
        inner = [odd_value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
        return inner if rng.random() < 0.5 else {str(value)[:9]: value for value in inner}
    return copy.deepcopy(rng.choice(ODD_VALUES))


def damaged_json(value: Any) -> Damage:
    """A JSON document with one or two of its places replaced, removed or renamed."""
    plain = json.dumps(value)

    def damage(rng: random.Random) -> bytes:
        root = {"": json.loads(plain)}
        for _ in range(rng.randint(1, 2)):
            at: Any = root
            key: Any = ""
            while isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
                at = at[key]
                key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
            kind = rng.random()
            if at is not root and kind < 0.2:
                del at[key]
            elif isinstance(at, dict) and at is not root and kind < 0.3:
                at[rng.choice(["x", "", "name", "\ud800"])] = at.pop(key)
            else:
                at[key] = odd_value(rng)
        return json.dumps(root[""]).encode()

    return damage


def damaged_bytes(*contents: bytes) -> Damage:
    """Bytes with a few places changed, cut out, doubled or cut off; sometimes nothing but noise."""

    def damage(rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            return rng.randbytes(rng.randint(0, 80))
        out = bytearray(rng.choice(contents))
        for _ in range(rng.randint(1, 4)):
            at, kind = rng.randrange(len(out) + 1), rng.randint(0, 9)
            if kind < 3 and at < len(out):
                out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            elif kind < 6 and at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            elif kind < 7:
                del out[at : at + rng.randint(1, 40)]
            elif kind < 9:
                out[at:at] = rng.randbytes(rng.randint(1, 12))
            else:
                del out[at:]
        return bytes(out)

    return damage


def odd_text(rng: random.Random) -> bytes:
    ranges = [(0, 128), (128, 0x800), (0xD800, 0xE000), (0x2000, 0x2100), (0x10000, 0x110000)]
    text = "".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(0, 100)))
    coding = rng.choice(["utf-8", "utf-16", "utf-32", "utf-7"])
    mark = rng.choice([b"", b"\xef\xbb\xbf", b"\xff\xfe"])
    return mark + text.encode(coding, "surrogatepass" if coding != "utf-7" else "replace")


def odd_records(rng: random.Random) -> bytes:
    keys = ["text", "language", "language_score", "id", ""]
    rows: list[Any] = []
    for _ in range(rng.randint(1, 4)):
        row = {rng.choice(keys): rng.choice(["en", 0.9, odd_value(rng)]) for _ in range(3)}
        rows.append(rng.choice([row, row, {"text": "x", "language": "en", "language_score": 1}]))
    return "\n".join(map(json.dumps, rows)).encode()


def odd_header(rng: random.Random) -> bytes:
    values = [20240520, 20240801, 1, 2, 4, -1, 0, 2**31 - 1, -(2**31)]
    head = [rng.choice(values) for _ in range(3)]
    return struct.pack("<256i", *head, *[0] * 253) + b"\1\0" * rng.randint(0, 5)


# ---- what is damaged, and who reads it ----


def small_manifest() -> dict[str, Any]:
    return {
        "schema": "onecard.data/1",
        "name": "x",
        "sources": [
            {"uri": "x.jsonl", "revision": None, "licence": "mit", "files": "0", "state": "1"}
        ],
        "tokenizer": {"name": "gpt2", "vocab_size": 50257, "eot": 50256, "file": None},
        "splits": {
            "train": {
                "tokens": 4,
                "documents": 1,
                "bytes": 9,
                "shards": [{"file": "x.bin", "tokens": 4, "sha256": "0"}],
            }
        },
        "bytes_per_token": 2.2,
        "seed": 1,
        "val_fraction": 0.1,
        "filters": {"column": "text"},
        "skipped": {"no text": 1},
        "order": "shuffled",
        "format": "llm.c",
        "request": "r",
        "fingerprint": "f",
        "version": "0",
        "created": "2026",
    }


SHARD = header(4) + np.array([50256, 15496, 995, 1], "<u2").tobytes()


@cache
def small_bpe() -> dict[str, Any]:
    tokens = [*byte_characters().values(), "ab", "abc"]
    return bpe_spec({token: index for index, token in enumerate(tokens)}, ["a b", ["ab", "c"]])


def manifest_reader(folder: Path, content: bytes) -> None:
    place = emptied(folder / "manifest")
    (place / "manifest.json").write_bytes(content)
    (place / "x.bin").write_bytes(SHARD)
    preview(place)


def tokenizer_reader(folder: Path, content: bytes) -> None:
    kind = "chars" if b'"chars"' in content[:40] else "bpe"
    place = emptied(folder / "tokenizer")
    (place / "tokenizer.json").write_bytes(content)
    sizes = {"chars": (3, None), "bpe": (259, 258)}[kind]
    manifest = small_manifest()
    manifest["tokenizer"] = {
        "name": kind,
        "vocab_size": sizes[0],
        "eot": sizes[1],
        "file": "tokenizer.json",
    }
    (place / "manifest.json").write_text(json.dumps(manifest))
    (place / "x.bin").write_bytes(header(4) + np.array([0, 1, 2, 1], "<u2").tobytes())
    preview(place)


def record_reader(folder: Path, content: bytes) -> None:
    place = emptied(folder / "record")
    (place / "record.json").write_bytes(content)
    kept_tokenizer(place)


def meta_reader(folder: Path, content: bytes) -> None:
    place = emptied(folder / "meta")
    (place / "meta.pkl").write_bytes(content)
    (place / "train.bin").write_bytes(np.array([0, 1], "<u2").tobytes())
    preview(place)


def shard_reader(folder: Path, content: bytes) -> None:
    place = emptied(folder / "shard")
    (place / "x_train_000001.bin").write_bytes(content)
    data = open_dataset(place)
    data.splits["train"].verify()
    preview(place)


def datatrove_reader(folder: Path, content: bytes) -> None:
    place = emptied(folder / "datatrove")
    (place / "0.ds").write_bytes(np.array([5, 50256], "<u2").tobytes())
    (place / "0.ds.metadata").write_bytes(content)
    preview(place)


def text_reader(name: str) -> Reader:
    def read(folder: Path, content: bytes) -> None:
        path = folder / name
        path.write_bytes(content)
        reading = Reading(min_chars=1, language="en", min_language_score=0.5)
        for wanted in (Reading(), reading):
            for unit in units_of([(0, input_of(path), path)], 1000, 0, wanted):
                for batch in batches(unit, wanted):
                    assert len(batch.texts) + len(batch.ids) == len(batch.places)

    return read


def emptied(place: Path) -> Path:
    place.mkdir(exist_ok=True)
    return place


@cache
def small_parquet(compression: str, dictionary: bool, version: str) -> bytes:
    out = io.BytesIO()
    texts = [f"document {index % 7} with some text" for index in range(30)]
    table = pa.table(
        {
            "text": texts,
            "language": ["en", "de"] * 15,
            "language_score": [0.9, 0.1] * 15,
            "id": list(range(30)),
        }
    )
    pq.write_table(
        table,
        out,
        row_group_size=10,
        compression=compression,
        use_dictionary=dictionary,
        data_page_version=version,
        column_encoding=None if dictionary else {"text": "DELTA_BYTE_ARRAY"},
    )
    return out.getvalue()


LINES = b"".join(
    json.dumps(
        {"text": f"line {index} \u00e9\U0001f642", "language": "en", "language_score": 0.7}
    ).encode()
    + b"\n"
    for index in range(20)
)
CHARS = {"type": "chars", "chars": ["a", "b", "c"], "separator": False}
RECORD = {
    "schema": "onecard.data-record/1",
    "name": "x",
    "tokenizer": {
        "name": "chars",
        "vocab_size": 3,
        "eot": None,
        "file": None,
        "chars": ["a", "b", "c"],
    },
}
META = {"vocab_size": 3, "itos": {0: "a", 1: "b", 2: "c"}, "stoi": {"a": 0, "b": 1, "c": 2}}
# name → (reader, damaged content, weight)
CASES: dict[str, tuple[Reader, Damage, int]] = {
    "manifest": (manifest_reader, damaged_json(small_manifest()), 4),
    "manifest bytes": (manifest_reader, damaged_bytes(json.dumps(small_manifest()).encode()), 1),
    "characters": (tokenizer_reader, damaged_json(CHARS), 1),
    "bpe": (tokenizer_reader, damaged_json(small_bpe()), 1),
    "tokenizer bytes": (tokenizer_reader, damaged_bytes(json.dumps(CHARS).encode()), 1),
    "record": (record_reader, damaged_json(RECORD), 1),
    "meta.pkl": (meta_reader, damaged_bytes(*(pickle.dumps(META, p) for p in (2, 3, 4, 5))), 2),
    "shard": (shard_reader, damaged_bytes(SHARD), 1),
    "shard header": (shard_reader, odd_header, 1),
    "datatrove": (datatrove_reader, damaged_bytes(b"gpt2|2\n3\n3 T"), 1),
    "jsonl": (text_reader("x.jsonl"), damaged_bytes(LINES), 2),
    "jsonl records": (text_reader("y.jsonl"), odd_records, 1),
    "jsonl.gz": (text_reader("x.jsonl.gz"), damaged_bytes(gzip.compress(LINES, mtime=0)), 1),
    "jsonl.zst": (
        text_reader("x.jsonl.zst"),
        damaged_bytes(zstandard.ZstdCompressor().compress(LINES)),
        1,
    ),
    "jsonl.xz": (text_reader("x.jsonl.xz"), damaged_bytes(lzma.compress(LINES)), 1),
    "text": (text_reader("x.txt"), odd_text, 1),
    "text.bz2": (text_reader("x.txt.bz2"), damaged_bytes(bz2.compress(LINES)), 1),
    "parquet": (
        text_reader("x.parquet"),
        damaged_bytes(
            small_parquet("none", True, "1.0"),
            small_parquet("zstd", True, "2.0"),
            small_parquet("snappy", False, "1.0"),
            small_parquet("none", False, "2.0"),
        ),
        3,
    ),
}


def run(name: str, folder: Path, cases: int) -> None:
    reader, damage, weight = CASES[name]

    @settings(
        max_examples=cases * weight,
        deadline=None,  # the processor's time counts, below: other programs share the machine
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64))
    def check(seed: int) -> None:
        content = damage(random.Random(seed))
        began = time.process_time()
        try:
            reader(folder, content)
        except OnecardError as error:
            assert error.message
            assert "\n" not in error.message, error.message
        assert time.process_time() - began < 5

    check()


@pytest.mark.parametrize("eot", [-1, 50257, True, "x"])
def test_a_separator_beyond_the_vocabulary(eot: Any, folder: Path) -> None:
    manifest = small_manifest()
    manifest["tokenizer"]["eot"] = eot
    with pytest.raises(OnecardError, match=r"tokenizer\.eot"):
        manifest_reader(folder, json.dumps(manifest).encode())


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_give_a_result_or_a_sentence(name: str, folder: Path) -> None:
    run(name, folder, 120)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_damaged_files_at_length(name: str, folder: Path) -> None:
    run(name, folder, 4000)
