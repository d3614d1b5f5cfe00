"""Tokens are GPT-2's, exactly: against tiktoken built from the vocabulary in the package."""

import json
import lzma
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from data_texts import corpus, documents
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.data.sources.texts import safe_cut
from onecard.data.tokenizers.bpe import _Slow, gpt2, train_bpe
from onecard.data.tokenizers.kinds import BytesTokenizer, CharsTokenizer
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import UserError

ANY_CHARACTER = st.characters(exclude_categories=("Cs",))
PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""  # as GPT-2 was released


@cache
def reference() -> tiktoken.Encoding:
    ranks = {piece: rank for rank, piece in enumerate(gpt2().pieces[:50256])}
    return tiktoken.Encoding(
        "gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


def assert_same(texts: list[str]) -> None:
    ids, offsets = gpt2().encode_batch(texts)
    for text, low, high in zip(texts, offsets, offsets[1:], strict=False):
        assert ids[low:high].tolist() == reference().encode_ordinary(text), text[:200]


def test_known_ids() -> None:
    assert gpt2().encode("Hello world") == [15496, 995]
    assert (gpt2().vocab_size, gpt2().eot) == (50257, 50256)
    assert 50256 not in gpt2().encode("a page with <|endoftext|> in it")
    assert gpt2().decode([50256]) == "<|endoftext|>"


def test_the_shipped_vocabulary_is_tiktokens() -> None:
    tool = Path(__file__).parents[2] / "tools" / "vocab.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=False)
    assert "GPT-2's ranks exactly" in done.stdout, done.stderr


def test_first_fineweb_document_has_its_own_count() -> None:
    first = json.loads(corpus("fineweb_edu_150.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert first["text"].startswith("The Independent Jane")
    assert len(gpt2().encode(first["text"])) == 845


def test_every_document_of_the_corpora() -> None:
    import pyarrow.parquet as pq

    assert_same(pq.read_table(corpus("prose.parquet"), columns=["text"])["text"].to_pylist())
    assert_same(
        [
            json.loads(line)["text"]
            for line in corpus("fineweb_edu_150.jsonl")
            .read_text(encoding="utf-8")
            .strip()
            .split("\n")
        ]
    )
    assert_same([corpus("tinyshakespeare.txt").read_text(encoding="utf-8")])
    for name in ("hellaswag_val.jsonl.xz", "lambada_openai.jsonl.xz"):
        with lzma.open(corpus(name), "rt", encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        assert_same(
            [value for record in records for value in record.values() if isinstance(value, str)]
        )


def test_every_code_point() -> None:
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    assert_same(["".join(points[at : at + 256]) for at in range(0, len(points), 256)])


def test_long_runs() -> None:
    assert_same(
        [
            unit * 3000
            for unit in (
                " ",
                "\n",
                "a",
                "é",
                "0",
                "'s",
                "=",
                " \n",
                "\t ",
                "ab ",
                "🙂",
                "\x00",
                "\u3000",
            )
        ]
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(ANY_CHARACTER, max_size=80), min_size=1, max_size=8))
def test_fuzzed_text(texts: list[str]) -> None:
    assert_same(texts)
    for text in texts:
        assert gpt2().decode(gpt2().encode(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab1 '\n\t.s\u00a0é\u3000漢"), max_size=60))
def test_fuzzed_spaces(text: str) -> None:
    assert_same([text])


def test_the_slow_way_gives_the_same() -> None:
    texts = [*documents(200), "", " ", "\n\n x", "<|endoftext|>", "don't  stop\u00a0 "]
    slow = _Slow(json.dumps({**gpt2().spec, "added_tokens": []}))
    for mine, theirs in zip(gpt2().encode_batch(texts), slow.encode(texts), strict=True):
        assert np.array_equal(mine, theirs)
    with pytest.raises(UnicodeEncodeError):
        slow.encode(["\ud800"])


def test_half_a_surrogate_pair_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="surrogate"):
        gpt2().encode("\ud800")


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("ab1 '\n\t.s\u00a0é\u3000漢"), min_size=2, max_size=60))
def test_a_safe_cut_changes_no_token(text: str) -> None:
    raw = text.encode()
    cut = safe_cut(raw)
    if cut and raw[cut : cut + 1] in (b"\n", b" ", b"\t", b"\r"):
        left, right = raw[:cut].decode(), raw[cut:].decode()
        assert gpt2().encode(left) + gpt2().encode(right) == gpt2().encode(text)


@settings(deadline=None)
@given(st.text(ANY_CHARACTER, max_size=60))
def test_bytes_round_trip(text: str) -> None:
    tokenizer = BytesTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


@settings(deadline=None)
@given(st.text(ANY_CHARACTER, min_size=1, max_size=60))
def test_characters_round_trip(text: str) -> None:
    tokenizer = CharsTokenizer(sorted(set(text)), separator=True)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eot == tokenizer.vocab_size - 1 == len(set(text))
    with pytest.raises(UserError, match="not in this vocabulary"):
        CharsTokenizer(["a"], separator=False).encode("b")


def test_a_foreign_character_table_keeps_its_order() -> None:
    tokenizer = CharsTokenizer(["b", "a"], separator=False)
    assert tokenizer.encode("abba") == [1, 0, 0, 1]


def test_a_trained_bpe_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (train_bpe(iter(documents(300)), 400) for _ in range(2))
    assert first.hf_json() == second.hf_json()
    assert (first.vocab_size, first.eot) == (400, 399)
    text = "train the 東京 loss\n"
    assert first.decode(first.encode(text)) == text
    (tmp_path / "tokenizer.json").write_bytes(first.hf_json())
    again = load_tokenizer({"name": "bpe"}, tmp_path)
    assert again.encode(text) == first.encode(text)

    from tokenizers import Tokenizer

    theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode(text).ids == first.encode(text)
    assert theirs.token_to_id("<|endoftext|>") == 399


def test_byte_lengths_are_exact() -> None:
    text = "some naïve 東京 text 🙂"
    assert int(gpt2().byte_lengths[gpt2().encode(text)].sum()) == len(text.encode())


def test_half_of_a_surrogate_pair_is_no_character() -> None:
    """Another program's table may name one; no text can be made of it."""
    with pytest.raises(UserError, match="surrogate"):
        CharsTokenizer(["a", "\ud800"], separator=False)
