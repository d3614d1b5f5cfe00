"""The commit a run was started from, read from `.git` without running git.

Any git command that looks at files or objects may run programs that a repository names in its own configuration: clean
filters, fsmonitor, text conversion, a remote helper for missing objects. Reading HEAD and the index runs nothing.

    git_state(Path.cwd())     # {"commit": "c6dd1e4…", "dirty": False}; None outside a repository
"""

import contextlib
import os
import re
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST_DIFF = 1_000_000  # characters of `git diff` that are kept
_MOST_BYTES = 64 * 2**20  # of an index: some 500,000 files
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NOT_CHECKED_OUT = 0x4000  # the extended flag of files that a sparse checkout leaves out


@dataclass(frozen=True)
class _Entry:
    path: bytes
    mode: int
    size: int
    mtime: tuple[int, int]  # seconds, nanoseconds


def git_state(folder: Path) -> dict[str, Any] | None:
    """`dirty`: True where a tracked file's size or time is not the index's, None where the index does not tell."""
    repository = _repository(folder)
    if repository is None:
        return None
    top, git = repository
    commit = _head(git)
    return None if commit is None else {"commit": commit, "dirty": _dirty(top, git)}


def git_diff(folder: Path) -> str | None:
    """What is not committed, as `git diff` prints it. It runs git, and with it the repository's clean filters."""
    options = ["--no-color", "--no-ext-diff", "--no-textconv"]
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "diff", "HEAD", *options],
            cwd=folder,
            capture_output=True,
            timeout=10,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")[:LARGEST_DIFF] if done.returncode == 0 else None


def _repository(folder: Path) -> tuple[Path, Path] | None:
    """The work tree's top and its git folder: `.git`, or where a `.git` file of a worktree or submodule points."""
    for top in (folder.absolute(), *folder.absolute().parents):
        git = top / ".git"
        if git.is_dir():
            return top, git
        text = _text(git)
        if text is not None and text.startswith("gitdir: "):
            return top, top / text.removeprefix("gitdir: ")
    return None


def _head(git: Path) -> str | None:
    head = _text(git / "HEAD") or ""
    common = git / (_text(git / "commondir") or ".")
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else None
    name = head.removeprefix("ref: ")
    if ".." in name.split("/") or not name.startswith("refs/"):
        return None
    for place in (git, common):
        loose = _text(place / name)
        if loose is not None and _COMMIT.fullmatch(loose):
            return loose
    for line in (_text(common / "packed-refs", most=_MOST_BYTES) or "").splitlines():
        commit, _, ref = line.partition(" ")
        if ref == name and _COMMIT.fullmatch(commit):
            return commit
    return None


def _text(path: Path, most: int = 4096) -> str | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would never end
            return None
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace").strip()
    except (OSError, ValueError):
        return None


def _dirty(top: Path, git: Path) -> bool | None:
    try:
        path = git / "index"
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        content = path.read_bytes()
        if any(_differs(top, entry) for entry in _entries(content)):
            return True
        return False if _all_committed(content) else None
    except (OSError, ValueError, IndexError, struct.error):
        return None


def _differs(top: Path, entry: _Entry) -> bool:
    if stat.S_IFMT(entry.mode) not in (stat.S_IFREG, stat.S_IFLNK):
        return False  # a submodule, or a folder of a sparse index
    try:
        status = os.lstat(os.path.join(os.fsencode(top), entry.path))
    except OSError:
        return True
    seconds, nanoseconds = divmod(status.st_mtime_ns, 10**9)
    same_time = entry.mtime[0] == seconds % 2**32 and entry.mtime[1] in (0, nanoseconds)
    return status.st_size % 2**32 != entry.size or not same_time


def _entries(content: bytes) -> Iterator[_Entry]:
    """The files of an index (gitformat-index, versions 2 to 4) that are checked out."""
    magic, version, count = struct.unpack_from(">4sII", content)
    if magic != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("another version of the index")
    at, name = 12, b""
    for _ in range(count):
        start = at
        _, _, seconds, nanoseconds, _, _, mode, _, _, size = struct.unpack_from(">10I", content, at)
        (flags,) = struct.unpack_from(">H", content, at + 60)
        at += 62
        extended = 0
        if flags & 0x4000:
            (extended,) = struct.unpack_from(">H", content, at)
            at += 2
        if version == 4:
            dropped, at = _variable(content, at)
            name = name[: len(name) - dropped]
        else:
            name = b""
        end = content.index(b"\0", at)
        name += content[at:end]
        at = end + 1 if version == 4 else start + (end - start) // 8 * 8 + 8
        if not flags & 0x8000 and not extended & _NOT_CHECKED_OUT:  # nor "assume unchanged"
            yield _Entry(name, mode, size, (seconds, nanoseconds))


def _variable(content: bytes, at: int) -> tuple[int, int]:
    """A number in the packs' offset encoding, and the place after it."""
    value = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        value = ((value + 1) << 7) | (content[at] & 0x7F)
    return value, at + 1


def _all_committed(content: bytes) -> bool:
    """Whether the index's own tree cache says that nothing was staged since the last commit or checkout."""
    with contextlib.suppress(ValueError, IndexError):
        at = content.rindex(b"TREE")
        count = content[content.index(b"\0", at + 8) + 1 :].split(b" ", 1)[0]
        return int(count) >= 0
    return False
