"""From part files to the final order: which documents are taken, where each goes, and the shards written from that.

The order is the sort by `key` of all documents taken: a uniform shuffle that does not depend on workers, units, parts,
memory or what was done first. Keys are cut into equal ranges (buckets) of a few million tokens, so that a shard is made
from a handful of buckets in little memory, by any worker, in any order.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onecard.data.preparation.parts import Part, Rows, open_part, open_rows
from onecard.data.read.shard_files import header
from onecard.files import replace, write_bytes, writing

BUCKET_TOKENS = 8_000_000  # 16 MB; grows with the set so that slices of parts stay readable runs
_MOST_BUCKETS = 2000
_DEDUP_ROWS = 4_000_000  # hashes held at once: about 150 MB

Bools = npt.NDArray[np.bool_]


@dataclass
class Taken:
    """A part and which of its rows are taken: those read before `below`, without the rows in `dropped`."""

    part: Part
    below: int | None = None
    dropped: npt.NDArray[np.uint32] | None = None

    def mask(self, rows: Rows, low: int) -> Bools:
        wanted = np.ones(len(rows), np.bool_) if self.below is None else rows["order"] < self.below
        if self.dropped is not None and len(self.dropped):
            first, last = np.searchsorted(self.dropped, [low, low + len(rows)])
            wanted[self.dropped[first:last] - low] = False
        return wanted


def drop_duplicates(items: Sequence[Taken]) -> list[npt.NDArray[np.uint32]]:
    """The rows of each part whose text was read before, exactly the same; a share of the hashes at a time."""
    dropped: list[list[int]] = [[] for _ in items]
    passes = np.uint64(sum(item.part.documents for item in items) // _DEDUP_ROWS + 1)
    for share in range(int(passes)):
        kept = [_share(item, place, share, passes) for place, item in enumerate(items)]
        table = np.concatenate(kept) if kept else np.zeros(0, _SEEN)
        table = table[np.argsort(table["hash0"], kind="stable")]
        alike = np.flatnonzero(table["hash0"][1:] == table["hash0"][:-1])
        near = table[np.unique(np.concatenate([alike, alike + 1]))]
        near = near[np.lexsort((near["order"], near["part"], near["hash1"], near["hash0"]))]
        again = (near["hash0"][1:] == near["hash0"][:-1]) & (
            near["hash1"][1:] == near["hash1"][:-1]
        )
        for row in near[1:][again]:
            dropped[int(row["part"])].append(int(row["row"]))
    return [np.array(sorted(rows), np.uint32) for rows in dropped]


_SEEN = np.dtype(
    [("hash0", "<u8"), ("hash1", "<u8"), ("part", "<u4"), ("order", "<u4"), ("row", "<u4")]
)


def _share(item: Taken, place: int, share: int, passes: np.uint64) -> npt.NDArray[np.void]:
    rows = item.part.rows()
    wanted = rows["hash0"] % passes == np.uint64(share)
    if item.below is not None:
        wanted &= rows["order"] < item.below
    chosen = np.flatnonzero(wanted)
    out = np.zeros(len(chosen), _SEEN)
    for name in ("hash0", "hash1", "order"):
        out[name] = rows[name][chosen]
    out["part"], out["row"] = place, chosen
    return out


def take(
    parts: list[Part], tokens: int | None, dropped: Sequence[npt.NDArray[np.uint32] | None]
) -> tuple[list[Taken], int]:
    """The shortest beginning of the documents, as read, that holds `tokens`; and how many tokens that is."""
    out, total = [], 0
    for part, gone in zip(parts, dropped, strict=True):
        taken = Taken(part, None, gone)
        rows = part.rows()
        rows = rows[taken.mask(rows, 0)]
        here = int(rows["length"].sum())
        if tokens is not None and total + here >= tokens:
            rows = rows[np.argsort(rows["order"], kind="stable")]
            last = int(np.searchsorted(np.cumsum(rows["length"]), tokens - total))
            taken.below = int(rows["order"][last]) + 1
            out.append(taken)
            return out, total + int(rows["length"][: last + 1].sum())
        total += here
        out.append(taken)
    return out, total


def lay_out(
    taken: list[Taken], work: Path, want_val: bool, promoted: list[list[int]] | None = None
) -> dict[str, Any]:
    """Count buckets and note where each begins in every part; returns the counts per split (order.json)."""
    promoted = promoted or []
    totals = _totals(taken, promoted)
    if want_val and not totals["val"]["documents"] and totals["train"]["documents"] > 1:
        # too few documents for the fraction: the one with the smallest hash is for validation
        promoted = [smallest_hash(taken)[1]]
        totals = _totals(taken, promoted)
    folder = work / "order"
    folder.mkdir(exist_ok=True)
    for split, total in totals.items():
        buckets = max(1, min(total["tokens"] // BUCKET_TOKENS, _MOST_BUCKETS))
        edges = np.array([i * 2**64 // buckets for i in range(1, buckets)], np.uint64)
        aside = folder / f"{split}.npy.tmp"
        bounds = np.lib.format.open_memmap(aside, "w+", np.int32, (buckets + 1, max(len(taken), 1)))
        counts = np.zeros(buckets, np.int64)
        for place, item in enumerate(taken):
            rows = item.part.rows()
            cuts = np.concatenate([[0], np.searchsorted(rows["key"], edges), [len(rows)]]).astype(
                np.int64
            )
            wanted = of_split(item, rows, 0, split, place, promoted)
            running = np.concatenate(
                [[0], np.cumsum(np.where(wanted, rows["length"], 0), dtype=np.int64)]
            )
            counts += np.diff(running[cuts])
            bounds[:, place] = cuts
        bounds.flush()
        del bounds
        replace(aside, folder / f"{split}.npy")
        total["buckets"] = counts.tolist()
    answer = {
        "parts": [[item.part.path.parent.name, item.part.path.name, item.below] for item in taken],
        "promoted": promoted,
        "splits": totals,
    }
    for place, item in enumerate(taken):
        if item.dropped is not None and len(item.dropped):
            np.save(folder / f"dropped-{place:06d}.npy", item.dropped)
    write_bytes(folder / "order.json", json.dumps(answer).encode())
    return answer


def _totals(taken: list[Taken], promoted: list[list[int]]) -> dict[str, dict[str, Any]]:
    totals = {split: {"tokens": 0, "documents": 0, "bytes": 0} for split in ("val", "train")}
    for place, item in enumerate(taken):
        rows = item.part.rows()
        for split, total in totals.items():
            _add_up(total, rows[of_split(item, rows, 0, split, place, promoted)])
    return totals


def _add_up(total: dict[str, Any], rows: Rows) -> Rows:
    total["tokens"] += int(rows["length"].sum(dtype=np.int64))
    total["documents"] += len(rows)
    total["bytes"] += int(rows["bytes"].sum(dtype=np.int64))
    return rows


def by_source(
    taken: list[Taken], promoted: list[list[int]], count: int
) -> tuple[list[dict[str, dict[str, int]]], bytes]:
    """What each source gives to each split; and whose the validation tokens are: (tokens, source) run by run, uint32."""
    totals = [
        {split: {"tokens": 0, "documents": 0, "bytes": 0} for split in ("train", "val")}
        for _ in range(count)
    ]
    keys, lengths, owners = [], [], []
    for place, item in enumerate(taken):
        rows = item.part.rows()
        for split, total in totals[item.part.source].items():
            mine = _add_up(total, rows[of_split(item, rows, 0, split, place, promoted)])
            if split == "val":
                keys.append(mine["key"])
                lengths.append(mine["length"].astype(np.int64))
                owners.append(np.full(len(mine), item.part.source, np.int64))
    order = np.argsort(np.concatenate(keys), kind="stable")  # as `Order._bucket` puts them
    length, owner = np.concatenate(lengths)[order], np.concatenate(owners)[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1)) if len(owner) else np.zeros(0, np.int64)
    runs = np.add.reduceat(length, starts) if len(starts) else length
    return totals, np.stack([runs, owner[starts]], axis=1).astype("<u4").tobytes()


def smallest_hash(taken: list[Taken]) -> tuple[int, list[int]]:
    """How many documents there are, and (place, row) of the one with the smallest hash."""
    smallest, documents = [], 0
    for place, item in enumerate(taken):
        rows = item.part.rows()
        kept = np.flatnonzero(item.mask(rows, 0))
        documents += len(kept)
        if len(kept):
            row = kept[np.argmin(rows["hash0"][kept])]
            smallest.append((int(rows["hash0"][row]), place, int(row)))
    return documents, list(min(smallest)[1:]) if smallest else []


def of_split(
    item: Taken, rows: Rows, low: int, split: str, place: int, promoted: list[list[int]]
) -> Bools:
    """Which rows belong to a split; `promoted` are those (place, row) that count as validation whatever their hash."""
    val: Bools = rows["val"] != 0
    for where, row in promoted:
        if where == place and low <= row < low + len(rows):
            val = val.copy()
            val[row - low] = True
    return item.mask(rows, low) & (val if split == "val" else ~val)


class Order:
    """The laid-out order, as a worker reads it to make shards."""

    def __init__(self, work: Path):
        folder = work / "order"
        saved = json.loads((folder / "order.json").read_text())
        self.splits: dict[str, dict[str, Any]] = saved["splits"]
        self.promoted: list[list[int]] = saved["promoted"]
        self.taken = []
        for place, (kind, name, below) in enumerate(saved["parts"]):
            gone = folder / f"dropped-{place:06d}.npy"
            dropped = np.load(gone) if gone.exists() else None
            path = work / kind / name
            part = open_part(path) if kind == "parts" else open_rows(path, work / "parts")
            self.taken.append(Taken(part, below, dropped))
        self.bounds = {
            split: np.load(folder / f"{split}.npy", mmap_mode="r") for split in self.splits
        }

    def stream(self, split: str, start: int, stop: int) -> Iterator[npt.NDArray[np.uint16]]:
        """Tokens start..stop of the split, in runs."""
        at = 0
        for bucket, count in enumerate(self.splits[split]["buckets"]):
            if at >= stop:
                return
            if at + count > start and count:
                tokens = self._bucket(split, bucket)
                assert len(tokens) == count, (split, bucket)
                yield tokens[max(0, start - at) : stop - at]
            at += count

    def _bucket(self, split: str, bucket: int) -> npt.NDArray[np.uint16]:
        lows, highs = self.bounds[split][bucket], self.bounds[split][bucket + 1]
        keys, documents = [], []
        for place, item in enumerate(self.taken):
            low, high = int(lows[place]), int(highs[place])
            if low == high:
                continue
            rows = item.part.rows(low, high)
            rows = rows[of_split(item, rows, low, split, place, self.promoted)]
            keys.append(rows["key"])
            documents += item.part.documents_of(rows)
        order = np.argsort(np.concatenate(keys), kind="stable")
        return np.concatenate([documents[index] for index in order.tolist()])


def shard_jobs(order: dict[str, Any], name: str, shard_tokens: int) -> list[dict[str, Any]]:
    """Every shard of an order: its file, split and tokens. Validation begins at number 0, training after it, as in llm.c."""
    jobs, number = [], 0
    for split in ("val", "train"):
        total = order["splits"][split]["tokens"]
        number = max(number, 1) if split == "train" else 0
        for start in range(0, total, shard_tokens):
            file = f"{name}_{split}_{number:06d}.bin"
            stop = min(start + shard_tokens, total)
            jobs.append({"split": split, "file": file, "start": start, "stop": stop})
            number += 1
    return jobs


def write_shard(order: Order, split: str, start: int, stop: int, path: Path) -> dict[str, Any]:
    """One shard, whole or not at all, and its entry for the manifest beside it."""
    digest = hashlib.sha256(header(stop - start))
    with writing(path) as file:
        file.write(header(stop - start))
        for tokens in order.stream(split, start, stop):
            raw = tokens.astype("<u2", copy=False).tobytes()
            digest.update(raw)
            file.write(raw)
    entry = {"file": path.name, "tokens": stop - start, "sha256": digest.hexdigest()}
    write_bytes(path.with_suffix(".json"), json.dumps(entry).encode())
    return entry
