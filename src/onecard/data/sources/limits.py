"""How far a file may unpack: a few bytes of a hostile file can stand for terabytes.

>>> guard = Expansion("x.gz", packed_bytes=1000)
>>> guard.add(2**28)
>>> guard.add(1)
Traceback (most recent call last):
    ...
onecard.errors.UserError: x.gz unpacks to more than 1,000 times its size (leave it out: it is damaged or made to exhaust the machine)
"""

from pathlib import Path

from onecard.errors import UserError

MOST_LINE_BYTES = 32 * 2**20  # of jsonl; parsing one takes up to some 25 times its size in memory
MOST_PAGE_BYTES = 256 * 2**20  # of parquet, unpacked; writers aim at 1 MiB
MOST_TABLE_BYTES = 64 * 2**20  # of parquet rows decoded at once
MOST_XZ_MEMORY = 256 * 2**20  # `xz -9` needs 65 MiB
_ALWAYS_ALLOWED = 2**28
_MOST_RATIO = (
    1000  # text packs 3 to 20 times; zlib reaches 1,032 at most, zstd and parquet far more
)


class Expansion:
    """Counts what comes out of a packed file, and stops it before it fills the disk."""

    def __init__(self, path: str | Path, packed_bytes: int):
        self._path = path
        self._allowed = max(_ALWAYS_ALLOWED, _MOST_RATIO * packed_bytes)

    def add(self, more_bytes: int) -> None:
        self._allowed -= more_bytes
        if self._allowed < 0:
            raise UserError(
                f"{self._path} unpacks to more than {_MOST_RATIO:,} times its size",
                hint="leave it out: it is damaged or made to exhaust the machine",
            )
