"""Units to part files: the first half of the work, by any number of workers, until there are enough tokens.

A file on the hub is fetched only when what is here will not give the tokens asked for.
"""

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard.data.preparation.crew import Crew, NotYet
from onecard.data.preparation.parts import Part, open_part, part_path
from onecard.data.preparation.request import Plan
from onecard.data.sources.documents import units_of
from onecard.data.sources.hub import arrived_bytes
from onecard.data.sources.source import Input, Source
from onecard.data.sources.unit import Unit

_MOST_UNITS = 100_000  # of one source of a mix: where the numbers of the next one's begin


@dataclass(frozen=True)
class Event:
    """Progress: bytes of text (or shards) done of an expected total, and tokens so far."""

    stage: str  # "downloading", "tokenising", "shuffling", "checking"
    done: float
    total: float
    tokens: int


class Feed:
    """Units as their files arrive. A file on the hub is fetched only when it is asked for."""

    def __init__(self, plan: Plan, work: Path, only: int | None = None):
        self.plan = plan
        self.only = only  # the one source that is read; None: all
        self.first = 0 if only is None else only * _MOST_UNITS
        self.marks = work / "fetched"
        self.units: list[Unit] = []
        self.fetched = 0  # files of the hub whose units are here
        self.fetching: tuple[Source, Input] | None = None
        self.ended = False
        self.error: BaseException | None = None
        self._asked = 0
        self._change = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, fetched: int) -> None:
        """One file more than the `fetched` that the caller has seen."""
        with self._change:
            self._asked = max(self._asked, fetched + 1)
            self._change.notify()

    def stop(self) -> None:
        with self._change:
            self._asked = -1
            self._change.notify()

    def _run(self) -> None:
        try:
            local: list[tuple[int, Input, Path]] = []
            number = 0
            for place, mine, source, item in self.plan.numbered:
                if self.only not in (None, mine):
                    continue
                if source.repo is not None or mine != number:
                    self._add(local, 0, number)
                    local, number = [], mine
                if source.repo is None:
                    local.append((place, item, Path(item.path)))
                    continue
                with self._change:
                    self._change.wait_for(lambda: self._asked < 0 or self._asked > self.fetched)
                    if self._asked < 0:
                        return
                self.fetching = source, item
                here = source.fetch(item, self.marks)
                self.fetching = None
                self._add([(place, item, here)], 1, mine)
            self._add(local, 0, number)
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True

    def _add(self, files: list[tuple[int, Input, Path]], fetched: int, source: int) -> None:
        first = self.first + len(self.units)
        units = units_of(files, self.plan.unit_bytes, first, self.plan.readings[source], source)
        with self._change:
            self.units = [*self.units, *units]
            self.fetched += fetched

    def seen(self) -> tuple[list[Unit], int]:
        with self._change:
            return self.units, self.fetched


class Encoding:
    """Units given out in order, part files taken in; how far the unbroken beginning of them reaches."""

    def __init__(
        self,
        plan: Plan,
        work: Path,
        expected_bytes: int,
        report: Callable[[Event], None],
        only: int | None = None,
    ):
        self.plan = plan
        self.work = work
        self.expected_bytes = expected_bytes
        self.report = report
        self.goal: int | None = None
        self.only = only  # one source of a mix: its tokens to train on are what counts
        self.feed = Feed(plan, work, only)
        self.done: dict[int, list[Part]] = {}
        self.given = 0  # units given out, or found finished
        self.reach = self.feed.first  # units that are finished with all before them
        self.tokens = self.reach_tokens = self.text_bytes = 0
        # no unit alone needs to hold more
        self.limit = None if plan.options.dedup or only is not None else plan.options.tokens

    def run(self, crew: Crew, goal: int | None) -> list[Part]:
        """Continue until the beginning holds `goal` tokens (None: all there is); its parts in order."""
        self.goal = goal
        for answer in crew.run(lambda: self._next_job(goal), idle=self._report):
            self._take_in(int(answer["done"]))
        return [part for unit in range(self.feed.first, self.reach) for part in self.done[unit]]

    @property
    def exhausted(self) -> bool:
        return self.feed.ended and self.reach == self.feed.first + len(self.feed.units)

    def _next_job(self, goal: int | None) -> dict[str, Any] | None:
        while True:
            # in this order: the last units come before the end
            ended, units = self.feed.ended, self.feed.units
            if self.feed.error is not None:
                raise self.feed.error
            if goal is not None and self.reach_tokens >= goal:
                return None
            self._ask(goal)
            if self.given == len(units):
                if ended:
                    return None
                raise NotYet
            unit = units[self.given]
            self.given += 1
            if not _whole(self.work, unit.index):
                return {"op": "encode", "unit": asdict(unit), "limit": self.limit}
            self._take_in(unit.index)

    def _take_in(self, unit: int) -> None:
        self.done[unit] = parts = _parts_of(self.work, unit)
        self.text_bytes += sum(int(part.head["text_bytes"]) for part in parts)
        self.tokens += sum(map(self._counted, parts))
        while self.reach in self.done:
            self.reach_tokens += sum(map(self._counted, self.done[self.reach]))
            self.reach += 1
        self._report()

    def _counted(self, part: Part) -> int:
        return int(part.head["tokens"]) - (
            int(part.head["val_tokens"]) if self.only is not None else 0
        )

    def _report(self) -> None:
        fetching = self.feed.fetching
        if fetching is not None and len(self.done) == self.given:  # nothing to do but wait for it
            source, item = fetching
            here = arrived_bytes(str(source.repo), item.sha256)
            self.report(Event("downloading", here, max(item.size, here), self.tokens))
            return
        total = max(self._total_bytes(), self.text_bytes)
        self.report(Event("tokenising", self.text_bytes, total, self.tokens))

    def _total_bytes(self) -> float:
        """The text to read in all, by what the part that was read gave; the first estimate until then."""
        if self.goal is not None and self.tokens:
            enough = self.text_bytes * self.goal / self.tokens
            return min(enough, self._known_bytes()) if self.feed.ended else enough
        return self._known_bytes() if self.feed.ended else self.expected_bytes

    def _known_bytes(self) -> float:
        waiting = sum(unit.size for unit in self.feed.units if unit.index not in self.done)
        return self.text_bytes + waiting

    def _ask(self, goal: int | None) -> None:
        """Let the next file come when those here, by what their text has given so far, will not do."""
        units, fetched = self.feed.seen()
        waiting = sum(unit.size for unit in units if unit.index not in self.done)
        if goal is not None and waiting:
            if not self.text_bytes:
                return  # how many tokens a byte gives is not known yet
            if self.tokens + waiting * self.tokens / self.text_bytes >= goal:
                return
        elif goal is not None and self.tokens >= goal:
            return
        self.feed.ask(fetched)


def _parts_of(work: Path, unit: int) -> list[Part]:
    parts: list[Part] = []
    while (path := part_path(work, unit, len(parts))).exists():
        parts.append(open_part(path))
    return parts


def _whole(work: Path, unit: int) -> bool:
    parts = _parts_of(work, unit)
    return bool(parts and parts[-1].head["last"])
