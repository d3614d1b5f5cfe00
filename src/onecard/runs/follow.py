"""A log.jsonl read as it grows: each call gives the lines that came since the last, in bounded memory.

follower = LogFollower(folder / "log.jsonl")
for offset, line in follower.read(): ...        # again and again; `restarted` where the log was cut or replaced
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onecard.runs.log import LONGEST_LINE, parse_line

_MARK_BYTES = 64  # the bytes before the place read so far; others there mean that the log was cut and grew again


class LogFollower:
    """Where one reader stands in a log."""

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0
        self.size = 0
        self.unreadable = 0
        self.restarted = False
        self._mark = b""

    def read(self, most_bytes: int = 1 << 62) -> Iterator[tuple[int, dict[str, Any]]]:
        """New whole lines with their place, no more than about `most_bytes` of them. A last line without its end waits."""
        self.restarted = False
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except OSError:
            return
        with file:
            self.size = os.fstat(file.fileno()).st_size
            if not self._is_same(file):
                self.offset, self._mark, self.unreadable, self.restarted = 0, b"", 0, True
            end = self.offset + most_bytes
            file.seek(self.offset)
            while self.offset < end and (line := file.readline(LONGEST_LINE)):
                start, tail = self.offset, line
                if not line.endswith(b"\n"):
                    if len(line) < LONGEST_LINE:
                        return  # still being written
                    tail = _rest(file)
                    self.offset = file.tell()
                else:
                    self.offset += len(line)
                self._mark = tail[-_MARK_BYTES:]
                value = parse_line(line)
                if value is not None:
                    yield start, value
                elif line.strip():
                    self.unreadable += 1

    def _is_same(self, file: Any) -> bool:
        if self.size < self.offset:
            return False
        file.seek(self.offset - len(self._mark))
        return bool(file.read(len(self._mark)) == self._mark)


def _rest(file: Any) -> bytes:
    """The last piece of a line that is too long to be held."""
    more = b""
    while piece := file.readline(LONGEST_LINE):
        more = piece
        if piece.endswith(b"\n"):
            break
    return more
