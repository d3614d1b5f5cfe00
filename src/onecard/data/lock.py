"""One run per folder: a lock the system itself releases when the holder dies, however it dies.

with FolderLock(folder): ...
"""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import IO

from onecard.errors import UserError


class FolderLock:
    """Holds FOLDER/lock; the file also says who holds it, for the one who is turned away."""

    def __init__(self, folder: Path):
        self.path = folder / "lock"
        self.file: IO[str] | None = None

    def __enter__(self) -> "FolderLock":
        while True:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open(self.path, "a+", encoding="utf-8")
            if not _try_lock(file):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                file.close()
                raise UserError(
                    f"{self.path.parent.parent} is being prepared by {holder}",
                    hint="wait for it, or choose another --out",
                )
            with contextlib.suppress(OSError):
                if os.fstat(file.fileno()).st_ino == os.stat(self.path).st_ino:
                    break
            file.close()  # its holder finished and removed the folder between our opening and locking: once more
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        self.file = file
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()  # closing releases it
            self.file = None


def _try_lock(file: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(4096)  # past the text, which others may read
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
