"""Tokenisers out of files: what a manifest names, opened and checked against what the manifest says of it.

>>> load_tokenizer({"name": "bytes", "vocab_size": 257, "eot": 256}, Path("."))
bytes tokeniser, 257 ids
"""

import hashlib
from pathlib import Path
from typing import Any

from onecard.data.read.manifest import TOKENIZER_FILE, check_characters
from onecard.data.tokenizers.bpe import BpeTokenizer, bpe_spec, byte_characters, gpt2
from onecard.data.tokenizers.kinds import BytesTokenizer, CharsTokenizer, Tokenizer
from onecard.data.tokenizers.special import SpecialTokenizer
from onecard.errors import UserError
from onecard.untrusted import parse_json

_MOST_FILE_BYTES = 64 * 2**20  # 65,536 tokens with their merges take about 4 MB


def load_tokenizer(entry: dict[str, Any], folder: Path) -> Tokenizer:
    """The tokeniser that a manifest's `tokenizer` entry names; its file is data, never code."""
    name = entry.get("name")
    if name not in ("gpt2", "bytes", "chars", "bpe"):
        raise UserError(
            f"unknown tokeniser {name!r} in {folder}", hint="gpt2, bytes, chars and bpe are known"
        )
    try:
        if name == "gpt2":
            tokenizer: Tokenizer = gpt2()
        elif name == "bytes":
            tokenizer = BytesTokenizer()
        elif name == "chars" and "chars" in entry:
            check_characters(entry["chars"])
            tokenizer = CharsTokenizer(entry["chars"], separator=False)
        else:
            tokenizer = _from_file(name, entry.get("sha256"), folder / TOKENIZER_FILE)
        if entry.get("special"):
            tokenizer = SpecialTokenizer(tokenizer, entry["special"])
        for key in ("vocab_size", "eot"):
            if key in entry and entry[key] != getattr(tokenizer, key):
                raise ValueError(f"{key} is {getattr(tokenizer, key)}, expected {entry[key]}")
    except ValueError as error:
        raise UserError(
            f"the {name} tokeniser of {folder} is damaged: {error}",
            hint="put the right tokenizer.json back, or prepare the data again",
        ) from None
    return tokenizer


def _from_file(name: str, sha256: str | None, path: Path) -> Tokenizer:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror})") from None
    if len(content) > _MOST_FILE_BYTES:
        raise ValueError(f"{path} is too large")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the file that the manifest names (sha256)")
    parsed = parse_json(content)
    if not isinstance(parsed, dict):
        raise ValueError(f"{path} holds no JSON object")
    if name == "chars":
        check_characters(parsed.get("chars"))
        if not isinstance(parsed.get("separator"), bool):
            raise ValueError(f"{path} does not say whether it has a separator")
        return CharsTokenizer(parsed["chars"], parsed["separator"])
    return _bpe(parsed.get("model"), path)


def _bpe(model: Any, path: Path) -> BpeTokenizer:
    vocab = model.get("vocab") if isinstance(model, dict) else None
    merges = model.get("merges") if isinstance(model, dict) else None
    if not isinstance(vocab, dict) or not isinstance(merges, list):
        raise ValueError(f"{path} holds no vocabulary and merges")
    if any(type(index) is not int for index in vocab.values()):
        raise ValueError(f"{path} has an id that is not a number")
    if sorted(vocab.values()) != list(range(len(vocab))):
        raise ValueError(f"{path} has gaps between its ids")
    known = set(byte_characters().values())
    if not known <= vocab.keys():
        raise ValueError(f"{path} has no token for some byte")
    for token in vocab:
        if not token or not known.issuperset(token):
            raise ValueError(f"{path} has a token {token!r:.40} that is not made of bytes")
    for merge in merges:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(isinstance(p, str) for p in pair)
        ):
            raise ValueError(f"{path} has a merge that is not of two tokens")
        if not (pair[0] in vocab and pair[1] in vocab and pair[0] + pair[1] in vocab):
            raise ValueError(f"{path} has a merge {merge!r:.40} of unknown tokens")
    return BpeTokenizer("bpe", bpe_spec(vocab, merges))
