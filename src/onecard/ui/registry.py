"""Which runs there are: the folders below the root, and logs that were dropped on the page. Nothing outside the root."""

import itertools
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.runs.figures import RunFigures, figures
from onecard.runs.folder_list import run_folders
from onecard.runs.read import read_runs
from onecard.runs.run import Run
from onecard.ui.run_watch import RunWatch, run_row
from onecard.ui.settings import Settings
from onecard.untrusted import printable

LOOK_SECONDS = 3.0  # between two walks through the folders
_MOST_RUNS = 2000
_MOST_WATCHED = 8  # runs whose points are held at once
# What is read of a run; a link in one of these places that leads out of the root makes the folder nobody's run.
_PARTS = [
    "config.toml",
    "log.jsonl",
    "plan.json",
    "run.json",
    "run.lock",
    "environment.json",
    "checkpoints",
    "samples",
]


class Registry:
    """All runs of one server. Its methods may be called from several threads."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._lock = threading.RLock()
        self._found: dict[str, Path] = {}
        self._looked = 0.0
        self._rows: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._watched: OrderedDict[str, RunWatch] = OrderedDict()
        self._dropped: OrderedDict[str, Run] = OrderedDict()
        self._next = 1

    def folders(self) -> dict[str, Path]:
        """Every run by its name, which is its path below the root."""
        with self._lock:
            if time.monotonic() - self._looked > LOOK_SECONDS or not self._looked:
                root = self.settings.root
                self._found = {
                    path.relative_to(root).as_posix() if path != root else ".": path
                    for path in itertools.islice(run_folders(root), _MOST_RUNS)
                    if inside(root, path)
                }
                self._rows = {k: row for k, row in self._rows.items() if k in self._found}
                self._looked = time.monotonic()
            return self._found

    def folder(self, name: str) -> Path:
        path = self.folders().get(name)
        if path is None or not inside(self.settings.root, path):
            raise UserError(
                f"no run {printable(name[:200])!r} here", hint="the list has all of them"
            )
        return path

    def rows(self) -> list[dict[str, Any]]:
        with self._lock:
            rows = [self.row(name, path) for name, path in sorted(self.folders().items())]
            for name, run in self._dropped.items():
                loss = run.curve.losses[-1] if run.curve.losses else None
                rows.append(
                    {
                        "id": name,
                        "name": printable(run.name),
                        "state": "log",
                        "step": run.last_step,
                        "max_steps": run.max_steps,
                        "loss": loss,
                        "format": run.format,
                        "hours": run.curve.seconds[-1] / 3600 if run.curve.seconds else None,
                    }
                )
            return rows

    def row(self, name: str, path: Path) -> dict[str, Any]:
        """A run in the list; what has ended is read once."""
        key = tuple(_stamp(path / part) for part in ("log.jsonl", "run.json"))
        known = self._rows.get(name)
        if known is not None and known[0] == key and known[1]["state"] in ("finished", "stopped"):
            return known[1]
        row = run_row(path, name, self.settings.price)
        with self._lock:  # `folders` goes through the rows
            self._rows[name] = (key, row)
        return row

    def watch(self, name: str) -> RunWatch:
        with self._lock:
            path = self.folder(name)
            watched = self._watched.pop(name, None) or RunWatch(path, self.settings.price)
            self._watched[name] = watched
            while len(self._watched) > _MOST_WATCHED:
                self._watched.popitem(last=False)
            return watched

    def figures(self, name: str) -> RunFigures:
        """A run as `compare` reads it."""
        run = self._dropped.get(name)
        if run is None:
            run = read_runs(str(self.folder(name)))[-1]
        return figures(run, price=self.settings.price)

    def dropped(self, name: str) -> Run | None:
        return self._dropped.get(name)

    def drop(self, file_name: str, content: bytes) -> list[str]:
        """Read another trainer's log; it is kept as figures, not as a file."""
        safe = (
            "".join(c for c in file_name if c.isalnum() or c in "._- ")[-80:].lstrip(". ") or "log"
        )
        with tempfile.TemporaryDirectory(prefix="onecard-log-") as place:
            path = Path(place) / safe
            path.write_bytes(content)
            try:
                runs = read_runs(str(path))
            except UserError as error:
                raise UserError(error.message.replace(place + "/", ""), error.hint) from None
        names = []
        with self._lock:
            for run in runs[: self.settings.limits.dropped_logs]:
                names.append(f"log:{self._next}")
                self._dropped[names[-1]] = run
                self._next += 1
            while len(self._dropped) > self.settings.limits.dropped_logs:
                self._dropped.popitem(last=False)
        return names

    def forget(self, name: str) -> None:
        with self._lock:
            self._dropped.pop(name, None)


def inside(root: Path, folder: Path) -> bool:
    """Whether the folder and all that is read of it are really below the root, links followed."""
    try:
        places = [folder.resolve(), *((folder / part).resolve() for part in _PARTS)]
    except (OSError, RuntimeError, ValueError):
        return False
    return all(place.is_relative_to(root) for place in places)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns
