"""A SOURCE, resolved: its files in order, where they came from, and what is known of it.

>>> Input("notes.txt", "text", 1000).text_bytes
0
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.data.read.shard_files import file_sha256
from onecard.data.sources.hub import HubFile, fetch
from onecard.data.sources.unit import Kind


@dataclass(frozen=True)
class Input:
    """One file of a source; on the hub until it is fetched."""

    path: str
    kind: Kind
    size: int
    modified: int = 0  # ns; a local file that changes under the work is noticed
    sha256: str | None = None
    text_bytes: int = 0  # expected


@dataclass(frozen=True)
class Source:
    uri: str
    name: str
    revision: str | None = None
    licence: str | None = None
    repo: str | None = None
    inputs: tuple[Input, ...] = ()
    pretokenized: bool = False
    bytes_per_token: float | None = None
    column: str | None = None  # that holds the text, or the tokens, where it is not "text"

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


def content_digest(source: Source) -> str:
    """Names, sizes and content of a source's files in one digest; local files are read for it."""
    listing = [
        (
            Path(item.path).name,
            item.size,
            item.sha256 if source.repo is not None else file_sha256(Path(item.path)),
        )
        for item in source.inputs
    ]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()


def state_digest(source: Source) -> str | None:
    """What the file system says of a source's files: while it stays the same, they need not be read again."""
    if source.repo is not None:
        return None
    listing = []
    for item in source.inputs:
        status = os.stat(item.path)
        listing.append(
            [item.path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        )
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
