"""Conversations as a data set that the trainer reads: whole ones packed into windows, some held out, base text mixed in.

The folder holds train.bin and val.bin (a window of block_size tokens after the other), base.bin (windows of the base's own
validation text, to see what is forgotten) and a manifest. The marks that the loss and the attention go by are in the
tokens themselves (train/run/row_marks.py), so nothing else is needed to resume.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from onecard.data import Dataset, Split
from onecard.data.read.manifest import MANIFEST, TOKENIZER_FILE, Manifest, write_manifest
from onecard.data.shares import Draw, allot, draw
from onecard.data.tokenizers.special import END, SpecialTokenizer
from onecard.files import sync_folder, write_bytes
from onecard.train.io.window_order import WindowOrder
from onecard.train.run.validation import BASE
from onecard.tune.gather import Gathered, Item
from onecard.tune.packing import pack
from onecard.version import __version__

_HELD_OUT = 0.05
_MOST_HELD_OUT = 500
_BASE_WINDOWS, _FEWEST_BASE_WINDOWS = 256, 32

Window = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Prepared:
    """What the run will read."""

    train: int  # conversations
    held_out: int
    held_out_again: bool  # too few distinct ones: the held-out are trained on too
    tokens: int  # of the conversations to train on, without padding
    learned: int
    windows: int  # to train on, those of base text among them
    base_windows: int
    val_windows: int
    base_val_windows: int
    shares: tuple[float, ...]  # of the files, of the tokens to train on
    epochs: tuple[float, ...]  # of each file within one pass

    @property
    def learned_share(self) -> float:
        return self.learned / self.tokens


@dataclass(frozen=True)
class Mixing:
    """How files and base text are mixed."""

    shares: tuple[float, ...] | None = None  # of the files; None: all there is
    repeat: bool = False
    keep_base: float = 0.0  # of the windows
    seed: int = 1337


def prepare_windows(
    gathered: Gathered,
    names: Sequence[str],
    tokenizer: SpecialTokenizer,
    block_size: int,
    mixing: Mixing,
    base: Dataset | None,
) -> tuple[Prepared, dict[str, list[Window]]]:
    """The windows of every split, and the notes about them."""
    train, held_out = _split(gathered.items, mixing.seed)
    drawn = _drawn(train, names, mixing)
    by_file = [_of_file(train, file) for file in range(len(names))]
    chosen = [by_file[source][item] for source, item in drawn.picks]
    end = tokenizer.special[END]
    windows = _packed(chosen, block_size, end)
    count = round(len(windows) * mixing.keep_base / (1 - mixing.keep_base)) if base else 0
    kept = _base_windows(base.splits["train"], block_size, count, mixing.seed, end) if base else []
    val = _packed(held_out or train, block_size, end)
    base_val: list[Window] = []
    if base is not None:
        split = base.splits["val"]
        # no more than there is to train on: a short run would spend most of its time here
        enough = min(_BASE_WINDOWS, max(_FEWEST_BASE_WINDOWS, len(windows)))
        most = min(enough, (split.tokens - 1) // block_size)
        base_val = [split.read(n * block_size, block_size) for n in range(most)]
    prepared = Prepared(
        train=len(chosen),
        held_out=len(held_out or train),
        held_out_again=not held_out,
        tokens=sum(len(item.ids) for item in chosen),
        learned=sum(item.learned for item in chosen),
        windows=len(windows) + len(kept),
        base_windows=len(kept),
        val_windows=len(val),
        base_val_windows=len(base_val),
        shares=drawn.shares,
        epochs=drawn.epochs,
    )
    splits = {"train": windows + kept, "val": val}
    return prepared, splits | ({BASE: base_val} if base_val else {})


def _of_file(items: list[Item], file: int) -> list[Item]:
    return [item for item in items if item.file == file]


def _split(items: list[Item], seed: int) -> tuple[list[Item], list[Item]]:
    """(to train on, held out): all copies of a conversation on one side; none held out where there is only one."""

    def order(digest: bytes) -> bytes:
        return hashlib.sha256(b"%d " % seed + digest).digest()

    distinct = sorted({item.digest for item in items}, key=order)
    if len(distinct) < 2:
        return items, []
    count = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(distinct))))
    out = set(distinct[:count])
    return [i for i in items if i.digest not in out], [i for i in items if i.digest in out]


def _drawn(train: list[Item], names: Sequence[str], mixing: Mixing) -> Draw:
    sizes = [[len(item.ids) for item in _of_file(train, file)] for file in range(len(names))]
    available = [sum(lengths) for lengths in sizes]
    if mixing.shares is None:
        return draw(sizes, available, mixing.seed)
    whole = sum(available) if mixing.repeat else None
    too_small = "repeat" if mixing.repeat else None
    quotas = allot(list(names), mixing.shares, available, whole, too_small)  # type: ignore[arg-type]
    return draw(sizes, quotas, mixing.seed)


def _packed(items: Sequence[Item], block_size: int, end: int) -> list[Window]:
    """Windows filled up with <|end|>, after which nothing counts."""
    windows = []
    for places in pack([len(item.ids) for item in items], block_size):
        window = np.full(block_size, end, np.uint16)
        at = 0
        for place in places:
            ids = items[place].ids
            window[at : at + len(ids)] = ids
            at += len(ids)
        windows.append(window)
    return windows


def _base_windows(split: Split, block_size: int, count: int, seed: int, end: int) -> list[Window]:
    """Windows of the base's training text, the last token <|end|>: what would follow is not in the row."""
    order = WindowOrder((split.tokens - 1) // block_size, seed)
    places = order.windows_at(range(count)).tolist()
    stop = np.array([end], np.uint16)
    return [
        np.concatenate((split.read(n * block_size, block_size - 1), stop)).astype(np.uint16)
        for n in places
    ]


def write_windows(
    folder: Path,
    splits: dict[str, list[Window]],
    tokenizer: SpecialTokenizer,
    gathered: Gathered,
    sources: Sequence[Path],
    filters: dict[str, object],
    seed: int,
) -> None:
    """The data set's folder; the manifest comes last, so that a folder without one is no data set."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    entries = {}
    for name, windows in splits.items():
        assert tokenizer.eot is not None
        # the loader reads one token more than a window, as the last position's target
        content = np.concatenate([*windows, np.array([tokenizer.eot], np.uint16)]).astype("<u2")
        write_bytes(folder / f"{name}.bin", content.tobytes())
        shard = {
            "file": f"{name}.bin",
            "tokens": len(content),
            "sha256": hashlib.sha256(content.tobytes()).hexdigest(),
        }
        entries[name] = {"tokens": len(content), "shards": [shard]}
    if (content_bytes := tokenizer.file_content()) is not None:
        write_bytes(folder / TOKENIZER_FILE, content_bytes)
    manifest = Manifest(
        name=folder.name,
        sources=[{"uri": path.name, "revision": None, "licence": None} for path in sources],
        tokenizer=tokenizer.describe(),
        splits=entries,
        bytes_per_token=None,
        seed=seed,
        val_fraction=_HELD_OUT,
        filters=filters,
        skipped={f"{s.file}: {s.reason}": s.count for s in gathered.skipped},
        order="packed conversations",
        format="nanogpt",
        version=__version__,
    )
    sync_folder(folder)
    write_manifest(folder / MANIFEST, manifest)
