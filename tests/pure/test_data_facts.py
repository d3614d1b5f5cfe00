"""Named data sets."""

import pytest

from onecard.data.sources.resolve import resolve_source
from onecard.errors import UserError
from onecard.facts.datasets import all_datasets, family, find_dataset, known_dataset


def test_names_and_aliases() -> None:
    assert find_dataset("openwebtext").tokens == find_dataset("OWT").tokens == 9_035_582_198
    assert (
        find_dataset("fineweb-edu-10B").name
        == find_dataset("fineweb-edu").name
        == "fineweb-edu:sample-10BT"
    )
    assert find_dataset("fineweb10B").repo == "kjj0/fineweb10B-gpt2"
    assert find_dataset("shakespeare_char").vocab_size == 65
    assert [entry.name.split(":")[1] for entry in family("fineweb")] == [
        "sample-10BT",
        "sample-100BT",
        "sample-350BT",
    ]
    assert known_dataset("no such set") is None


def test_what_people_mix() -> None:
    assert known_dataset("climbmix").column == "tokens"  # type: ignore[union-attr]
    assert "NC" in find_dataset("climbmix").licence
    for name in ("cosmopedia", "wikipedia:en", "tinystories", "finemath", "code", "owt"):
        assert find_dataset(name).tokens > 1e8
    with pytest.raises(UserError, match="fineweb-2 comes by language"):
        resolve_source("fineweb-2", None)


def test_unknown_names_come_with_near_ones() -> None:
    with pytest.raises(UserError, match="unknown data set 'finewb-edu'") as caught:
        find_dataset("finewb-edu")
    assert "fineweb-edu" in str(caught.value.hint)


def test_every_entry_is_sound() -> None:
    names: list[str] = []
    for entry in all_datasets():
        names += [entry.name.lower(), *(alias.lower() for alias in entry.aliases)]
        assert entry.tokens > 0
        assert 0.9 < entry.bytes_per_token < 6
        assert entry.source
        assert entry.licence
        assert bool(entry.repo) == bool(entry.paths)
        assert entry.date
        if entry.repo and not entry.pretokenized:
            assert entry.column in entry.columns
    assert len(names) == len(set(names))
