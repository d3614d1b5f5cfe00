"""Texts, files and comparisons that the data tests share."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CORPORA = Path(__file__).parents[3] / "shared" / "corpora"
WORDS = [
    "the",
    "of",
    "and",
    "card",
    "token",
    "naïve",
    "東京",
    "run",
    "train",
    "loss",
    "écrit",
    "3.14",
    "\t—",
    "end,",
    "shuffle;",
    "'quote'",
    "🙂",
    "line\nbreak",
    "",
    "two",
]
MARKS = {"web": "alpha", "code": "beta", "notes": "gamma"}


def corpus(name: str) -> Path:
    """One of the shared texts; the test is skipped where they are absent."""
    path = CORPORA / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    return path


def documents(count: int, seed: int = 0, words: int = 60) -> list[str]:
    """Different texts of a few hundred bytes, some of them empty-ish, some long."""
    rng = random.Random(seed)
    out = [
        " ".join(rng.choices(WORDS, k=rng.randint(1, words))) + f" #{index}"
        for index in range(count)
    ]
    out[0] = "a literal <|endoftext|> stays text #0"
    return out


def marked_texts(name: str, count: int, words: int = 40) -> list[str]:
    """Texts that show which source they are of."""
    rng = random.Random(name)
    mark = MARKS[name]
    return [
        f"{mark} "
        + " ".join(rng.choices([mark, "run", "loss", "3.14"], k=rng.randint(5, words)))
        + f" {index}"
        for index in range(count)
    ]


def tokens_of(documents: list[str]) -> int:
    """With a separator each."""
    from onecard.data import gpt2

    return sum(len(gpt2().encode(text)) + 1 for text in documents)


def write_jsonl(path: Path, texts: list[str], **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(json.dumps({"text": text, **columns}) + "\n" for text in texts), encoding="utf-8"
    )
    return path


def write_parquet(path: Path, texts: list[str], row_group: int = 100, **columns: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"id": list(range(len(texts))), "text": texts, **columns}),
        path,
        row_group_size=row_group,
    )
    return path


def digests(folder: Path) -> dict[str, str]:
    """Every file of a finished folder by its sha256, without the time in the manifest."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if path.name == "manifest.json":
            content = json.dumps(
                {k: v for k, v in json.loads(content).items() if k != "created"}
            ).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def documents_in(folder: Path, split: str) -> list[list[int]]:
    """The documents of a prepared split, cut at the separators."""
    from onecard.data import open_dataset

    data = open_dataset(folder)
    ids = data.splits[split].read(0, data.splits[split].tokens)
    starts = np.flatnonzero(ids == data.eot)
    assert starts[0] == 0  # the separator comes before each document
    return [part[1:].tolist() for part in np.split(ids, starts[1:])]
