"""Local files and folders, and the standard library's own text, as sources.

>>> stdlib_source().inputs[0].kind
'text'
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from onecard.data.sources.packed import SUFFIXES, packed
from onecard.data.sources.source import Input, Source
from onecard.data.sources.unit import Kind
from onecard.errors import UserError

_JSONL = (".jsonl", ".ndjson", ".json")
_TEXT = (".txt", ".text", ".md", ".rst")
_UNPACKS = 3.5  # bytes of text per byte of gz or zst, web text
_PARQUET_UNPACKS = 1.6  # bytes of text per byte of parquet: FineWeb-Edu 10BT, 46 GB of 28.5
_NOT_STDLIB = frozenset(
    ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3")
)


def local_source(path: Path) -> Source:
    name = file_name(path.resolve().name)
    try:
        if path.is_file():
            inputs = [input_of(path)]
            name = name.split(".")[0] or name
        else:
            paths = _in_order(p for p in path.rglob("*") if p.is_file())
            paths = [p for p in paths if not _hidden(p.relative_to(path))]
            _check_readable(path)
            wanted = [p for p in paths if _base_suffix(p) in (".parquet", ".npy", *_JSONL, *_TEXT)]
            if not wanted:
                raise UserError(
                    f"{path} holds no parquet, jsonl or text files",
                    hint="name the files one by one if they are text with other endings",
                )
            inputs = [input_of(p) for p in wanted]
    except OSError as error:
        raise UserError(
            f"{error.filename or path} cannot be read: {error.strerror}",
            hint="check its permissions",
        ) from None
    return Source(str(path), name, inputs=tuple(inputs))


def stdlib_source() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    paths = _in_order(
        p for p in root.rglob("*.py") if not _NOT_STDLIB & set(p.relative_to(root).parts)
    )
    version = ".".join(map(str, sys.version_info[:3]))
    return Source(
        "stdlib",
        "stdlib",
        f"CPython {version}",
        "PSF-2.0",
        inputs=tuple(input_of(p, "text") for p in paths),
    )


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """The same order on every system: Windows' own comparison of paths ignores case."""
    return sorted(paths, key=lambda path: path.parts)


def _check_readable(folder: Path) -> None:
    """rglob passes over folders it may not read; a set with silent holes is worse than an error."""
    for root, _, _ in os.walk(folder, onerror=_raise):
        os.scandir(root).close()


def _raise(error: OSError) -> None:
    raise error


def input_of(path: Path, kind: Kind | None = None) -> Input:
    stat = path.stat()
    with open(path, "rb"):
        pass  # a missing permission is better reported now than by a worker
    kind = kind or kind_of(path)
    expected = stat.st_size * expansion(path, kind)
    return Input(str(path), kind, stat.st_size, stat.st_mtime_ns, None, int(expected))


def kind_of(path: Path) -> Kind:
    suffix = _base_suffix(path)
    if suffix == ".parquet":
        return "parquet"
    if path.suffix.lower() == ".npy":
        return "tokens"
    return "jsonl" if suffix in _JSONL else "text"


def expansion(path: Path, kind: Kind) -> float:
    """Bytes of text per byte of a file that cannot be looked into yet."""
    if kind == "parquet":
        return _PARQUET_UNPACKS
    return _UNPACKS if packed(path) else 1.0


def file_name(text: str) -> str:
    """A name that is safe as part of a file's name: no separators, nothing that leads elsewhere."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".") or "data"


def _base_suffix(path: Path) -> str:
    return (
        Path(path.stem).suffix.lower() if path.suffix.lower() in SUFFIXES else path.suffix.lower()
    )


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def running_text(sources: list[Source]) -> Input | None:
    """The one text file that is the whole input: a running text, kept in order, its tail for validation."""
    inputs = [item for source in sources for item in source.inputs]
    if (
        len(inputs) == 1
        and inputs[0].kind == "text"
        and sources[0].repo is None
        and not packed(inputs[0].path)
    ):
        return replace(inputs[0], kind="running")
    return None
