"""The sources of a mix brought to their shares: how far each is read, what is repeated, what each gives in the end.

A share is one of the tokens to train on. Each source is taken from its beginning up to the document that brings it
nearest to its quota; its validation documents are those of the same beginning. A source that is too small is
gone through again: the same documents at other places of the shuffle, never those for validation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onecard.data.preparation.crew import Crew
from onecard.data.preparation.encode import Encoding, Event
from onecard.data.preparation.hashing import mix
from onecard.data.preparation.near_copies import near_copies
from onecard.data.preparation.order import Taken, drop_duplicates, of_split
from onecard.data.preparation.parts import Part, Rows, open_rows, write_rows
from onecard.data.preparation.request import Plan
from onecard.data.shares import TooSmall, allot

_ROWS_AT_ONCE = 500_000  # in one list of repeated documents: 24 MB
Dropped = list[np.ndarray[Any, np.dtype[np.uint32]]]


@dataclass(frozen=True)
class Mixed:
    taken: list[Taken]
    promoted: list[
        list[int]
    ]  # (place in `taken`, row): documents moved to validation, where a source had none
    epochs: list[float]  # how often each source is gone through
    duplicates: int
    near: int = 0  # near copies that were left out


def mix_sources(
    plan: Plan, work: Path, crew: Crew, text_bytes: int, report: Callable[[Event], None]
) -> Mixed:
    """Encode as much of each source as its share needs, then decide what is taken and what is repeated."""
    parts, copies_found, dropped, have = _encoded(plan, work, crew, text_bytes, report)
    total, policy = plan.options.tokens, too_small(plan)
    train = None if total is None else round(total * (1 - plan.val_fraction))
    quotas = allot(plan.names, plan.shares, have, train, policy)
    taken: list[Taken] = []
    promoted: list[list[int]] = []
    copies: list[Taken] = []
    epochs = []
    at = 0
    for number, mine in enumerate(parts):
        gone = dropped[at : at + len(mine)]
        at += len(mine)
        here = _beginning(mine, gone, quotas[number])
        chosen = _validation(here, len(taken)) if plan.fraction(number) > 0 else None
        if chosen is not None:
            promoted.append(chosen)
        lists = [_train_rows(item, place, chosen, len(taken)) for place, item in enumerate(here)]
        once = sum(int(rows["length"].sum(dtype=np.int64)) for rows in lists)
        given = once
        if quotas[number] > have[number]:
            made, given = _repeated(here, lists, quotas[number], once, work)
            copies += made
        epochs.append(given / max(have[number], 1))
        taken += here
    exact = _counted(taken, copies_found)
    near = _counted(taken, dropped) - exact if plan.options.dedup == "near" else 0
    return Mixed([*taken, *copies], promoted, epochs, exact, near)


def too_small(plan: Plan) -> TooSmall:
    return "repeat" if plan.options.repeat else "largest" if plan.options.largest else None


def _encoded(
    plan: Plan, work: Path, crew: Crew, text_bytes: int, report: Callable[[Event], None]
) -> tuple[list[list[Part]], Dropped, Dropped, list[int]]:
    """The parts of each source, which of their rows are exact copies, which are left out, and the tokens to train on."""
    total = plan.options.tokens
    goals = [
        None if total is None else int(share * total * (1 - plan.val_fraction)) + 1
        for share in plan.shares
    ]
    encodings: list[Encoding] = []
    parts: list[list[Part]] = []
    try:
        for number, goal in enumerate(goals):
            expected = int(text_bytes * plan.shares[number])
            encodings.append(Encoding(plan, work, expected, report, number))
            parts.append(encodings[-1].run(crew, goal))
        while True:
            exact, used = copies_of(plan, [part for mine in parts for part in mine])
            have = _train_tokens(parts, used)
            short = [
                number
                for number, goal in enumerate(goals)
                if goal is not None and have[number] < goal and not encodings[number].exhausted
            ]
            if not short:
                return parts, exact, used, have
            for number in short:  # duplicates took their share
                goal = goals[number] or 0
                more = encodings[number].reach_tokens + int(1.05 * (goal - have[number])) + 1
                parts[number] = encodings[number].run(crew, more)
    finally:
        for item in encodings:
            item.feed.stop()


_NONE = np.zeros(0, np.uint32)


def copies_of(plan: Plan, parts: list[Part]) -> tuple[Dropped, Dropped]:
    """The rows of each part that are exact copies of an earlier document, and those that are left out."""
    exact = drop_duplicates(parts)
    if not plan.options.dedup:
        return exact, [_NONE] * len(parts)
    if plan.options.dedup != "near":
        return exact, exact
    near = near_copies(parts)
    both = [np.union1d(*pair).astype(np.uint32) for pair in zip(exact, near, strict=True)]
    return exact, both


def _train_tokens(parts: list[list[Part]], dropped: Dropped) -> list[int]:
    have, place = [], 0
    for mine in parts:
        total = 0
        for part in mine:
            rows = part.rows()
            kept = of_split(Taken(part, None, dropped[place]), rows, 0, "train", 0, [])
            total += int(rows["length"][kept].sum(dtype=np.int64))
            place += 1
        have.append(total)
    return have


def _beginning(parts: list[Part], dropped: Dropped, quota: int) -> list[Taken]:
    """The documents as read up to the one that brings the tokens to train on nearest to the quota."""
    out: list[Taken] = []
    total = 0
    for part, gone in zip(parts, dropped, strict=True):
        item = Taken(part, None, gone)
        rows = part.rows()
        rows = rows[of_split(item, rows, 0, "train", 0, [])]
        here = int(rows["length"].sum(dtype=np.int64))
        if total + here >= quota:
            item.below = _cut_at(rows, quota - total, first=total == 0)
            return [*out, item]
        total += here
        out.append(item)
    return out


def _cut_at(rows: Rows, wanted: int, first: bool) -> int:
    """The place in the order of reading where the tokens before it are nearest to `wanted`."""
    rows = rows[np.argsort(rows["order"], kind="stable")]
    ends = np.cumsum(rows["length"], dtype=np.int64)
    last = int(np.searchsorted(ends, wanted))
    before = int(ends[last - 1]) if last else 0
    if wanted - before < int(ends[last]) - wanted and not (first and last == 0):
        return int(rows["order"][last])
    return int(rows["order"][last]) + 1


def _validation(here: list[Taken], first: int) -> list[int] | None:
    """The document with the smallest hash, where none of a source's fell to validation and there are several."""
    best: tuple[int, int, int] | None = None
    documents = 0
    for place, item in enumerate(here):
        rows = item.part.rows()
        if of_split(item, rows, 0, "val", 0, []).any():
            return None
        kept = np.flatnonzero(item.mask(rows, 0))
        documents += len(kept)
        for row in kept:
            found = (int(rows["hash0"][row]), place, int(row))
            best = found if best is None or found < best else best
    return None if best is None or documents < 2 else [first + best[1], best[2]]


def _train_rows(item: Taken, place: int, chosen: list[int] | None, first: int) -> Rows:
    rows = item.part.rows()
    promoted = [] if chosen is None else [chosen]
    return rows[of_split(item, rows, 0, "train", first + place, promoted)]


def _repeated(
    here: list[Taken], lists: list[Rows], quota: int, once: int, work: Path
) -> tuple[list[Taken], int]:
    """Lists of the documents that are used once more, until the quota is met; and the tokens in all."""
    folder = work / "copies"
    folder.mkdir(exist_ok=True)
    out: list[Taken] = []
    given, copy = once, 0
    pending: list[list[Rows]] = [[] for _ in here]

    def write(place: int) -> None:
        if pending[place]:
            part = here[place].part
            path = folder / f"{part.path.stem}-{copy:06d}.rows"
            write_rows(path, np.concatenate(pending[place]), part)
            out.append(Taken(open_rows(path, work / "parts")))
            pending[place] = []

    while once and given < quota:
        copy += 1
        for place, rows in enumerate(lists):
            tokens = int(rows["length"].sum(dtype=np.int64))
            if given + tokens >= quota and len(rows):
                below = _cut_at(rows, quota - given, first=False)
                rows = rows[rows["order"] < below]
                tokens = int(rows["length"].sum(dtype=np.int64))
            again = rows.copy()
            again["key"] = mix(rows["key"] ^ mix(np.array([copy], np.uint64)))
            pending[place].append(again)
            given += tokens
            if sum(map(len, pending[place])) >= _ROWS_AT_ONCE:
                write(place)
            if given >= quota or tokens < int(lists[place]["length"].sum(dtype=np.int64)):
                given_all = given
                for rest in range(len(here)):
                    write(rest)
                return out, given_all
    for place in range(len(here)):
        write(place)
    return out, given


def _counted(taken: list[Taken], dropped: Dropped) -> int:
    """Exact copies among the documents taken, whether or not they were left out."""
    return sum(copies_among(item, gone) for item, gone in zip(taken, dropped, strict=False))


def copies_among(item: Taken, found: np.ndarray[Any, np.dtype[np.uint32]]) -> int:
    if not len(found) or item.below is None:
        return len(found)
    return int((item.part.rows()["order"][found] < item.below).sum())
