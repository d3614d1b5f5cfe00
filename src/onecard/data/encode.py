"""Units to part files: the first half of the work, by any number of workers, until there are enough tokens.

A file on the hub is fetched only when what is here will not give the tokens asked for.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.data.crew import Crew, NotYet
from onecard.data.documents import Unit
from onecard.data.parts import Part, open_part, part_path
from onecard.data.request import Plan
from onecard.data.sources import Input, units_of


@dataclass(frozen=True)
class Event:
    """Progress: bytes of text (or shards) done of an expected total, and tokens so far."""

    stage: str  # "tokenising", "shuffling", "checking"
    done: float
    total: float
    tokens: int


class Feed:
    """Units as their files arrive. A file on the hub is fetched only when what is here will not give enough tokens."""

    def __init__(self, plan: Plan, work: Path):
        self.plan = plan
        self.marks = work / "fetched"
        self.units: list[Unit] = []
        self.ended = False
        self.error: BaseException | None = None
        self.wanted = threading.Event()
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            reading = self.plan.reading
            local: list[tuple[int, Input, Path]] = []
            for place, source, item in self.plan.inputs:
                if source.repo is None:
                    local.append((place, item, Path(item.path)))
                    continue
                self._add(units_of(local, self.plan.unit_bytes, len(self.units), reading))
                local = []
                self.wanted.wait()
                if self.stopped:
                    return
                here = source.fetch(item, self.marks)
                self._add(units_of([(place, item, here)], self.plan.unit_bytes, len(self.units), reading))
            self._add(units_of(local, self.plan.unit_bytes, len(self.units), reading))
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True

    def _add(self, units: list[Unit]) -> None:
        self.units = [*self.units, *units]
        self.wanted.clear()

    def stop(self) -> None:
        self.stopped = True
        self.wanted.set()


class Encoding:
    """Units given out in order, part files taken in; how far the unbroken beginning of them reaches."""

    def __init__(self, plan: Plan, work: Path, expected_bytes: int, tell: Callable[[Event], None]):
        self.plan = plan
        self.work = work
        self.expected_bytes = expected_bytes
        self.tell = tell
        self.feed = Feed(plan, work)
        self.done: dict[int, list[Part]] = {}
        self.given = 0  # units given out, or found finished
        self.reach = 0  # units that are finished with all before them
        self.tokens = self.reach_tokens = self.text_bytes = 0
        self.limit = None if plan.options.dedup else plan.options.tokens  # no unit alone need hold more

    def run(self, crew: Crew, goal: int | None) -> list[Part]:
        """Go on until the beginning holds `goal` tokens (None: all there is); its parts in order."""
        for answer in crew.run(lambda: self._next_job(goal), idle=self._report):
            self._take_in(int(answer["done"]))
        return [part for unit in range(self.reach) for part in self.done[unit]]

    @property
    def exhausted(self) -> bool:
        return self.feed.ended and self.reach == len(self.feed.units)

    def _next_job(self, goal: int | None) -> dict[str, Any] | None:
        while True:
            ended, units = self.feed.ended, self.feed.units  # in this order: the last units come before the end
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
                return {"op": "encode", "unit": unit.to_json(), "limit": self.limit}
            self._take_in(unit.index)

    def _take_in(self, unit: int) -> None:
        self.done[unit] = parts = _parts_of(self.work, unit)
        self.text_bytes += sum(int(part.head["text_bytes"]) for part in parts)
        self.tokens += sum(int(part.head["tokens"]) for part in parts)
        while self.reach in self.done:
            self.reach_tokens += sum(int(part.head["tokens"]) for part in self.done[self.reach])
            self.reach += 1
        self._report()

    def _report(self) -> None:
        self.tell(Event("tokenising", self.text_bytes, max(self.expected_bytes, self.text_bytes), self.tokens))

    def _ask(self, goal: int | None) -> None:
        """Let the next file come when those here, by what their text has given so far, will not do."""
        waiting = sum(unit.size for unit in self.feed.units if unit.index not in self.done)
        per_byte = self.tokens / self.text_bytes if self.text_bytes else 1 / 5
        if goal is None or self.tokens + waiting * per_byte < goal:
            self.feed.wanted.set()


def _parts_of(work: Path, unit: int) -> list[Part]:
    parts: list[Part] = []
    while (path := part_path(work, unit, len(parts))).exists():
        parts.append(open_part(path))
    return parts


def _whole(work: Path, unit: int) -> bool:
    parts = _parts_of(work, unit)
    return bool(parts and parts[-1].head["last"])
