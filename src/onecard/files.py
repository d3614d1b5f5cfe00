"""Files written whole or not at all, renames that last, and locks that end with their process.

    write_text(folder / "config.toml", text)     # a reader sees the old file or the new one
    with Lock(folder / "run.lock"): ...          # BusyError where another process holds it

Every atomic write of the project goes through here: aside in the same folder, flushed to the disk, renamed, and the
folder flushed too, so that a power cut leaves the old file or the new one.
"""

import contextlib
import errno
import glob
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

# Windows refuses to rename a file that a virus scanner or an indexer has open; it lets go within moments.
_RENAME_WAITS = (0.01, 0.05, 0.1, 0.3, 1.0, 3.0) if sys.platform == "win32" else ()


# Error numbers of a write that found no room: the disk, the user's quota, the file system's largest file.
DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


class BusyError(Exception):
    """Another process holds the lock; `holder` is what it wrote into the file."""

    def __init__(self, holder: str):
        super().__init__(holder)
        self.holder = holder


def write_bytes(path: Path, *pieces: bytes | memoryview, private: bool = False) -> None:
    """The pieces as one file, whole or not at all; `private` lets no other account read it."""
    with writing(path, private=private) as file:
        for piece in pieces:
            file.write(piece)


def write_text(path: Path, text: str, private: bool = False) -> None:
    write_bytes(path, text.encode("utf-8"), private=private)


def write_json(path: Path, value: Any, private: bool = False) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n", private=private)


@contextlib.contextmanager
def writing(path: Path, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to that takes `path`'s place when the block ends without an exception."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(aside, flags, 0o600 if private else 0o666)  # less what the umask takes away
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    sync_folder(path.parent)


def replace(source: Path, target: Path) -> None:
    """os.replace, tried again where Windows says that the file is in use."""
    for wait in _RENAME_WAITS:
        try:
            return os.replace(source, target)
        except PermissionError:
            time.sleep(wait)
    os.replace(source, target)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder last through a power cut, where the system has such a call."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders, and orders renames itself
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse; the rename itself is still whole
    finally:
        os.close(handle)


def sync_files(folder: Path) -> None:
    """Make the files directly in a folder last: for those that other libraries wrote without flushing them."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
    sync_folder(folder)


def replace_tree(source: Path, target: Path) -> None:
    """Put a folder in the place of another, which is removed last.

    No system renames a folder over one that holds files. A crash between the two renames leaves the old one whole beside
    its place; `restore_tree` puts it back.
    """
    old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
    if target.exists():
        replace(target, old)
    replace(source, target)
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def restore_tree(target: Path) -> None:
    """Finish what a crash within `replace_tree` left: the old folder back in its place, or gone where the new one is."""
    for old in target.parent.glob(f".{glob.escape(target.name)}.????????.old"):
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            replace(old, target)


def remove_tree(folder: Path) -> None:
    """Take a folder away without a moment in which half of it stands under its own name."""
    aside = folder.with_name(f".removing_{folder.name}_{secrets.token_hex(4)}")
    try:
        replace(folder, aside)
    except OSError:
        return
    shutil.rmtree(aside, ignore_errors=True)


class Lock:
    """An exclusive lock on a file, which the system releases when the process ends, however it ends."""

    def __init__(self, path: Path, wait_seconds: float = 0.0):
        self.path = path
        self._wait_seconds = wait_seconds
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "Lock":
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> None:
        give_up = time.monotonic() + self._wait_seconds
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+b")  # noqa: SIM115
            if not _try_lock(file, shared=False):
                holder = _holder(file)
                file.close()
                if time.monotonic() >= give_up:
                    raise BusyError(holder)
                time.sleep(0.05)
                continue
            if _is_at(file, self.path):
                break
            file.close()  # its holder removed the file between our opening and locking it: once more
        file.truncate(0)
        file.write(f"process {os.getpid()}\n".encode())
        file.flush()
        self._file = file

    def remove(self) -> bool:
        """Take the file away while it is held; another's that has come to its place stays. False where it is still there."""
        if self._file is None or not _is_at(self._file, self.path):
            return True
        try:
            self.path.unlink()
        except OSError:  # Windows keeps a file that is open
            return False
        return True

    def release(self) -> None:
        if self._file is not None:
            _unlock(self._file)
            self._file.close()
            self._file = None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock now; looking takes it for a moment, shared with others who look."""
    try:
        with open(path, "r+b") as file:
            if not _try_lock(file, shared=True):
                return True
            _unlock(file)
            return False
    except OSError:
        return False


def _holder(file: IO[bytes]) -> str:
    with contextlib.suppress(OSError):
        file.seek(0)
        return file.read(200).decode(errors="replace").strip() or "another process"
    return "another process"


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


if sys.platform == "win32":
    import msvcrt

    _PLACE = 4096  # past the text, which others may read

    def _try_lock(file: IO[bytes], shared: bool) -> bool:
        try:
            file.seek(_PLACE)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # Windows has no shared form here
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(_PLACE)
        with contextlib.suppress(OSError):
            msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(file: IO[bytes], shared: bool) -> bool:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
