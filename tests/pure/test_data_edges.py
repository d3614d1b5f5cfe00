"""Edges of the readers of data: nothing in a file, nothing beyond the least that a format needs."""

import bz2
import gzip
import lzma

import pytest
import zstandard

from onecard.data.preparation.size import _estimate
from onecard.data.sources.hub import HubFile, HubRepo, _one_kind, _patterns_of
from onecard.data.sources.packed import stream
from onecard.data.sources.resolve import _hub_source
from onecard.data.tokenizers.bpe import byte_characters
from onecard.data.tokenizers.load import _bpe
from onecard.facts.datasets import all_datasets


def test_a_vocabulary_of_bytes_alone_is_a_tokeniser(tmp_path):
    vocab = {character: number for number, character in enumerate(byte_characters().values())}
    made = _bpe({"vocab": vocab, "merges": []}, tmp_path)
    assert made.decode(made.encode("né")) == "né"
    del vocab[next(reversed(vocab))]
    with pytest.raises(ValueError, match="no token for some byte"):
        _bpe({"vocab": vocab, "merges": []}, tmp_path)


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("content", [b"", b"one", b"some words\n" * 5000])
def test_packed_files_come_out_as_they_went_in(tmp_path, suffix, content):
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(PACKERS[suffix](content))
    assert b"".join(stream(path)) == content
    path.write_bytes(path.read_bytes() * 2)  # two streams in one file are one text
    assert b"".join(stream(path)) == content * 2


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_packed_file_of_no_bytes_is_no_text(tmp_path, suffix):
    path = tmp_path / f"x.jsonl{suffix}"
    path.write_bytes(b"")
    assert b"".join(stream(path)) == b""


def test_the_text_of_a_known_set_is_shared_out_by_the_sizes_of_its_files():
    facts = next(entry for entry in all_datasets() if not entry.pretokenized)
    files = tuple(HubFile(f"{name}.parquet", size, None) for name, size in (("a", 100), ("b", 300)))
    found = _hub_source("hf:x", "x", HubRepo("x", "0" * 40, None, files), facts)
    text = facts.tokens * facts.bytes_per_token
    assert [each.text_bytes for each in found.inputs] == [int(text / 4), int(3 * text / 4)]


def test_the_estimate_counts_each_tokenisers_own_bytes():
    """A known set's bytes per token are GPT-2's; the others have their own."""
    facts = next(entry for entry in all_datasets() if not entry.pretokenized)
    files = (HubFile("a.parquet", 9000, None), HubFile("b.parquet", 18000, None))
    source = _hub_source("hf:x", "x", HubRepo("x", "0" * 40, None, files), facts)
    text = sum(each.text_bytes for each in source.inputs)
    assert facts.bytes_per_token not in (1.0, 2.65)
    for tokenizer, per_token in (
        ("bytes", 1.0),
        ("bpe:1024", 2.65),
        ("gpt2", facts.bytes_per_token),
    ):
        made = _estimate([source], tokenizer, None, 1)
        assert made.tokens == pytest.approx(text / per_token, rel=1e-6)


def test_files_named_as_held_out_are_left_out_unless_asked_for():
    files = [HubFile(name, 1, None) for name in ("train-0.parquet", "test-0.parquet", "c.txt")]
    assert [each.path for each in _one_kind(files, chosen=False)] == ["train-0.parquet"]
    assert len(_one_kind(files, chosen=True)) == 2
    shards = [HubFile(name, 1, None) for name in ("x_val_0.bin", "x_train_1.bin")]
    assert len(_one_kind(shards, chosen=False)) == 2  # a set's own validation split


def test_the_default_config_of_a_hub_set_is_its_own():
    card = {
        "configs": [
            {"config_name": "small", "data_files": "small/*"},
            {"config_name": "big", "data_files": "big/*", "default": True},
        ]
    }
    assert _patterns_of(card, None, "a/b") == ["big/*"]
    assert _patterns_of(card, "small", "a/b") == ["small/*"]
