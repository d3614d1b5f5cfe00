"""Copies of documents, exact and near: what is counted, what is left out, and what is none."""

import random
from pathlib import Path

import pytest
from data_texts import digests, marked_texts, tokens_of, write_jsonl

from onecard.data import gpt2, open_dataset, prepare
from onecard.planner.corpus import corpus_of


@pytest.mark.parametrize("dedup", [True, pytest.param("near", marks=pytest.mark.long)])
def test_what_is_a_copy_does_not_depend_on_how_far_a_source_was_read(
    dedup: bool | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    rng = random.Random(5)
    first = [" ".join(f"{rng.getrandbits(24):x}" for _ in range(12)) for _ in range(400)]
    second = first[200:]  # copies of what is beyond the first's share: not copies in the mix
    for name, documents in (("first", first), ("second", second)):
        (tmp_path / name).mkdir()
        for file in range(0, len(documents), 10):  # a unit of work each
            write_jsonl(tmp_path / name / f"{file:04d}.jsonl", documents[file : file + 10])
    whole = tokens_of(first)
    mix = [f"{tmp_path / 'first'}=50%", f"{tmp_path / 'second'}=50%"]
    made = {
        workers: prepare(
            mix, tmp_path / str(workers), round(0.8 * whole), workers=workers, dedup=dedup
        )
        for workers in (1, 4)
    }
    assert digests(tmp_path / "1") == digests(tmp_path / "4")
    assert made[1].to_json() == made[4].to_json()
    assert made[1].duplicates == 0
    assert [source["epochs"] for source in made[1].sources] == [1, 1]
    manifest = tmp_path / "1" / "manifest.json"
    once = corpus_of(str(tmp_path / "1"))
    manifest.write_text(manifest.read_text().replace('"epochs": 1', '"epochs": 2', 1))
    twice = corpus_of(str(tmp_path / "1"))
    assert [unique for _, _, unique in once.sources] == [
        source["splits"]["train"]["tokens"] for source in made[1].sources
    ]
    assert twice.sources[0][2] == round(once.sources[0][2] / 2)
    assert twice.sources[1] == once.sources[1]


def test_exact_copies_are_always_counted(tmp_path: Path) -> None:
    rows = marked_texts("web", 100)
    write_jsonl(tmp_path / "a.jsonl", rows + rows[:30])
    made = prepare([str(tmp_path / "a.jsonl")], tmp_path / "one", workers=1)
    assert made.duplicates == 30
    assert "duplicate" not in made.skipped
    made = prepare([str(tmp_path / "a.jsonl")], tmp_path / "two", workers=1, dedup=True)
    assert made.skipped["duplicate"] == made.duplicates == 30


def test_near_copies(tmp_path: Path) -> None:
    """Texts that differ by a word or two are found; of a group, the first is kept. Others stay."""
    rng = random.Random(3)
    vocabulary = [f"word{n}" for n in range(3000)]
    rows = [" ".join(rng.choices(vocabulary, k=200)) for _ in range(60)]
    changed = []
    for row in rows[:20]:
        words = row.split()
        words[rng.randrange(200)] = "other"
        changed.append(" ".join(words).upper())
    half = [" ".join(row.split()[:100] + rng.choices(vocabulary, k=100)) for row in rows[20:30]]
    write_jsonl(tmp_path / "a.jsonl", [*rows, *changed, *half, rows[40]])
    made = prepare([str(tmp_path / "a.jsonl")], tmp_path / "near", workers=1, dedup="near")
    assert made.skipped["near copy"] == 20
    assert made.skipped["duplicate"] == made.duplicates == 1
    assert sum(split["documents"] for split in made.splits.values()) == 70
    kept = open_dataset(tmp_path / "near")
    whole = "".join(gpt2().decode(s.read(0, s.tokens)) for s in kept.splits.values())
    assert "WORD" not in whole


def test_copies_stay_in_a_mix_without_dedup(tmp_path: Path) -> None:
    rows = marked_texts("web", 80)
    write_jsonl(tmp_path / "a.jsonl", rows + rows[:20])
    write_jsonl(tmp_path / "b.jsonl", marked_texts("code", 100))
    words = [f"{tmp_path}/a.jsonl=50%", f"{tmp_path}/b.jsonl=50%"]
    counts = []
    for dedup in (False, True):
        made = prepare(words, tmp_path / str(dedup), workers=1, dedup=dedup)
        counts.append(made.sources[0]["splits"]["train"]["documents"])
        counts.append(made.sources[0]["splits"]["val"]["documents"])
    assert counts[0] + counts[1] > counts[2] + counts[3]
    assert counts[2] + counts[3] <= 80
