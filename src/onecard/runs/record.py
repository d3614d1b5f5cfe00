"""The run folder: what a run was (config, plan, environment), what it did (log.jsonl), and whether it is still alive.

out/
  config.toml       the run's config            run.json      pid, host, state
  plan.json         what was predicted          log.jsonl     what happened (runs/log.py)
  environment.json  versions, card, git diff    checkpoints/  samples/

record = RunRecord.create(Path("out"), config, plan, environment(torch_version=torch.__version__, gpu=name))
record.begin()      # takes the folder's lock; the system lets go of it when the process dies, however it dies
…
record.end("finished")
"""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from onecard.config import RunConfig, load, to_toml
from onecard.errors import UserError
from onecard.planner.result import RunPlan
from onecard.version import __version__

State = Literal["running", "finished", "stopped", "dead"]

_LARGEST_DIFF = 1_000_000  # characters of `git diff` that are kept
_SILENT_SECONDS = 900.0  # a run on another machine whose log stood still this long counts as dead


def write_json_atomically(path: Path, value: Any) -> None:
    """Write aside, fsync, rename: a reader sees the old file or the new one, never half of one."""
    write_text_atomically(
        path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def write_text_atomically(path: Path, text: str) -> None:
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # mkstemp's 0600 would hide the run from its owner's other accounts
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


class RunRecord:
    """One run folder on disk."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, plan: RunPlan | None, environment: dict[str, Any]
    ) -> "RunRecord":
        """A new run in `path`; a folder that holds a run already is refused, so that nothing is written over."""
        if (path / "log.jsonl").exists() or (path / "run.json").exists():
            raise UserError(
                f"{path} holds a run already",
                hint="resume it with --init_from=resume, or name another --out_dir",
            )
        try:
            for folder in (path, path / "checkpoints", path / "samples"):
                folder.mkdir(parents=True, exist_ok=True)
            write_text_atomically(
                path / "config.toml", to_toml(config, head=f"onecard {__version__}")
            )
            if plan is not None:
                write_json_atomically(path / "plan.json", plan.to_json())
            write_json_atomically(path / "environment.json", environment)
        except OSError as error:
            raise UserError(
                f"cannot write the run folder {path}: {error.strerror or error}",
                hint="check --out_dir, its rights and the free disk",
            ) from None
        return cls(path)

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

    def environment(self) -> dict[str, Any]:
        return _json(self.path / "environment.json") or {}

    def begin(self) -> None:
        """Take the folder for this process; a second run in the same folder is refused."""
        self._lock = open(self.path / "run.lock", "a+b")  # noqa: SIM115
        for wait in (0.0, 0.1, 0.3, 0.6):  # someone who only looks holds it for a moment
            time.sleep(wait)
            if _try_lock(self._lock, shared=False):
                break
        else:
            self._lock.close()
            self._lock = None
            raise UserError(
                f"another run is writing to {self.path}",
                hint="wait for it, or name another --out_dir",
            )
        self._write_state("running")

    def end(self, state: Literal["finished", "stopped"]) -> None:
        """Say how it ended and let go of the folder."""
        self._write_state(state)
        if self._lock is not None:
            _unlock(self._lock)
            self._lock.close()
            self._lock = None

    @property
    def state(self) -> State:
        """What became of the run; `dead` when its process went away without a word."""
        said = _json(self.path / "run.json") or {}
        if said.get("state") in ("finished", "stopped"):
            return "finished" if said["state"] == "finished" else "stopped"
        if said.get("state") != "running":
            return "stopped"  # a folder that was made and never begun
        if said.get("host") != socket.gethostname():  # its lock says nothing here; its log does
            try:
                return (
                    "running"
                    if time.time() - self.log_path.stat().st_mtime < _SILENT_SECONDS
                    else "dead"
                )
            except OSError:
                return "dead"
        return "running" if self._lock is not None or self._is_locked() else "dead"

    def _is_locked(self) -> bool:
        try:
            with open(self.path / "run.lock", "r+b") as file:
                if not _try_lock(file, shared=True):
                    return True
                _unlock(file)
                return False
        except OSError:
            return False

    def _write_state(self, state: str) -> None:
        write_json_atomically(
            self.path / "run.json",
            {"state": state, "pid": os.getpid(), "host": socket.gethostname(), "time": _now()},
        )


def is_run_folder(path: Path) -> bool:
    return (path / "config.toml").is_file() and (
        (path / "log.jsonl").is_file() or (path / "run.json").is_file()
    )


def environment(
    torch_version: str | None = None,
    gpu: str | None = None,
    driver: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Where a run happened, for whoever reads it a year later. `more` is kept as given (data set, tokenizer, seeds)."""
    return {
        "onecard": __version__,
        "python": platform.python_version(),
        "torch": torch_version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "gpu": gpu,
        "driver": driver,
        "command": sys.argv,
        "time": _now(),
        "git": _git(Path.cwd()),
        **more,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit and the uncommitted changes of the folder one trains from; None outside a repository."""
    commit = _git_says(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    diff = _git_says(folder, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv") or ""
    return {"commit": commit.strip(), "dirty": bool(diff), "diff": diff[:_LARGEST_DIFF]}


def _git_says(folder: Path, *words: str) -> str | None:
    try:
        command = ["git", "-c", "core.fsmonitor=false", *words]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=10, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes], shared: bool) -> bool:
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # Windows has no shared form here
        except OSError:
            return False
        return True

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
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
