"""A run's log.jsonl: one flat JSON object a line, appended as the run goes, readable while it runs and after a crash.

    log = LogWriter(folder / "log.jsonl")
    log.write(kind="step", step=10, loss=5.1, lr=6e-4)
    for line in read_log(folder / "log.jsonl"): ...

Kinds and fields are in docs/formats.md. A checkpoint keeps `log.offset`; resuming with `truncate_at` of that figure
takes away what the dead run logged after it, so that each step is there once.
"""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_decode = json.JSONDecoder().decode
LONGEST_LINE = 1 << 20  # bytes; a longer one is damage, and is skipped without being held in memory
# lines that a resume from an earlier step makes void
_STEPPED = "step", "eval", "checkpoint", "sample"


def _to_stderr(text: str) -> None:
    print(f"onecard: {text}", file=sys.stderr)


class LogWriter:
    """Appends lines; a disk that is full costs lines, never the run."""

    def __init__(
        self, path: Path, truncate_at: int | None = None, warn: Callable[[str], None] = _to_stderr
    ):
        self.path = path
        self.lost = 0  # lines that could not be written
        self._warn = warn
        self._file = open(path, "r+b" if path.exists() else "w+b", buffering=0)  # noqa: SIM115
        size = self._file.seek(0, os.SEEK_END)
        if truncate_at is not None and truncate_at < size:
            self._file.truncate(truncate_at)
            size = self._file.seek(truncate_at)
        self.offset = size  # bytes that are whole lines in the system's hands
        self._fresh = size == 0 or self._last_byte(size) == b"\n"

    def write(self, **fields: Any) -> None:
        """One line. NaN and infinity become null with their name beside: "loss": null, "loss_text": "nan"."""
        line = json.dumps(_valid(fields), allow_nan=False, default=str).encode() + b"\n"
        if not self._fresh:
            line = b"\n" + line  # after a torn line
        try:
            self._file.seek(self.offset)  # over what an earlier failure tore
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written")
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                self._warn(
                    f"cannot write {self.path.name} ({error.strerror or error}); the run continues without its lines"
                )
            self._drop_torn()
            return
        self._fresh = True
        self.offset += len(line)

    def sync(self) -> None:
        """Put the lines on the disk itself; before a checkpoint that keeps `offset`."""
        # a file system without it; the next write says whether the disk still takes
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            with contextlib.suppress(OSError):  # a network disk may report only now what it lost
                self._file.close()

    def _drop_torn(self) -> None:
        try:
            self._file.truncate(self.offset)
        except OSError:
            self._fresh = False

    def _last_byte(self, size: int) -> bytes:
        self._file.seek(size - 1)
        return self._file.read(1)


def _valid(fields: dict[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            line[key] = None
            line[f"{key}_text"] = str(value)  # "nan", "inf", "-inf"
        else:
            line[key] = value
    return line


class LogLines(Iterator[dict[str, Any]]):
    """The lines of a log, in order, as they stand at the end: what a resume did again is given once, the last time.

    `unreadable` counts lines that are not JSON objects (a torn last line among them) and `superseded` the lines that a
    resume made void; both are whole once the lines are read to the end.
    """

    def __init__(self, path: Path):
        self.unreadable = 0
        self.superseded = 0
        self._lines = self._read(path)

    def __next__(self) -> dict[str, Any]:
        return next(self._lines)

    def _read(self, path: Path) -> Iterator[dict[str, Any]]:
        with open(path, "rb") as file:
            rewinds = _rewinds(file)
            file.seek(0)
            for at, line in _objects(file):
                if line is None:
                    self.unreadable += 1
                    continue
                while rewinds and rewinds[-1][0] <= at:
                    rewinds.pop()
                if rewinds and _void(line, rewinds[-1][1]):
                    self.superseded += 1
                    continue
                yield _with_numbers(line)


def read_log(path: Path) -> LogLines:
    """The log's lines as dicts, streamed; a NaN that was written as text is a float NaN again."""
    return LogLines(path)


def _objects(file: BinaryIO) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Each line's byte offset and its object; None for a line that is not one."""
    at = 0
    while line := file.readline(LONGEST_LINE):
        start, at = at, at + len(line)
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            while more := file.readline(LONGEST_LINE):
                at += len(more)
                if more.endswith(b"\n"):
                    break
            yield start, None
        elif line.strip():
            yield start, _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    value = None
    try:
        value = _decode(line.decode())
    except (ValueError, RecursionError):
        # the mark that some editors begin a file with, or their encoding
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
    return value if isinstance(value, dict) else None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """One line's object, a NaN that was written as text a float again; None for what is no object."""
    value = _object(line)
    return value if value is None or b'_text"' not in line else _with_numbers(value)


def _rewinds(file: BinaryIO) -> list[tuple[int, dict[str, int]]]:
    """Where the step count goes back, last place first: (byte offset, {kind of line: lowest step gone back to after}).

    A step line that goes back voids every kind from that step on; an evaluation done again voids only evaluations.
    """
    rewinds: list[tuple[int, str, int]] = []
    last: dict[str, int] = {}
    for at, line in _objects(file):
        kind, step = (line.get("kind"), line.get("step")) if line else (None, None)
        if kind not in _STEPPED or not isinstance(step, int):
            continue
        if step <= last.get(kind, -1):
            rewinds.append((at, kind, step))
            if kind == "step":
                last = {k: s for k, s in last.items() if s < step}
        last[kind] = step
    answer: list[tuple[int, dict[str, int]]] = []
    lowest: dict[str, int] = {}
    for at, kind, step in reversed(rewinds):
        kinds = _STEPPED if kind == "step" else (kind,)
        lowest = {**lowest, **{k: min(step, lowest.get(k, step)) for k in kinds}}
        answer.append((at, lowest))
    return answer


def _void(line: dict[str, Any], lowest: dict[str, int]) -> bool:
    kind, step = line.get("kind"), line.get("step")
    if not isinstance(kind, str) or not isinstance(step, int):
        return False
    return kind in lowest and step >= lowest[kind]


def _with_numbers(line: dict[str, Any]) -> dict[str, Any]:
    for key in [key for key in line if key.endswith("_text")]:
        plain = key.removesuffix("_text")
        if line.get(plain, 0) is None and line[key] in ("nan", "inf", "-inf"):
            line[plain] = float(line[key])
            del line[key]
    return line
