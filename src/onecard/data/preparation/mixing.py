"""The sources of a mix brought to their shares: how far each is read, what is repeated, what each gives in the end.

A share is one of the tokens to train on. Each source is taken from its beginning up to the document that brings it
nearest to its quota; its validation documents are those of the same beginning. A source that is too small is
used again: the same documents at other places of the shuffle, never those for validation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onecard.data.preparation.crew import Crew
from onecard.data.preparation.encode import Encoding, Event
from onecard.data.preparation.hashing import mix
from onecard.data.preparation.near_copies import near_copies
from onecard.data.preparation.order import Taken, drop_duplicates, of_split, smallest_hash
from onecard.data.preparation.parts import Part, Rows, open_rows, write_rows
from onecard.data.preparation.request import Plan
from onecard.data.shares import allot

_ROWS_AT_ONCE = 500_000  # in one list of repeated documents: 24 MB
Dropped = list[np.ndarray[Any, np.dtype[np.uint32]]]


@dataclass(frozen=True)
class Mixed:
    taken: list[Taken]
    # (place in `taken`, row): documents moved to validation, where a source had none
    promoted: list[list[int]]
    epochs: list[float]  # how often each source is used
    duplicates: int
    near: int = 0  # near copies that were left out


def mix_sources(
    plan: Plan, work: Path, crew: Crew, text_bytes: int, report: Callable[[Event], None]
) -> Mixed:
    """Encode as much of each source as its share needs, then decide what is taken and what is repeated."""
    parts, limits, chosen = _encoded(plan, work, crew, text_bytes, report)
    total = plan.options.tokens
    train = None if total is None else _to_train_on(plan, total)
    quotas = allot(plan.names, plan.shares, [c.have for c in chosen], train, plan.options.too_small)
    if quotas != limits:
        chosen = _chosen(plan, parts, quotas)
    taken: list[Taken] = []
    promoted: list[list[int]] = []
    copies: list[Taken] = []
    epochs = []
    for number, source in enumerate(chosen):
        here = source.taken
        moved = _validation(here, len(taken)) if plan.fraction(number) > 0 else None
        if moved is not None:
            promoted.append(moved)
        lists = [_train_rows(item, place, moved, len(taken)) for place, item in enumerate(here)]
        once = sum(map(_tokens, lists))
        given = once
        if quotas[number] > source.have:
            made, given = _repeated(here, lists, quotas[number], once, work)
            copies += made
        epochs.append(given / max(once, 1))
        taken += here
    exact = sum(source.exact for source in chosen)
    near = sum(source.near for source in chosen)
    return Mixed([*taken, *copies], promoted, epochs, exact, near)


def _to_train_on(plan: Plan, total: int) -> int:
    return round(total * (1 - plan.val_fraction))


@dataclass(frozen=True)
class _Chosen:
    """What one source gives: its beginning, without the copies that are left out."""

    taken: list[Taken]
    have: int  # tokens to train on in all that was encoded
    exact: int  # copies among the documents taken, left out or not
    near: int  # near copies that were left out, the exact ones not among them


def _encoded(
    plan: Plan, work: Path, crew: Crew, text_bytes: int, report: Callable[[Event], None]
) -> tuple[list[list[Part]], list[int | None], list[_Chosen]]:
    """The parts of each source, the tokens that were aimed at, and what is chosen with these."""
    total = plan.options.tokens
    limits = [
        None if total is None else round(share * _to_train_on(plan, total)) for share in plan.shares
    ]
    goals = [None if limit is None else limit + 1 for limit in limits]
    encodings: dict[int, Encoding] = {}
    parts: list[list[Part]] = [[] for _ in goals]
    try:
        for number in _scarcest_first(plan, goals):
            expected = int(text_bytes * plan.shares[number])
            encoding = encodings[number] = Encoding(plan, work, expected, report, number)
            parts[number] = encoding.run(crew, goals[number])
            _stop_if_too_small(plan, number, goals[number], encoding)
        while True:
            chosen = _chosen(plan, parts, limits)
            short = [
                (number, goal - chosen[number].have)
                for number, goal in enumerate(goals)
                if goal is not None
                and chosen[number].have < goal
                and not encodings[number].exhausted
            ]
            if not short:
                return parts, limits, chosen
            for number, missing in short:  # duplicates took their share
                more = encodings[number].reach_tokens + int(1.05 * missing) + 1
                parts[number] = encodings[number].run(crew, more)
    finally:
        for item in encodings.values():
            item.feed.stop()


def _chosen(plan: Plan, parts: Sequence[list[Part]], limits: Sequence[int | None]) -> list[_Chosen]:
    """Source by source: what is a copy depends on the documents taken before it alone.

    How far a source happened to be encoded, which depends on the number of workers and on kills, must not show.
    """
    before: list[Taken] = []
    chosen = []
    for mine, limit in zip(parts, limits, strict=True):
        copies = copies_of(plan, [*before, *(Taken(part) for part in mine)])
        exact, dropped = (lists[len(before) :] for lists in copies)
        here = _beginning(mine, dropped, limit)
        copied = counted(here, exact)
        near = counted(here, dropped) - copied if plan.options.dedup == "near" else 0
        chosen.append(_Chosen(here, _train_tokens(mine, dropped), copied, near))
        before += here
    return chosen


def _scarcest_first(plan: Plan, goals: list[int | None]) -> list[int]:
    """The sources in the order in which they are tokenised: one that may be too small is known before the others' work."""

    def spare(number: int) -> float:
        return sum(item.text_bytes for item in plan.sources[number].inputs) / (goals[number] or 1)

    return sorted(range(len(goals)), key=spare)


def _stop_if_too_small(plan: Plan, number: int, goal: int | None, encoding: Encoding) -> None:
    """One that is counted and has less than its share, with no choice made: nothing else is tokenised for nothing."""
    have = encoding.reach_tokens
    if goal is None or plan.options.too_small or not encoding.exhausted or have >= goal - 1:
        return
    total, plenty = round((goal - 1) / plan.shares[number]), 1 << 62
    available = [have if place == number else plenty for place in range(len(plan.shares))]
    allot(plan.names, plan.shares, available, total)


_NONE = np.zeros(0, np.uint32)


def copies_of(plan: Plan, items: Sequence[Taken]) -> tuple[Dropped, Dropped]:
    """The rows of each part that are exact copies of an earlier document, and those that are left out."""
    exact = drop_duplicates(items)
    if not plan.options.dedup:
        return exact, [_NONE] * len(items)
    if plan.options.dedup != "near":
        return exact, exact
    near = near_copies([(item.part, item.below) for item in items])
    both = [np.union1d(*pair).astype(np.uint32) for pair in zip(exact, near, strict=True)]
    return exact, both


def _train_tokens(parts: list[Part], dropped: Dropped) -> int:
    total = 0
    for part, gone in zip(parts, dropped, strict=True):
        rows = part.rows()
        kept = of_split(Taken(part, None, gone), rows, 0, "train", 0, [])
        total += _tokens(rows[kept])
    return total


def _beginning(parts: list[Part], dropped: Dropped, quota: int | None) -> list[Taken]:
    """The documents as read up to the one that brings the tokens to train on nearest to the quota."""
    out: list[Taken] = []
    total = 0
    for part, gone in zip(parts, dropped, strict=True):
        item = Taken(part, None, gone)
        rows = part.rows()
        rows = rows[of_split(item, rows, 0, "train", 0, [])]
        here = _tokens(rows)
        if quota is not None and total + here >= quota:
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
    if any(of_split(item, item.part.rows(), 0, "val", 0, []).any() for item in here):
        return None
    documents, chosen = smallest_hash(here)
    return [first + chosen[0], chosen[1]] if documents > 1 else None


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
    pending: list[list[Rows]] = [[] for _ in here]
    given, copy, met = once, 0, not once

    def write(place: int) -> None:
        if pending[place]:
            part = here[place].part
            path = folder / f"{part.path.stem}-{copy:06d}.rows"
            write_rows(path, np.concatenate(pending[place]), part)
            out.append(Taken(open_rows(path, work / "parts")))
            pending[place] = []

    while not met:
        copy += 1
        for place, rows in enumerate(lists):
            met = len(rows) > 0 and given + _tokens(rows) >= quota
            if met:
                rows = rows[rows["order"] < _cut_at(rows, quota - given, first=False)]
            again = rows.copy()
            again["key"] = mix(rows["key"] ^ mix(np.array([copy], np.uint64)))
            pending[place].append(again)
            given += _tokens(rows)
            if sum(map(len, pending[place])) >= _ROWS_AT_ONCE:
                write(place)
            if met:
                break
    for place in range(len(here)):
        write(place)
    return out, given


def _tokens(rows: Rows) -> int:
    return int(rows["length"].sum(dtype=np.int64))


def counted(taken: list[Taken], dropped: Dropped) -> int:
    """How many of the rows found are among the documents taken."""
    return sum(_copies_among(item, gone) for item, gone in zip(taken, dropped, strict=False))


def _copies_among(item: Taken, places: np.ndarray[Any, np.dtype[np.uint32]]) -> int:
    if not len(places) or item.below is None:
        return len(places)
    return int((item.part.rows()["order"][places] < item.below).sum())
