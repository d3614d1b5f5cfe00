"""What a folder of tokens holds, from its manifest.json or its file headers alone: no numpy, so that `plan` may use it.

>>> summary("data/fineweb-edu")                                                       # doctest: +SKIP
Summary(tokens_train=3681498112, tokens_val=18500608, vocab_size=50257, bytes_per_token=4.61)
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from onecard.data.read.manifest import MANIFEST, Manifest, read_manifest
from onecard.data.read.shard_files import (
    HEADER_BYTES,
    Shard,
    has_header,
    npy_shard,
    raw_shard,
    read_header,
)
from onecard.errors import UserError
from onecard.facts.datasets import known_dataset
from onecard.untrusted import readable

WORK = ".work"  # an unfinished preparation keeps everything in here
DATA_HOME = Path("data")
GPT2 = {"name": "gpt2", "vocab_size": 50257, "eot": 50256, "file": None}
_MOST_METADATA_BYTES = 65536


class Summary(NamedTuple):
    tokens_train: int
    tokens_val: int
    vocab_size: int | None
    bytes_per_token: float | None


@dataclass(frozen=True)
class Layout:
    """A folder of tokens as any reader sees it, whichever program wrote it."""

    name: str
    path: Path
    format: str
    splits: dict[str, list[Shard]]
    tokenizer: dict[str, Any] | None
    bytes_per_token: float | None
    manifest: Manifest | None = None

    @property
    def vocab_size(self) -> int | None:
        return None if self.tokenizer is None else int(self.tokenizer["vocab_size"])

    @property
    def eot(self) -> int | None:
        eot = None if self.tokenizer is None else self.tokenizer.get("eot")
        return None if eot is None else int(eot)


def summary(path: str | os.PathLike[str]) -> Summary:
    """Tokens to train and to validate on, the vocabulary's size and the bytes per token."""
    layout = scan(path)
    count = {name: sum(shard.tokens for shard in shards) for name, shards in layout.splits.items()}
    return Summary(
        count.get("train", 0), count.get("val", 0), layout.vocab_size, layout.bytes_per_token
    )


def resolve(path_or_name: str | os.PathLike[str]) -> Path:
    """The folder meant: a name is data/NAME, a path is that folder."""
    given = Path(path_or_name)
    candidates = (
        [given] if len(given.parts) > 1 or given.is_absolute() else [DATA_HOME / given, given]
    )
    for folder in candidates:
        if folder.is_dir():
            return folder
    if given.is_file():
        raise UserError(
            f"{given} is a file, not a folder of tokens", hint=f"`onecard data {given}` makes one"
        )
    raise UserError(
        f"there is no data set {str(path_or_name)!r} (looked for {' and '.join(str(c) for c in candidates)})",
        hint=_how_to_get(given.name),
    )


def _how_to_get(name: str) -> str:
    """A set that is known can be prepared, whatever else is there; of others, what is."""
    prepared = prepared_names()
    there = f"prepared here: {', '.join(prepared[:8])}" if prepared else ""
    if known_dataset(name) is not None:
        return "; ".join(filter(None, (f"`onecard data {name}` prepares it", there)))
    return there or "`onecard data stdlib` prepares one that needs no download"


def prepared_names() -> list[str]:
    """The folders below data/ that hold finished tokens: not those of a failed or unfinished command."""
    try:
        return sorted(folder.name for folder in DATA_HOME.iterdir() if _holds_tokens(folder))
    except OSError:
        return []


def _holds_tokens(folder: Path) -> bool:
    if (folder / MANIFEST).is_file():
        return True
    return not (folder / WORK).exists() and any(
        path.suffix in (".bin", ".ds", ".npy") for path in folder.glob("*.*")
    )


def scan(path_or_name: str | os.PathLike[str]) -> Layout:
    """Read a folder's layout: ours, nanoGPT's, llm.c's and modded-nanogpt's shards, datatrove's .ds."""
    with readable(path_or_name):  # a folder may be without rights, a name too long for the system
        return _scan(resolve(path_or_name))


def _scan(folder: Path) -> Layout:
    name = folder.resolve().name
    if (folder / MANIFEST).is_file():
        return _from_manifest(folder, read_manifest(folder))
    if (folder / WORK).is_dir():
        raise UserError(
            f"{folder} is not finished",
            hint="run the same `onecard data` command again: it continues where it stopped",
        )
    if (folder / "train.bin").is_file() and not has_header(folder / "train.bin"):
        return _nanogpt(folder, name)
    files = sorted((p for p in folder.iterdir() if p.is_file()), key=lambda path: path.name)
    if bins := [p for p in files if p.suffix == ".bin"]:
        splits = _by_split(bins, [Shard(p, HEADER_BYTES, read_header(p)) for p in bins])
        return Layout(name, folder, "llm.c", splits, GPT2, None)
    if tokens := [p for p in files if p.suffix == ".ds"]:
        splits = _by_split(tokens, [raw_shard(p) for p in tokens])
        return Layout(name, folder, "datatrove", splits, _datatrove_tokenizer(tokens[0]), None)
    if arrays := [p for p in files if p.suffix == ".npy"]:
        splits = _by_split(arrays, [npy_shard(p) for p in arrays])
        return Layout(name, folder, "npy", splits, dict(GPT2), None)
    raise UserError(
        f"{folder} holds no tokens (no {MANIFEST}, .bin, .ds or .npy)",
        hint=f"`onecard data {folder}` makes a data set of the text in it",
    )


def _from_manifest(folder: Path, manifest: Manifest) -> Layout:
    splits: dict[str, list[Shard]] = {}
    for name, split in manifest.splits.items():
        shards = []
        for entry in split["shards"]:
            path = folder / entry["file"]
            if Path(entry["file"]).name != entry["file"]:
                raise UserError(
                    f"{folder / MANIFEST} names a file outside its folder: {entry['file']!r}"
                )
            if not path.is_file():
                raise UserError(
                    f"{path} is missing", hint="prepare the data again, or delete the folder first"
                )
            if manifest.format == "llm.c":
                shard = Shard(path, HEADER_BYTES, read_header(path), entry.get("sha256"))
            else:
                read = npy_shard if manifest.format == "npy" else raw_shard
                shard = read(path, entry.get("sha256"))
            tokens = shard.tokens
            if tokens != entry["tokens"]:
                raise UserError(
                    f"{path}: {tokens:,} tokens, the manifest says {entry['tokens']:,}",
                    hint="`onecard data verify` checks every file",
                )
            shards.append(shard)
        splits[name] = shards
    return Layout(
        manifest.name,
        folder,
        manifest.format,
        splits,
        None if manifest.tokenizer.get("name") is None else manifest.tokenizer,
        manifest.bytes_per_token,
        manifest,
    )


def _nanogpt(folder: Path, name: str) -> Layout:
    splits = {
        split: [raw_shard(folder / f"{split}.bin")]
        for split in ("train", "val")
        if (folder / f"{split}.bin").is_file()
    }
    # nanoGPT's sample.py takes GPT-2's tokeniser where there is no meta.pkl
    tokenizer: dict[str, Any] | None = dict(GPT2)
    if (folder / "meta.pkl").is_file():
        from onecard.data.read.nanogpt_meta import read_meta

        tokenizer = read_meta(folder / "meta.pkl")
    return Layout(name, folder, "nanogpt", splits, tokenizer, None)


def _by_split(paths: list[Path], shards: list[Shard]) -> dict[str, list[Shard]]:
    """Validation files carry `val` in their name, as llm.c, modded-nanogpt and most others write them."""
    splits: dict[str, list[Shard]] = {}
    for path, shard in zip(paths, shards, strict=True):
        words = path.stem.lower().replace("-", "_").replace(".", "_").split("_")
        splits.setdefault(
            "val" if {"val", "valid", "validation"} & set(words) else "train", []
        ).append(shard)
    return splits


def _datatrove_tokenizer(path: Path) -> dict[str, Any] | None:
    """datatrove names its tokeniser in FILE.metadata as `gpt2|2`: the name and the bytes of a token."""
    try:
        with open(f"{path}.metadata", "rb") as file:
            first = file.read(_MOST_METADATA_BYTES).decode("utf-8").split("\n")[0]
    except (OSError, ValueError):
        return None
    name, _, width = first.rpartition("|")
    if width == "4":
        raise UserError(
            f"{path}: 32-bit ids",
            hint="only 16-bit ids are read: prepare it with the GPT-2 tokeniser",
        )
    return dict(GPT2) if name.split("/")[-1] == "gpt2" else None
