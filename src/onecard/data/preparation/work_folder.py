"""OUT/.work: where everything unfinished lives. It carries a mark of ours; without it nothing in there is touched.

with WorkFolder(folder) as work:          # one process at a time
    work.clear()                          # what an earlier run left
    ...
    work.remove_on_exit = True
"""

import contextlib
import os
import shutil
from pathlib import Path

from onecard.data.read.layout import WORK
from onecard.errors import UserError
from onecard.files import BusyError, Lock, sync_folder

MARKER = "onecard-work"
REPLACED = "replaced"  # what is known of the files of an older set, until the new one is whole
_LOCK = "lock"
_TEXT = "This folder belongs to an unfinished `onecard data`. Running the same command again continues it.\n"


class WorkFolder:
    """The work folder of one output folder, marked and locked."""

    def __init__(self, out: Path):
        self.out = out
        self.path = out / WORK
        self.remove_on_exit = False
        self._made_out = False
        self._lock = Lock(self.path / _LOCK)

    def __enter__(self) -> "WorkFolder":
        try:
            self._made_out = not self.out.exists()
            claim(self.path)
            self._lock.acquire()
        except BusyError as busy:
            raise UserError(
                f"{self.out} is being prepared by {busy.holder}",
                hint="wait for it, or choose another folder with the option `out`",
            ) from None
        except OSError as error:
            raise UserError(
                f"{self.out} cannot be made: {error.strerror}",
                hint="choose another folder with the option `out`",
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        if not self.remove_on_exit:
            self._lock.release()
            return
        self.clear()
        gone = self._lock.remove()  # while it is held: nobody can begin in between
        self._lock.release()
        if not gone:  # it may be another's by now, which Windows keeps
            with contextlib.suppress(OSError):
                (self.path / _LOCK).unlink()
        with contextlib.suppress(OSError):
            if [entry.name for entry in self.path.iterdir()] == [MARKER]:
                sync_folder(self.path)  # the mark goes last, also after a power cut
                (self.path / MARKER).unlink()
                self.path.rmdir()
                if self._made_out:
                    self.out.rmdir()  # only if it is empty

    def clear(self, keep: str | None = None) -> None:
        """Remove what is in the folder, except the mark and the lock; a link is removed, not what it leads to."""
        for entry in self.path.iterdir():
            if entry.name in (MARKER, _LOCK, keep):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def folder(self, name: str) -> Path:
        """A folder of ours in here, without what a killed process was writing."""
        path = self.path / name
        if path.is_symlink():
            raise _foreign(path, "is a link")
        path.mkdir(exist_ok=True)
        for aside in path.glob(".*.tmp"):
            aside.unlink()
        return path


def claim(work: Path) -> None:
    """Make the work folder and mark it; one that holds something and lacks the mark is somebody else's."""
    if work.is_symlink():
        raise _foreign(work, "is a link")
    work.mkdir(parents=True, exist_ok=True)
    for folder in (work.parent.parent, work.parent):  # a set without it would pass for finished
        sync_folder(folder)
    if (work / MARKER).is_file():
        return
    if any(work.iterdir()):
        raise _foreign(work, "was not made by this version of onecard")
    with (work / MARKER).open("w", encoding="utf-8") as file:
        file.write(_TEXT)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(work)  # after a power cut nothing else is in here without the mark


def _foreign(path: Path, why: str) -> UserError:
    return UserError(
        f"{path} {why}; nothing in it is touched",
        hint="move it away or delete it yourself, or choose another folder with the option `out`",
    )
