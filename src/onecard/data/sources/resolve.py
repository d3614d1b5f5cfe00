"""What `onecard data SOURCE…` may name, resolved to files: named sets, the hub, local files and folders, stdlib.

>>> resolve_source("stdlib", None).inputs[0].kind
'text'
"""

import os
import re
import sysconfig
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onecard.data.sources.documents import Kind, Reading, Unit, open_parquet
from onecard.data.sources.hub import HubFile, HubRepo, fetch, look_up
from onecard.data.sources.texts import LONGEST_TEXT, PIECE_BYTES, compressed
from onecard.errors import UserError, nearest
from onecard.facts.datasets import DatasetFacts, all_datasets, family, known_dataset

_JSONL = (".jsonl", ".ndjson", ".json")
_TEXT = (".txt", ".text", ".md", ".rst")
_PACKED = (".gz", ".zst", ".xz", ".bz2")
_UNPACKS = 3.5  # bytes of text per byte of gz or zst, web text
_PARQUET_UNPACKS = 1.6  # bytes of text per byte of parquet: FineWeb-Edu 10BT, 46 GB of 28.5


@dataclass(frozen=True)
class Input:
    """One file of a source; on the hub until it is fetched."""

    path: str
    kind: Kind
    size: int
    modified: int = 0  # ns; a local file that changes under the work is noticed
    sha256: str | None = None
    text_bytes: int = 0  # expected

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Source:
    """One SOURCE word: its files in order, where they came from, and what is known of it."""

    uri: str
    name: str
    revision: str | None = None
    licence: str | None = None
    repo: str | None = None
    inputs: tuple[Input, ...] = ()
    pretokenized: bool = False
    adopt: str | None = None  # a folder of tokens that is used as it is
    bytes_per_token: float | None = None
    facts: DatasetFacts | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in self.__dict__.items() if k != "facts"},
            "inputs": [i.to_json() for i in self.inputs],
        }

    @staticmethod
    def from_json(raw: dict[str, Any]) -> "Source":
        return Source(**{**raw, "inputs": tuple(Input(**entry) for entry in raw["inputs"])})

    def fetch(self, item: Input, marks: Path) -> Path:
        """The file on this machine; `marks` remembers which downloads were checked."""
        if self.repo is None:
            return Path(item.path)
        return fetch(
            self.repo, str(self.revision), HubFile(item.path, item.size, item.sha256), marks
        )


def resolve_source(word: str, tokens: int | None) -> Source:
    """What one SOURCE word means. A path wins over a name only when it looks like one (a separator, a suffix)."""
    if word == "stdlib":
        return _stdlib()
    if word.startswith("hf:"):
        return _hub_word(word)
    here = Path(word)
    looks_local = len(here.parts) > 1 or bool(here.suffix) or here.is_absolute()
    if looks_local and here.exists():
        return _local(here)
    named = family(word) or [entry for entry in [known_dataset(word)] if entry is not None]
    if named:
        return _named(word, named, tokens)
    if here.exists():
        return _local(here)
    names = [entry.name for entry in all_datasets() if entry.repo] + [
        "fineweb",
        "fineweb-edu",
        "stdlib",
    ]
    if looks_local and not re.fullmatch(r"[\w.-]+/[\w.-]+", word):
        raise UserError(
            f"{word} does not exist", hint="give a file, a folder, a named set or hf:owner/name"
        )
    hint = nearest(word, names) or f"named sets: {', '.join(names)}"
    raise UserError(
        f"{word!r} is neither a file nor a known data set",
        hint=f"{hint}; any other on the hub: hf:owner/name",
    )


def _named(word: str, entries: list[DatasetFacts], tokens: int | None) -> Source:
    """The smallest sample that holds the tokens asked for."""
    for entry in entries:
        if tokens is None or tokens <= entry.tokens or entry is entries[-1]:
            break
    if entry.repo is None:
        raise UserError(
            f"{entry.name} has no download here",
            hint=f"get its text file, then `onecard data FILE`{' --tokenizer chars' if entry.vocab_size == 65 else ''}",
        )
    repo = look_up(entry.repo, None, None, entry.paths)
    name = re.sub(r"[^\w.-]+", "-", word.split("/")[-1])
    return _hub_source(
        f"hf:{entry.repo}" + (f":{entry.name.split(':')[1]}" if ":" in entry.name else ""),
        name,
        repo,
        entry,
    )


def _hub_word(word: str) -> Source:
    found = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?::([\w./-]+))?(?:@([\w./-]+))?", word)
    if found is None:
        raise UserError(
            f"{word!r} is not a hub name",
            hint="write hf:owner/name, hf:owner/name:config or hf:owner/name@revision",
        )
    repo, config, revision = found.groups()
    known = next(
        (
            e
            for e in all_datasets()
            if e.repo == repo and (config is None or e.name.endswith(f":{config}"))
        ),
        None,
    )
    patterns = known.paths if known is not None and (config or known.pretokenized) else ()
    name = re.sub(r"[^\w.-]+", "-", repo.split("/")[1] + (f"-{config}" if config else ""))
    uri = f"hf:{repo}" + (f":{config}" if config else "")
    return _hub_source(
        uri, name, look_up(repo, revision, config, patterns), known if patterns else None
    )


def _hub_source(uri: str, name: str, repo: HubRepo, facts: DatasetFacts | None) -> Source:
    shards = all(file.path.endswith(".bin") for file in repo.files)
    total = sum(file.size for file in repo.files) or 1
    text = facts.tokens * facts.bytes_per_token if facts is not None else None
    inputs = []
    for file in repo.files:
        kind: Kind = "text" if shards else _kind_of(Path(file.path))
        expected = (
            text * file.size / total if text else file.size * _expansion(Path(file.path), kind)
        )
        inputs.append(Input(file.path, kind, file.size, 0, file.sha256, int(expected)))
    if shards:  # validation first, then train in order
        inputs.sort(key=lambda item: ("_val_" not in item.path, item.path))
    licence = repo.licence or (facts.licence if facts is not None else None)
    return Source(
        uri,
        name,
        repo.commit,
        licence,
        repo.repo,
        tuple(inputs),
        shards,
        bytes_per_token=facts.bytes_per_token if facts is not None else None,
        facts=facts,
    )


def _local(path: Path) -> Source:
    name = re.sub(r"[^\w.-]+", "-", path.resolve().name)
    try:
        if path.is_file():
            inputs = [_input(path)]
            name = name.split(".")[0] or name
        else:
            files = sorted(
                p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path))
            )
            if any(p.suffix in (".bin", ".ds") and p.parent == path for p in files):
                return Source(str(path), name, adopt=str(path))
            _readable(path)
            wanted = [p for p in files if _base_suffix(p) in (".parquet", *_JSONL, *_TEXT)]
            if not wanted:
                raise UserError(
                    f"{path} holds no parquet, jsonl or text files",
                    hint="name the files one by one if they are text with other endings",
                )
            inputs = [_input(p) for p in wanted]
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read: {error.strerror}", hint="check its rights"
        ) from None
    return Source(str(path), name, inputs=tuple(inputs))


def _readable(folder: Path) -> None:
    """rglob passes over folders it may not read; a set with silent holes is worse than an error."""
    for root, _, _ in os.walk(folder, onerror=_raise):
        os.scandir(root).close()


def _raise(error: OSError) -> None:
    raise error


def _stdlib() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
    }
    files = sorted(p for p in root.rglob("*.py") if not left_out & set(p.relative_to(root).parts))
    version = ".".join(map(str, __import__("sys").version_info[:3]))
    return Source(
        "stdlib",
        "stdlib",
        f"CPython {version}",
        "PSF-2.0",
        inputs=tuple(_input(p, "text") for p in files),
    )


def _input(path: Path, kind: Kind | None = None) -> Input:
    stat = path.stat()
    with open(path, "rb"):
        pass  # no rights is better said now than in a worker
    kind = kind or _kind_of(path)
    expected = stat.st_size * _expansion(path, kind)
    return Input(str(path), kind, stat.st_size, stat.st_mtime_ns, None, int(expected))


def _kind_of(path: Path) -> Kind:
    suffix = _base_suffix(path)
    if suffix == ".parquet":
        return "parquet"
    return "jsonl" if suffix in _JSONL else "text"


def _base_suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() in _PACKED else path.suffix.lower()


def _expansion(path: Path, kind: Kind) -> float:
    if kind == "parquet":
        return _PARQUET_UNPACKS
    return _UNPACKS if compressed(path) else 1.0


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def running_text(sources: list[Source]) -> Input | None:
    """The one text file that is the whole input: a running text, kept in order, its tail for validation."""
    inputs = [item for source in sources for item in source.inputs]
    if (
        len(inputs) == 1
        and inputs[0].kind == "text"
        and sources[0].repo is None
        and not compressed(inputs[0].path)
    ):
        return replace(inputs[0], kind="running")
    return None


def units_of(
    files: list[tuple[int, Input, Path]], unit_bytes: int, first: int, reading: Reading
) -> list[Unit]:
    """Cut files that are here into units of about `unit_bytes` of text, numbered from `first`."""
    units: list[Unit] = []
    small: list[tuple[int, str]] = []
    small_bytes = 0

    def close() -> None:
        nonlocal small, small_bytes
        if small:
            units.append(Unit(first + len(units), "text", tuple(small), 0, 0, small_bytes))
        small, small_bytes = [], 0

    for place, item, path in files:
        whole_text = item.kind == "text" and (compressed(path) or item.size <= LONGEST_TEXT)
        if whole_text and not compressed(path):
            small.append((place, str(path)))
            small_bytes += item.size
            if small_bytes >= unit_bytes:
                close()
            continue
        close()
        for start, stop, size in _ranges(item, path, unit_bytes, reading, whole_text):
            units.append(
                Unit(first + len(units), item.kind, ((place, str(path)),), start, stop, size)
            )
    close()
    return units


def _ranges(
    item: Input, path: Path, unit_bytes: int, reading: Reading, whole: bool
) -> list[tuple[int, int, int]]:
    if item.kind == "parquet":
        return _row_groups(path, unit_bytes, reading)
    if whole or compressed(path):
        return [(0, 0, item.text_bytes)]
    step = max(1, unit_bytes // PIECE_BYTES) if item.kind in ("text", "running") else unit_bytes
    count = -(-item.size // PIECE_BYTES) if item.kind in ("text", "running") else item.size
    scale = PIECE_BYTES if item.kind in ("text", "running") else 1
    return [
        (at, min(at + step, count), (min(at + step, count) - at) * scale)
        for at in range(0, count, step)
    ]


def _row_groups(path: Path, unit_bytes: int, reading: Reading) -> list[tuple[int, int, int]]:
    with open_parquet(path, reading) as file:
        meta = file.metadata
        sizes = []
        for group in range(meta.num_row_groups):
            columns = [meta.row_group(group).column(c) for c in range(meta.num_columns)]
            sizes.append(
                sum(
                    c.total_uncompressed_size for c in columns if c.path_in_schema == reading.column
                )
            )
    out, start, size = [], 0, 0
    for group, more in enumerate(sizes):
        size += more
        if size >= unit_bytes or group + 1 == len(sizes):
            out.append((start, group + 1, size))
            start, size = group + 1, 0
    return out
