"""The models that can be asked: runs with a checkpoint and exported folders below the root, two in memory at once."""

import itertools
import math
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import UserError
from onecard.runs.folder_list import folders_below
from onecard.runs.record import RunRecord, is_run_folder
from onecard.ui.registry import LOOK_SECONDS, Registry
from onecard.ui.settings import Settings
from onecard.untrusted import printable

if TYPE_CHECKING:
    from onecard.model.generate import Sampler

_MOST_FILES = 5000
_MOST_FOLDERS = 20_000  # looked into for exports: somebody may serve a home folder


def no_model(name: object) -> UserError:
    return UserError(
        f"no model {printable(str(name)[:200])!r} here", hint="GET /v1/models lists them"
    )


class Models:
    """`sampler` is called by one thread alone."""

    def __init__(self, settings: Settings, registry: Registry):
        self.settings = settings
        self.registry = registry
        self._open: OrderedDict[tuple[str, int], Sampler] = OrderedDict()
        self._found: dict[str, Path] = {}
        self._looked = -math.inf
        self._lock = threading.Lock()

    def folders(self) -> dict[str, Path]:
        """Every model by its name, its path below the root; `onecard serve` has one, by its folder's name."""
        if self.settings.only is not None:
            return {self.settings.only.name: self.settings.only}
        with self._lock:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                there = self.registry.folders().items()
                runs = {name: path for name, path in there if has_checkpoint(path)}
                self._found = dict(sorted({**runs, **self._exported()}.items()))
                self._looked = time.monotonic()
            return self._found

    def _exported(self) -> dict[str, Path]:
        root, folders = self.settings.root, {}
        for path, files in itertools.islice(folders_below(root), _MOST_FOLDERS):
            if "config.json" in files and "model.safetensors" in files:
                folders[path.relative_to(root).as_posix() if path != root else "."] = path
        return folders

    def path(self, name: str) -> Path:
        path = self.folders().get(name)
        if path is None:
            raise no_model(name)
        return path

    def sampler(self, name: str) -> "Sampler":
        """The model, loaded where it is not in memory or has a newer checkpoint."""
        path = self.path(name)
        key = (name, newest_change(path))
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        check_inside(self.settings.root, path)
        from onecard.model.opening import open_model

        while len(self._open) >= self.settings.limits.models:
            self._open.popitem(last=False)
        model = open_model(str(path), self.settings.device, self._dataset(path))
        self._open[key] = model
        return model

    def _dataset(self, path: Path) -> str | None:
        """The data whose tokeniser a run needs, by its config.toml; a place that an untrusted run names is not opened."""
        if not is_run_folder(path):
            return None
        name = RunRecord(path).config().dataset
        here = Path.cwd()
        for place in (here / "data" / name, here / name):
            if not place.resolve().is_relative_to(here) and not place.resolve().is_relative_to(
                self.settings.root
            ):
                raise UserError(
                    "the run's data set is outside the folders that this server may read",
                    hint="start the server where the data is, or export the run",
                )
        return name


def has_checkpoint(path: Path) -> bool:
    return next((path / "checkpoints").glob("step_*"), None) is not None


def newest_change(path: Path) -> int:
    """Changes when a run saves another checkpoint."""
    place = path / "checkpoints"
    try:
        return (place if place.is_dir() else path).stat().st_mtime_ns
    except OSError:
        return 0


def check_inside(root: Path, folder: Path) -> None:
    """Every file of a model is below the root, links followed."""
    seen = 0
    for here, inner, files in os.walk(folder):
        for name in (*inner, *files):
            seen += 1
            if seen > _MOST_FILES or not (Path(here) / name).resolve().is_relative_to(root):
                raise UserError(
                    "a file of this model is a link that leads out of the server's folder",
                    hint="copy the file in place of the link",
                )
