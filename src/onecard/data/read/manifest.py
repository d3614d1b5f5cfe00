"""What a folder of tokens holds, told from its manifest.json or its file headers alone: no numpy, so `plan` may ask.

>>> summary("data/fineweb-edu")                                                       # doctest: +SKIP
Summary(tokens_train=3681498112, tokens_val=18500608, vocab_size=50257, bytes_per_token=4.61)
"""

import errno
import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onecard.errors import UserError

SCHEMA = "onecard.data/1"
MANIFEST = "manifest.json"
WORK = ".work"  # an unfinished preparation keeps everything in here
DATA_HOME = Path("data")
MAGIC, VERSION, HEADER_BYTES = 20240520, 1, 1024  # llm.c, dev/data/data_common.py: 256 int32
LLAMA_MAGIC = 20240801  # llm.c's uint32 shards
TOKEN_BYTES = 2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GPT2 = {"name": "gpt2", "vocab_size": 50257, "eot": 50256, "file": None}


@dataclass(frozen=True)
class Shard:
    """One file of tokens: uint16 from `offset_bytes` on."""

    path: Path
    offset_bytes: int
    tokens: int
    sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """manifest.json: where the tokens came from, what was done to them, and what is in each shard."""

    name: str
    sources: list[dict[str, Any]]
    tokenizer: dict[str, Any]
    splits: dict[str, dict[str, Any]]
    bytes_per_token: float | None
    seed: int | None
    val_fraction: float | None
    filters: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    order: str = "shuffled"  # or "as given", "running text"
    format: str = "llm.c"  # or "nanogpt", "datatrove": raw uint16 without a header
    request: str = ""  # digest of the words and options that asked for it
    fingerprint: str = ""
    version: str = ""
    created: str = ""
    schema: str = SCHEMA

    def to_json(self) -> dict[str, Any]:
        answer = {key: getattr(self, key) for key in self.__dataclass_fields__}
        return {"schema": answer.pop("schema"), **answer}

    @property
    def tokens(self) -> int:
        return sum(int(split["tokens"]) for split in self.splits.values())


class Summary(NamedTuple):
    tokens_train: int
    tokens_val: int
    vocab_size: int | None
    bytes_per_token: float | None


@dataclass(frozen=True)
class Layout:
    """A folder of tokens as any reader sees it, whoever wrote it."""

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
        found = None if self.tokenizer is None else self.tokenizer.get("eot")
        return None if found is None else int(found)


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
    known = sorted(p.name for p in DATA_HOME.iterdir() if p.is_dir()) if DATA_HOME.is_dir() else []
    raise UserError(
        f"there is no data set {str(path_or_name)!r} (looked for {' and '.join(str(c) for c in candidates)})",
        hint=f"prepared here: {', '.join(known[:8])}"
        if known
        else f"`onecard data {given.name}` may prepare it; `onecard data stdlib` needs no download",
    )


def scan(path_or_name: str | os.PathLike[str]) -> Layout:
    """Read a folder's layout: ours, nanoGPT's, llm.c's and modded-nanogpt's shards, datatrove's .ds."""
    folder = resolve(path_or_name)
    name = folder.resolve().name
    if (folder / MANIFEST).is_file():
        return _ours(folder, read_manifest(folder))
    if (folder / WORK).is_dir():
        raise UserError(
            f"{folder} is not finished",
            hint="run the same `onecard data` command again: it goes on where it was",
        )
    if (folder / "train.bin").is_file() and not has_header(folder / "train.bin"):
        return _nanogpt(folder, name)
    try:
        files = sorted(p for p in folder.iterdir() if p.is_file())
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None
    if bins := [p for p in files if p.suffix == ".bin"]:
        splits = _by_split(bins, [Shard(p, HEADER_BYTES, read_header(p)) for p in bins])
        return Layout(name, folder, "llm.c", splits, GPT2, None)
    if tokens := [p for p in files if p.suffix == ".ds"]:
        splits = _by_split(tokens, [raw_shard(p) for p in tokens])
        return Layout(name, folder, "datatrove", splits, _datatrove_tokenizer(tokens[0]), None)
    raise UserError(
        f"{folder} holds no tokens (no {MANIFEST}, .bin or .ds)",
        hint=f"`onecard data {folder}` makes a data set of the text in it",
    )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; one that is damaged or of another schema is named."""
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise UserError(
                f"{path} is not a manifest of this version ({SCHEMA})",
                hint="prepare the data again",
            )
        known = {key: found[key] for key in Manifest.__dataclass_fields__ if key in found}
        manifest = Manifest(**known)
        for split in manifest.splits.values():
            int(split["tokens"]), [(str(s["file"]), int(s["tokens"])) for s in split["shards"]]
        int(manifest.tokenizer["vocab_size"])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({error})", hint="prepare the data again") from None
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_aside(
        folder / MANIFEST,
        (json.dumps(manifest.to_json(), indent=1, ensure_ascii=False) + "\n").encode(),
    )


def write_aside(path: Path, *content: bytes | memoryview) -> None:
    """Write whole or not at all: aside, to the disk, then renamed."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "wb") as file:
        for piece in content:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows has no such thing, and needs none
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the rename itself is still whole
    finally:
        os.close(handle)


def file_sha256(path: Path) -> str:
    import hashlib  # OpenSSL takes milliseconds to load, and planning only counts tokens

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def header(tokens: int) -> bytes:
    """llm.c's shard header."""
    return struct.pack("<256i", MAGIC, VERSION, tokens, *([0] * 253))


def has_header(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(4)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return len(start) == 4 and struct.unpack("<i", start)[0] in (MAGIC, LLAMA_MAGIC)


def read_header(path: Path) -> int:
    """The token count in a shard's header, checked against the file's length."""
    try:
        with open(path, "rb") as file:
            raw = file.read(HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) < HEADER_BYTES:
        raise UserError(
            f"{path}: {size} bytes, too short for a header of {HEADER_BYTES}",
            hint="it was cut short: get it again",
        )
    magic, version, tokens = struct.unpack_from("<3i", raw)
    if magic == LLAMA_MAGIC:
        raise UserError(
            f"{path}, offset 0: a shard of 32-bit ids (llm.c's llama-3 format)",
            hint="only 16-bit ids are read: prepare it with the GPT-2 tokeniser",
        )
    if magic != MAGIC:
        raise UserError(
            f"{path}, offset 0: not a shard header (magic {magic}, expected {MAGIC})",
            hint="raw nanoGPT files are named train.bin and val.bin",
        )
    if version != VERSION:
        raise UserError(f"{path}, offset 4: shard version {version}, only {VERSION} is known")
    if tokens < 0 or size != HEADER_BYTES + TOKEN_BYTES * tokens:
        raise UserError(
            f"{path}, offset 8: the header says {tokens:,} tokens, "
            f"the file has room for {(size - HEADER_BYTES) / 2:,.1f}",
            hint="it was cut short or damaged: get it again",
        )
    return int(tokens)


def raw_shard(path: Path, sha256: str | None = None) -> Shard:
    """A file of uint16 without a header."""
    size = path.stat().st_size
    if size % TOKEN_BYTES:
        raise UserError(
            f"{path}: {size:,} bytes is not a whole number of 16-bit ids; it breaks at offset {size - 1:,}",
            hint="it was cut short: make it again",
        )
    return Shard(path, 0, size // TOKEN_BYTES, sha256)


def _ours(folder: Path, manifest: Manifest) -> Layout:
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
            tokens = read_header(path) if manifest.format == "llm.c" else raw_shard(path).tokens
            if tokens != entry["tokens"]:
                raise UserError(
                    f"{path}: {tokens:,} tokens, the manifest says {entry['tokens']:,}",
                    hint="`onecard data verify` checks every file",
                )
            offset = HEADER_BYTES if manifest.format == "llm.c" else 0
            shards.append(Shard(path, offset, tokens, entry.get("sha256")))
        splits[name] = shards
    tokenizer = None if manifest.tokenizer.get("name") is None else manifest.tokenizer
    return Layout(
        manifest.name,
        folder,
        manifest.format,
        splits,
        tokenizer,
        manifest.bytes_per_token,
        manifest,
    )


def _nanogpt(folder: Path, name: str) -> Layout:
    splits = {
        s: [raw_shard(folder / f"{s}.bin")]
        for s in ("train", "val")
        if (folder / f"{s}.bin").is_file()
    }
    tokenizer: dict[str, Any] | None = dict(
        GPT2
    )  # as nanoGPT's sample.py takes it when there is no meta.pkl
    if (folder / "meta.pkl").is_file():
        from onecard.data.read.meta import read_meta

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
        first = Path(f"{path}.metadata").read_text(encoding="utf-8").split("\n")[0]
    except (OSError, ValueError):
        return None
    name, _, width = first.rpartition("|")
    if width == "4":
        raise UserError(
            f"{path}: 32-bit ids",
            hint="only 16-bit ids are read: prepare it with the GPT-2 tokeniser",
        )
    return dict(GPT2) if name.split("/")[-1] == "gpt2" else None
