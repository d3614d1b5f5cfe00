"""Whose each validation token is, where a data set was made of several sources.

>>> Sources(["web", "notes"], {"val": ([5, 3], [0, 1])}).of("val", 4, 2).tolist()
[0, 1]
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onecard.data.read.manifest import Manifest
from onecard.errors import UserError
from onecard.untrusted import readable


class Sources:
    """The sources' names, and runs of tokens with the source that each belongs to."""

    def __init__(self, names: list[str], runs: Mapping[str, tuple[Sequence[int], Sequence[int]]]):
        self.names = names
        self._ends = {
            split: np.cumsum(np.asarray(lengths, np.int64)) for split, (lengths, _) in runs.items()
        }
        self._owners = {split: np.asarray(owners, np.int64) for split, (_, owners) in runs.items()}

    def of(self, split: str, start: int, count: int) -> npt.NDArray[np.int64]:
        """The number of the source of each of `count` tokens from `start` on."""
        places = np.arange(start, start + count)
        return self._owners[split][np.searchsorted(self._ends[split], places, side="right")]


def sources_of(folder: Path, manifest: Manifest | None) -> Sources | None:
    """From the file that the manifest names, checked against its digest and the split; None where there is none."""
    if manifest is None or not manifest.validation or "val" not in manifest.splits:
        return None
    path = folder / manifest.validation["file"]
    hint = "prepare the data again"
    with readable(path, hint):
        content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest.validation["sha256"]:
        raise UserError(f"{path} is damaged: its sha256 is not the manifest's", hint=hint)
    names = [str(source.get("name") or source["uri"]) for source in manifest.sources]
    pairs = np.frombuffer(content[: len(content) // 8 * 8], "<u4").reshape(-1, 2)
    whole = int(pairs[:, 0].sum(dtype=np.int64)) == manifest.splits["val"]["tokens"]
    if not whole or not len(pairs) or int(pairs[:, 1].max()) >= len(names):
        raise UserError(f"{path} does not fit the validation split", hint=hint)
    return Sources(names, {"val": (pairs[:, 0].tolist(), pairs[:, 1].tolist())})
