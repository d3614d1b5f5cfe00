"""The run folder: what a run was (config, plan, environment), what it did (log.jsonl), and whether it is still alive.

out/
  config.toml       the run's config              run.json      state, process, host
  plan.json         what was predicted            log.jsonl     what happened (runs/log.py)
  environment.json  versions, card, git commit    checkpoints/  samples/

record = RunRecord(Path("out"))
record.claim()      # the folder's lock, before anything is written; the system releases it when the process ends
record.write_new(config, plan, environment(torch_version=torch.__version__, gpu=name))
record.begin()
…
record.end("finished")
"""

import contextlib
import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any, Literal

from onecard.config import RunConfig, load, to_toml
from onecard.errors import UserError
from onecard.files import BusyError, Lock, is_locked, sync_folder, write_json, write_text
from onecard.planner.result import RunPlan
from onecard.runs.git_state import git_diff, git_state
from onecard.units import utc_now
from onecard.untrusted import printable, read_json
from onecard.version import __version__

State = Literal["running", "finished", "stopped", "dead"]

_SILENT_SECONDS = 900.0  # a run on another machine whose log stood still this long counts as dead
_LOOKERS_SECONDS = 1.0  # `onecard runs` holds a lock for a moment when it looks


class RunRecord:
    """One run folder on disk."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = Lock(path / "run.lock", _LOOKERS_SECONDS)
        self._made: list[Path] = []  # folders that claiming made, innermost first

    def claim(self) -> None:
        """Take the folder for this process; a second run in the same folder is refused."""
        if self._lock.held:
            return
        self._made = [p for p in (self.path, *self.path.absolute().parents) if not p.exists()]
        try:
            self._lock.acquire()
        except BusyError as error:
            raise UserError(
                f"another run is writing to {self.path} ({error.holder})",
                hint="wait for it, or name another out_dir",
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(
                f"cannot write to the run folder {self.path}: {getattr(error, 'strerror', None) or error}",
                hint="check out_dir and its permissions",
            ) from None

    def release(self) -> None:
        """Let go of the folder; where nothing was started in it, it is left as it was found."""
        if not holds_a_run(self.path):
            self._lock.remove()
        self._lock.release()
        if not holds_a_run(self.path):
            with contextlib.suppress(OSError):
                (self.path / "checkpoints").rmdir()
            for folder in self._made:
                with contextlib.suppress(OSError):  # not empty: somebody else's by now
                    folder.rmdir()

    def write_new(
        self, config: RunConfig, plan: RunPlan | None, environment: dict[str, Any]
    ) -> None:
        """A new run; a folder that holds a run already is refused, so that nothing is written over."""
        refuse_a_second_run(self.path)
        self.claim()
        refuse_a_second_run(self.path)  # its run may have begun and ended while we waited
        try:
            for folder in (self.path, self.path / "checkpoints", self.path / "samples"):
                folder.mkdir(parents=True, exist_ok=True)
            for folder in (*self._made, self.path):
                sync_folder(folder.parent)
            head = f"onecard {__version__}"
            write_text(self.path / "config.toml", to_toml(config, head=head))
            if plan is not None:
                write_json(self.path / "plan.json", plan.to_json())
            write_json(self.path / "environment.json", environment, private=True)
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {self.path}: {error.strerror or error}",
                hint="check out_dir, its permissions and the free disk",
            ) from None

    @classmethod
    def open(cls, path: Path) -> "RunRecord":
        if not is_run_folder(path):
            raise UserError(
                f"{path} is not a run folder", hint="a run folder holds config.toml and log.jsonl"
            )
        return cls(path)

    @property
    def log_path(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    def config(self) -> RunConfig:
        return load(self.path / "config.toml")

    def plan(self) -> dict[str, Any] | None:
        """The plan's JSON as it was when the run began."""
        return _json(self.path / "plan.json")

    def begin(self) -> None:
        """From here on the folder holds a run."""
        self.claim()
        self._write_state("running")

    def end(self, state: Literal["finished", "stopped"]) -> None:
        """Write how it ended and unlock the folder. A disk that takes no more does not hide why the run ended."""
        with contextlib.suppress(OSError):
            self._write_state(state)
        self.release()

    @property
    def state(self) -> State:
        """What became of the run; `dead` when its process went away without a word."""
        saved = _json(self.path / "run.json") or {}
        if saved.get("state") in ("finished", "stopped"):
            return "finished" if saved["state"] == "finished" else "stopped"
        if saved.get("state") != "running":
            return "stopped"  # a folder that was made and never begun
        if saved.get("host") != socket.gethostname():  # its lock says nothing here; its log does
            try:
                return (
                    "running"
                    if time.time() - self.log_path.stat().st_mtime < _SILENT_SECONDS
                    else "dead"
                )
            except OSError:
                return "dead"
        return "running" if self._lock.held or is_locked(self._lock.path) else "dead"

    def _write_state(self, state: str) -> None:
        write_json(
            self.path / "run.json",
            {"state": state, "pid": os.getpid(), "host": socket.gethostname(), "time": utc_now()},
        )


def holds_a_run(path: Path) -> bool:
    """Whether a run was started here: what a new run must not touch."""
    return (
        (path / "run.json").exists()
        or (path / "log.jsonl").exists()
        or next((path / "checkpoints").glob("step_*"), None) is not None
    )


def refuse_a_second_run(path: Path) -> None:
    if holds_a_run(path):
        raise UserError(
            f"{path} already holds a run",
            hint="continue with it by the option `resume`, or name another out_dir",
        )


def is_run_folder(path: Path) -> bool:
    return (path / "config.toml").is_file() and (
        (path / "log.jsonl").is_file() or (path / "run.json").is_file()
    )


def environment(
    torch_version: str | None = None,
    gpu: str | None = None,
    driver: str | None = None,
    with_diff: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Where a run happened, for someone who reads it a year later. `more` is kept as given (data set, tokenizer, seeds).

    `with_diff` adds what is not committed; it may hold secrets and is only recorded on request.
    """
    return {
        "onecard": __version__,
        "python": platform.python_version(),
        "torch": torch_version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "gpu": gpu,
        "driver": driver,
        "command": [printable(word) for word in _command()],
        "time": utc_now(),
        "git": _git(Path(), with_diff),
        **more,
    }


def _command() -> list[str]:
    """The words that were typed; of another program, which may take secrets as arguments, its name alone."""
    program = Path(sys.argv[0])
    ours = program.stem == "onecard" or program.parts[-2:] == ("onecard", "__main__.py")
    return sys.argv if ours else sys.argv[:1]


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _git(folder: Path, with_diff: bool) -> dict[str, Any] | None:
    state = git_state(folder)
    return {**state, "diff": git_diff(folder)} if state is not None and with_diff else state
