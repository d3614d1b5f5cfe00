"""Any run a person can name: one of our folders, a log of another trainer, standard input.

read_runs("out")                       our run folder
read_runs("train.log")                 a log of another trainer (READERS in foreign/text_log.py); CSV; trainer_state.json
read_runs("train.log#2")               the second run in that file
read_runs("-")                         what is piped in
"""

import re
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from onecard.config.read import read_values
from onecard.errors import UserError
from onecard.runs.folder import read_folder
from onecard.runs.foreign.csv_history import read_csv
from onecard.runs.foreign.text_log import READERS, read_text, text_lines
from onecard.runs.foreign.trainer_state import read_trainer
from onecard.runs.record import is_run_folder
from onecard.runs.run import Known, Run

Progress = Callable[[int], None]  # called with the bytes that were read

_KNOWN = f"logs of {', '.join(READERS)}; CSV histories, trainer_state.json, onecard's folders"


def read_runs(
    source: str,
    config: str | Path | None = None,
    flags: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Run]:
    """The runs of a source, with what a config (a preset or a file; else one beside the log) and the flags say of them."""
    try:
        path, number = _split(source)
        runs = _read(path, progress)
    except FileNotFoundError:
        raise UserError(
            f"no run at {source!r}", hint="name a run folder or a log; `onecard runs` lists folders"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read {source}: {getattr(error, 'strerror', None) or error}",
            hint="check the path and its permissions",
        ) from None
    if number is not None:
        if not 1 <= number <= len(runs):
            raise UserError(
                f"{path} holds {len(runs)} runs, not {number}", hint=f"name one as {path}#1"
            )
        runs = [runs[number - 1]]
    beside = config or _beside(Path(path))
    values = read_values(beside) if beside is not None else {}
    given = {key: Known(value, "config") for key, value in values.items()}
    given |= {key: Known(value, "flag") for key, value in (flags or {}).items()}
    return [replace(run, config={**run.config, **given}) for run in runs]


def _split(source: str) -> tuple[str, int | None]:
    """ "train.log#2" is the second run of train.log, unless a file has that very name."""
    match = re.fullmatch(r"(.+)#(\d{1,6})", source)
    if match is None or Path(source).exists():
        return source, None
    return match[1], int(match[2])


def _read(source: str, progress: Progress | None) -> list[Run]:
    if source == "-":
        return _whole(read_text(sys.stdin.buffer, "stdin", progress), "standard input")
    path = Path(source)
    if path.is_dir():
        return _folder(path, progress)
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # /dev/zero never ends
        raise UserError(f"{source} is a device", hint="name a log, or - for what is piped in")
    with path.open("rb") as file:
        return _whole(_file(file, path, progress), source)


def _folder(path: Path, progress: Progress | None) -> list[Run]:
    if is_run_folder(path):
        run = read_folder(path)
        return _whole([run] if run is not None else [], str(path))
    # others' usual names
    for name in (
        "main.log",
        "trainer_log.jsonl",
        "trainer_state.json",
        "metrics.csv",
        "train.log",
        "log.txt",
    ):
        if (path / name).is_file():
            runs = _read(str(path / name), progress)
            stem = Path(name).stem  # says nothing: the folder's name does
            return [replace(run, name=run.name.replace(stem, path.name, 1)) for run in runs]
    raise UserError(
        f"{path} is not a run folder",
        hint="name the log file inside it, or a folder that onecard train made",
    )


def _file(file: BinaryIO, path: Path, progress: Progress | None) -> list[Run]:
    if path.name == "log.jsonl" and is_run_folder(path.parent):
        run = read_folder(path.parent)
        return [run] if run is not None else []
    if path.suffix.lower() == ".json":
        return read_trainer(
            file, path.stem if path.stem != "trainer_state" else path.parent.name or path.stem
        )
    if path.suffix.lower() in (".csv", ".tsv"):
        return read_csv(text_lines(file, progress), path.stem)
    return read_text(file, path.stem or path.name, progress)


def _whole(runs: list[Run], source: str) -> list[Run]:
    if not runs:
        raise UserError(f"no step of any training run in {source}", hint=f"it reads {_KNOWN}")
    return [replace(run, source=source) for run in runs]


def _beside(path: Path) -> Path | None:
    """A config with the log's own name: run-a.log and run-a.py, or run-a.toml."""
    for suffix in (".py", ".toml"):
        beside = path.with_suffix(suffix) if path.suffix else None
        if beside is not None and beside != path and beside.is_file():
            return beside
    return None
