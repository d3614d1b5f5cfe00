"""Byte-level BPE: GPT-2's own vocabulary (it ships in vocab/), or one trained on the data.

>>> gpt2().encode("Hello world<|endoftext|>")       # a literal separator in a page stays text
[15496, 995, 27, 91, 437, 1659, 5239, 91, 29]
>>> gpt2().decode([15496, 995])
'Hello world'
"""

import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Protocol

import numpy as np

from onecard.data.read.manifest import LARGEST_VOCAB
from onecard.data.tokenizers.kinds import EOT, Ids, Offsets, Tokenizer, offsets_of
from onecard.errors import RunFailure, UserError

VOCAB_SHA256 = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"  # tiktoken pins the same for vocab.bpe


class BpeTokenizer(Tokenizer):
    """Byte-level BPE with GPT-2's way of cutting text: GPT-2's own vocabulary, or one trained on the data."""

    def __init__(self, name: str, spec: dict[str, Any]):
        """`spec` is a tokenizer.json; its vocabulary's ids are dense, and the separator comes after them."""
        self.name = name
        self.spec = spec
        self.eot = len(spec["model"]["vocab"])
        self.vocab_size = self.eot + 1
        if self.vocab_size > LARGEST_VOCAB:
            raise UserError(
                f"a vocabulary of {self.vocab_size:,} does not fit in 16-bit ids",
                hint="65,536 is the most",
            )

    @cached_property
    def engine(self) -> "_Engine":
        return _engine(json.dumps({**self.spec, "added_tokens": []}))

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        return self.engine.encode(texts)

    @cached_property
    def pieces(self) -> list[bytes]:
        to_byte = {char: value for value, char in byte_characters().items()}
        pieces = [b""] * self.vocab_size
        for token, index in self.spec["model"]["vocab"].items():
            pieces[index] = bytes(to_byte[char] for char in token)
        return pieces

    def file_content(self) -> bytes | None:
        return None if self.name == "gpt2" else self.hf_json()

    def hf_json(self) -> bytes:
        """tokenizer.json as transformers and tokenizers read it, the separator among its special tokens."""
        added = [special_token(self.eot, EOT)]
        return json.dumps({**self.spec, "added_tokens": added}, ensure_ascii=False).encode()


def special_token(index: int | None, content: str) -> dict[str, Any]:
    """An entry of a tokenizer.json for what no text becomes."""
    return {
        "id": index,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


class _Engine(Protocol):
    def encode(self, texts: Sequence[str]) -> tuple[Ids, Offsets]: ...


class _Fast:
    """fastokens: about twelve times tiktoken, the same ids."""

    def __init__(self, spec: str):
        import fastokens

        self.tokenizer = fastokens.Tokenizer.from_json_str(spec)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        ids, offsets = self.tokenizer.encode_batch_flat(list(texts), split_special_tokens=True)
        return np.frombuffer(ids, "<u4").astype(np.uint16), np.frombuffer(offsets, "<u8").astype(
            np.int64
        )


class _Slow:
    """Hugging Face tokenizers: the same ids where fastokens has no wheel."""

    def __init__(self, spec: str):
        import tokenizers

        self.tokenizer = tokenizers.Tokenizer.from_str(spec)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        for text in texts:
            text.encode()  # a lone surrogate must raise here as it does in fastokens
        encoded = [
            encoding.ids
            for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ]
        flat = np.array([i for ids in encoded for i in ids], np.uint16)
        return flat, offsets_of(map(len, encoded), len(encoded))


def _engine(spec: str) -> _Engine:
    for kind in (_Fast, _Slow):
        try:
            return kind(spec)
        except ImportError:
            continue
    raise UserError("no tokeniser library is installed", hint='pip install "onecard[train]"')


def byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte (its encoder.py, bytes_to_unicode), in its order of ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    return {value: chr(value) for value in printable} | {
        value: chr(256 + n) for n, value in enumerate(others)
    }


def bpe_spec(vocab: dict[str, int], merges: Sequence[Any]) -> dict[str, Any]:
    """A tokenizer.json of GPT-2's kind."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": merges,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def gpt2_merges() -> list[str]:
    """GPT-2's 50,000 merges from the package, checked."""
    raw = lzma.decompress((files("onecard.data") / "vocab" / "gpt2.bpe.xz").read_bytes())
    if hashlib.sha256(raw).hexdigest() != VOCAB_SHA256:
        raise RunFailure(
            "GPT-2's vocabulary in this installation is damaged", hint="install onecard again"
        )
    return raw.decode().split("\n")[1:-1]


@cache
def gpt2() -> BpeTokenizer:
    """GPT-2's tokeniser, without any download."""
    merges = gpt2_merges()
    tokens = [*byte_characters().values(), *(merge.replace(" ", "") for merge in merges)]
    return BpeTokenizer(
        "gpt2", bpe_spec({token: index for index, token in enumerate(tokens)}, merges)
    )


def train_bpe(texts: Iterator[str], vocab_size: int) -> BpeTokenizer:
    """A byte-level BPE of `vocab_size` ids (the separator among them) from the texts, by Hugging Face's tokenizers."""
    if not 257 < vocab_size <= LARGEST_VOCAB:
        raise UserError(
            f"a BPE vocabulary of {vocab_size:,} cannot be made",
            hint="between 258 and 65536, as in bpe:8192",
        )
    from tokenizers import Tokenizer as HF
    from tokenizers import models, pre_tokenizers, trainers

    work = HF(models.BPE())
    work.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        show_progress=False,
        special_tokens=[],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    work.train_from_iterator(texts, trainer)
    model = json.loads(work.to_str())["model"]
    return BpeTokenizer("bpe", bpe_spec(model["vocab"], model["merges"]))
