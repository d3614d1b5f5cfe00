"""Texts to measure a model on: files, folders of files, prepared data; a document at a time.

for text in documents(Path("notes.txt")): ...
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from onecard.data import open_dataset, resolve
from onecard.data.sources.documents import batches, units_of
from onecard.data.sources.local_files import local_source
from onecard.data.sources.unit import Reading
from onecard.errors import UserError

_UNIT_BYTES = 64 * 2**20
_READ_TOKENS = 1 << 20


def documents(path: Path, most_bytes: int | None = None) -> Iterator[str]:
    """The documents in order, cut off after `most_bytes`; prepared data gives those of its validation split."""
    left = most_bytes
    for text in _prepared(path) if is_prepared(path) else _files(path):
        if left is not None:
            raw = text.encode("utf-8", errors="replace")
            text = raw[:left].decode("utf-8", errors="ignore")
            left -= min(len(raw), left)
        if text:
            yield text
        if left == 0:
            return


def text_place(name: str) -> Path:
    """The text meant: a path, or the name of prepared data below data/."""
    if not Path(name).exists():
        with contextlib.suppress(UserError):
            return resolve(name)
    return Path(name)


def is_prepared(path: Path) -> bool:
    """Whether a folder holds tokens rather than text."""
    if not path.is_dir():
        return False
    return (path / "manifest.json").is_file() or any(path.glob("*.bin"))


def _files(path: Path) -> Iterator[str]:
    if not path.exists():
        raise UserError(f"{path} cannot be read: it is not there", hint="a text file or a folder")
    if path.is_file() and path.suffix not in (".jsonl", ".ndjson", ".parquet", ".gz", ".zst"):
        yield _whole(path)
        return
    inputs = local_source(path).inputs
    files = [(place, item, Path(str(item.path))) for place, item in enumerate(inputs)]
    reading = Reading()
    for unit in units_of(files, _UNIT_BYTES, 0, reading):
        for batch in batches(unit, reading):
            yield from batch.texts


def _whole(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", hint="a text file") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, offset {error.start:,}: invalid UTF-8", hint="convert it to UTF-8 first"
        ) from None


def _prepared(path: Path) -> Iterator[str]:
    """The validation split as text again: cut at the end-of-text token, or in long pieces without one."""
    data = open_dataset(path)
    tokenizer, split = data.tokenizer, data.splits.get("val")
    if tokenizer is None or split is None or not split.tokens:
        missing = "validation tokens" if tokenizer is not None else "tokeniser"
        raise UserError(f"{path} has no {missing}", hint="name the text itself")
    ids: list[int] = []
    for start in range(0, split.tokens, _READ_TOKENS):
        for token in split.read(start, min(_READ_TOKENS, split.tokens - start)).tolist():
            if token == tokenizer.eot:
                if ids:
                    yield tokenizer.decode(ids)
                ids = []
            else:
                ids.append(token)
    if ids:
        yield tokenizer.decode(ids)
