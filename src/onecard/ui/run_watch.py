"""One run folder, watched: what its log says so far, read as it grows; and a row of it for the list of runs."""

import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.facts.prices import Price
from onecard.planner.result import as_plain
from onecard.report.language import Language
from onecard.runs.explain import explain
from onecard.runs.figures import figures
from onecard.runs.folder import FolderBuilder
from onecard.runs.follow import LogFollower
from onecard.runs.log import parse_line
from onecard.runs.record import RunRecord
from onecard.train.io.curve_and_pace import Pace
from onecard.ui.run_series import RunSeries
from onecard.units import HOUR
from onecard.untrusted import finite, printable

TAIL_BYTES = 96 * 1024  # of a log, for its row in the list
SLICE_BYTES = 2**19  # read before others get their turn
MOST_ZOOM_BYTES = 16 * 2**20  # read again for a closer look
_MOST_EVENTS = 300
_MOST_SAMPLES = 40
_MOST_EVALS = 2000
_LONGEST_TEXT = 4000


@dataclass(frozen=True)
class NewPoints:
    """The columns from point `start` on, of a series that now has `count` points."""

    version: int
    count: int
    start: int
    points: dict[str, list[float | None]]


class RunWatch:
    """A run as its page shows it."""

    def __init__(self, path: Path, price: Price):
        self.path = path
        self.price = price
        self.record = RunRecord(path)
        self._turn = threading.Lock()  # two pages may watch one run
        self._begin()

    def _begin(self, version: int = 0, changes: int = 0) -> None:
        self.follower = LogFollower(self.record.log_path)
        self.series = RunSeries(version=version)
        self.evals: list[dict[str, Any]] = []
        self.events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self.samples: deque[dict[str, Any]] = deque(maxlen=_MOST_SAMPLES)
        self.changes = changes  # counts what evals, events and samples gained
        self._builder = FolderBuilder(self.path)
        self._explained: tuple[int, tuple[Any, ...]] = (-1, ())

    def advance(self) -> bool:
        """Read a slice of what is new; whether there is more to read."""
        with self._turn:
            return self._advance()

    def _advance(self) -> bool:
        before = self.follower.offset
        for offset, line in self.follower.read(SLICE_BYTES):
            if self.follower.restarted and before:
                # the log was cut: from the start, at the next call, and a reader takes all of it again
                self._begin(self.series.version + 1, self.changes + 1)
                return True
            self._take(line, offset)
        return self.follower.offset - before >= SLICE_BYTES

    def points_since(self, version: int, count: int) -> NewPoints:
        """The points for a reader who has `count` of that version: the last one again, for it may have grown."""
        with self._turn:  # another page's thread may be adding some
            same = self.series.version == version
            start = max(0, count - 1) if same else 0
            points = self.series.points(start)
            return NewPoints(self.series.version, len(self.series), start, points)

    @property
    def share_read(self) -> float:
        follower = self.follower  # another page's thread may put a new one in its place
        size = follower.size
        return min(1.0, follower.offset / size) if size else 1.0

    def _take(self, line: dict[str, Any], offset: int) -> None:
        kind, step = line.get("kind"), line.get("step")
        self._builder.add(line)
        if kind == "step":
            self.series.add(line, offset)
        elif kind == "eval" and isinstance(step, int):
            self.evals = [e for e in self.evals if e["step"] < step][-_MOST_EVALS:]
            names = ("tokens", "val_loss", "perplexity", "bits_per_byte")
            self.evals.append({"step": step, **{name: finite(line.get(name)) for name in names}})
            self.changes += 1
        elif kind in ("event", "sample") and isinstance(line.get("text"), str):
            text = printable(line["text"][:_LONGEST_TEXT], keep="\n")
            place = self.events if kind == "event" else self.samples
            place.append({"step": step if isinstance(step, int) else None, "text": text})
            self.changes += 1

    def zoom(self, first: float, last: float) -> dict[str, Any]:
        """The steps from `first` to `last` in more detail, read again from the log."""
        with self._turn:  # the page's own thread may be adding points, or merging them
            begin, end = self.series.place(first, last)
            end = self.follower.offset if end is None else end
            if end - begin > MOST_ZOOM_BYTES:  # so long a part has points enough already
                return self.series.points_between(first, last)
        follower, detail = LogFollower(self.record.log_path), RunSeries()
        follower.offset = begin
        for offset, line in follower.read(end - begin):
            step = line.get("step")
            if line.get("kind") == "step" and isinstance(step, int) and first <= step <= last:
                detail.add(line, offset)
        return detail.points()

    def findings(self, words: Language) -> list[dict[str, Any]]:
        """What `onecard explain` says of it so far."""
        read_to, findings = self._explained
        if read_to != self.follower.offset:
            with self._turn:  # together: more may be read while it is explained
                read_to, run = self.follower.offset, self._builder.done()
            findings = () if run is None else explain(figures(run, price=self.price))
            self._explained = (read_to, findings)
        return [{"rule": f.note.code, "text": words.text(f.note)} for f in findings]

    def plan_band(self) -> dict[str, Any] | None:
        """The expected loss from its plan: (step, low, high), and what turns steps into tokens, hours and FLOPs."""
        plan = self.record.plan() or {}
        try:
            loss, time = plan["loss"], plan["time"]
            half = (loss["expected"]["high"] - loss["expected"]["low"]) / 2
            band = [[step, value - half, value + half] for step, value in loss["curve"]]
            return {
                "band": as_plain(band),
                "step_seconds": float(time["step_seconds"]["mid"]),
                "tokens_per_step": float(plan["tokens"]["per_step"]),
                "flops_per_token": float(plan["flops"]["per_token_nanogpt"]),
            }
        except (KeyError, TypeError, ValueError):
            return None


def run_row(path: Path, name: str, price: Price) -> dict[str, Any]:
    """A run's line in the list, from the last of its log alone: a log of any length takes the same time."""
    record = RunRecord(path)
    row: dict[str, Any] = {"id": name, "name": printable(name), "state": record.state}
    try:
        row["max_steps"] = record.config().max_iters
    except UserError:
        row["max_steps"] = None
    steps, last_eval = _tail(record.log_path)
    if steps:
        last = steps[-1]
        row |= {
            "step": last.get("step"),
            "loss": finite(last.get("loss")),
            "hours": _over(last.get("seconds"), HOUR),
            "watts": finite(last.get("watts")),
            "tokens_per_second": finite(last.get("tokens_per_second")),
            "mfu": finite(last.get("mfu")),
            "cost": _times(last.get("kwh"), price.per_kwh),
            "currency": price.currency,
            "left": _left(steps, row["max_steps"]),
        }
    if last_eval is not None:
        row["val_loss"] = finite(last_eval.get("val_loss"))
    return row


def _left(steps: list[dict[str, Any]], total: int | None) -> list[float] | None:
    if total is None:
        return None
    pace = Pace(total)
    for line in steps:
        pace.add(line["step"], finite(line.get("step_seconds")), finite(line.get("seconds")) or 0.0)
    left = pace.left()
    return None if left is None else list(left)


def _tail(log: Path) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The last step lines, and the last evaluation wherever it is."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, 2)
            if not size:
                return [], None
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).split(b"\n")
            entries = [line for raw in lines if (line := parse_line(raw)) is not None]
            steps = [
                line
                for line in entries
                if line.get("kind") == "step" and type(line.get("step")) is int
            ]
            evals = [line for line in entries if line.get("kind") == "eval"]
            return steps, evals[-1] if evals else _last_eval(file, size)
    except (OSError, ValueError):
        return [], None


def _last_eval(file: Any, size: int) -> dict[str, Any] | None:
    """Read from the end in pieces, not mapped: a resume cuts the log short, which under a mapping would be SIGBUS."""
    mark = b'"kind": "eval"'
    for begin in range(max(0, size - SLICE_BYTES), -SLICE_BYTES, -SLICE_BYTES):
        file.seek(max(0, begin))
        at = file.read(begin + SLICE_BYTES + len(mark) - max(0, begin)).rfind(mark)
        if at >= 0:
            at += max(0, begin)
            start = max(0, at - TAIL_BYTES)
            file.seek(start)
            around = file.read(2 * TAIL_BYTES)
            first = around.rfind(b"\n", 0, at - start) + 1
            return parse_line(around[first:].partition(b"\n")[0])
    return None


def _over(value: Any, size: float) -> float | None:
    number = finite(value)
    return None if number is None else number / size


def _times(value: Any, factor: float) -> float | None:
    number = finite(value)
    return None if number is None else number * factor
