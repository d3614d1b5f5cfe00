"""The builder that every log reader fills line by line, and that gives a Run.

builder = RunBuilder("a.log", "nanogpt")
builder.step(100, loss=5.1234, seconds=3.90122, mfu=0.1293)
builder.eval(500, val_loss=4.7)
builder.set(gpu="RTX 4070")
run = builder.done()
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from onecard.config import KEYS
from onecard.runs.loss_curve import CurveBuilder
from onecard.runs.run import ConfigChange, Eval, How, Known, Run
from onecard.runs.step_times import StepTimesBuilder

LARGEST_STEP = 10**10
LARGEST_LOSS = 1e4  # nats; above it a figure is no loss, and the line counts as unreadable
_SHOWN_UNREADABLE = 3
_SHOWN_CHARACTERS = 120
_MOST_EVALS = 4096
_MOST_MFUS = 100_000
_MOST_NOT_FINITE = 100
_MOST_SIGNS = 100
_MOST_CHANGES = 100
_STRIDES = 32  # lines from which the usual distance between lines is taken
_WIDE_GAP = 5  # times the usual distance


class _Line(NamedTuple):
    """One logged step; `seconds` are of one step, `elapsed` the training's since some start."""

    step: int
    loss: float | None
    seconds: float | None
    elapsed: float | None
    mfu: float | None


class RunBuilder:
    """Takes lines in the order they were written; a step count that goes back is a resume, or damage."""

    def __init__(self, name: str, form: str, source: str = ""):
        self._name, self._form, self._source = name, form, source or name
        self._facts: dict[str, Any] = {}  # fields of Run that a reader sets
        self._config: dict[str, Known] = {}
        self._curve, self._times = CurveBuilder(), StepTimesBuilder()
        self._evals: list[Eval] = []
        self._changes: list[ConfigChange] = []
        self._signs: set[str] = set()
        self._not_finite: list[int] = []
        self._mfus: list[float] = []
        self._unreadable, self._unreadable_lines = 0, list[str]()
        self._superseded = self._clock_jumps = self._gaps = 0
        self._widest_gap: tuple[int, int] | None = None
        self._strides: list[int] = []
        self._stride: float | None = None
        self._held: _Line | None = None  # a step that went back; the next line shows why
        self._seconds = 0.0  # of training, without what leaked in
        self._clock: tuple[int, float] | None = None
        self._evaluated: int | None = None
        self._first: int | None = None
        self._last: int | None = None
        self._last_loss: float | None = None

    @property
    def empty(self) -> bool:
        return self._last is None and not self._evals and self._held is None

    @property
    def last(self) -> int | None:
        return self._last

    def get(self, name: str) -> Any:
        """A fact that was set, None where it was not."""
        return self._facts.get(name)

    def set(self, **facts: Any) -> None:
        """Fields of Run that the log states; None leaves what is known already."""
        for name, value in facts.items():
            if value is not None:
                self._facts[name] = value

    def know(self, key: str, value: Any, how: How = "log") -> None:
        """A config key's value."""
        if key in KEYS:
            self._config[key] = Known(value, how)

    def tokens_per_step(self, tokens: int, how: How = "log") -> None:
        if 0 < tokens < 10**12:
            self.set(tokens_per_step=Known(tokens, how))

    def sign(self, word: str) -> None:
        if len(self._signs) < _MOST_SIGNS:
            self._signs.add(word)

    def changed(self, change: ConfigChange) -> None:
        if len(self._changes) < _MOST_CHANGES:
            self._changes.append(change)

    def unreadable(self, line: str) -> None:
        self._unreadable += 1
        if len(self._unreadable_lines) < _SHOWN_UNREADABLE:
            self._unreadable_lines.append(line[:_SHOWN_CHARACTERS])

    def left_out(self, unreadable: int, superseded: int) -> None:
        """Lines that a reader left out before they came here."""
        self._unreadable += unreadable
        self._superseded += superseded

    def eval(
        self, step: int, sources: Mapping[str, float] | None = None, **losses: float | None
    ) -> None:
        self._evaluated = step
        kept = {
            name: loss
            for name, loss in losses.items()
            if loss is not None
            and math.isfinite(loss)
            and (-1 if name == "core" else 0) <= loss <= LARGEST_LOSS
        }
        if not 0 <= step <= LARGEST_STEP:
            return
        if not kept:
            if any(loss is not None and not math.isfinite(loss) for loss in losses.values()):
                self._lost(step)
            return
        last = self._evals[-1] if self._evals else None
        if last is not None and last.step == step and all(getattr(last, k) is None for k in kept):
            # another figure of the same evaluation
            self._evals[-1] = Eval(**{**vars(last), **kept})
            return
        while self._evals and self._evals[-1].step >= step:
            self._evals.pop()
        self._evals.append(Eval(step, **kept, sources=sources or {}))
        if len(self._evals) > _MOST_EVALS:
            del self._evals[1::2]

    def step(
        self,
        step: int,
        loss: float | None = None,
        seconds: float | None = None,
        elapsed: float | None = None,
        mfu: float | None = None,
    ) -> None:
        """One logged step; `seconds` are of one step, `elapsed` the training's since some start."""
        if not 0 <= step <= LARGEST_STEP:
            self.unreadable(f"step {step}")
            return
        if self._held is not None:
            self._settle(self._held, step)
        if step == self._last and loss == self._last_loss:
            self._superseded += 1  # the same line twice, as two processes on one terminal print it
            return
        line = _Line(step, loss, seconds, elapsed, mfu)
        if self._last is not None and step <= self._last:
            self._held = line
            return
        self._take(line)

    def done(self) -> Run | None:
        """The run as a whole; None when nothing was logged."""
        if self._held is not None:
            self.unreadable(f"step {self._held.step} after step {self._last}")
            self._held = None
        if self._last is None and not self._evals:
            return None
        first = self._first if self._first is not None else self._evals[0].step
        last = self._last if self._last is not None else self._evals[-1].step
        times = self._times.done()
        settled = sorted(self._mfus)
        facts: dict[str, Any] = {
            "config": self._config,
            "evals": tuple(self._evals),
            "not_finite": tuple(self._not_finite),
            "signs": frozenset(self._signs),
            "changes": tuple(self._changes),
            "unreadable_lines": tuple(self._unreadable_lines),
            **self._facts,
        }
        return Run(
            self._name,
            self._source,
            self._form,
            # the steps before the first logged one took their time too
            curve=self._curve.done(seconds_before=first * (times.median or 0.0)),
            times=times,
            first_step=first,
            last_step=max(last, self._evals[-1].step if self._evals else 0),
            last_loss=self._last_loss,
            logged_seconds=self._seconds,
            mfu_printed=statistics.median(settled) if settled else None,
            mfu_settled=settled[int(0.9 * (len(settled) - 1))] if settled else None,
            unreadable=self._unreadable,
            superseded=self._superseded,
            clock_jumps=self._clock_jumps,
            gaps=self._gaps,
            widest_gap=self._widest_gap,
            **facts,
        )

    def runs(self) -> list[Run]:
        """The run alone in a list, which is empty when nothing was logged."""
        run = self.done()
        return [] if run is None else [run]

    def _settle(self, held: _Line, step: int) -> None:
        """A line that went back: alone in that, it was damaged; followed by others, it was a resume."""
        self._held = None
        assert self._last is not None
        if step > self._last:
            self.unreadable(f"step {held.step} after step {self._last}")
            return
        self._rewind(min(step, held.step))
        self._take(held)
        if step <= held.step:
            self._rewind(step)

    def _take(self, line: _Line) -> None:
        since = line.step - (self._last if self._last is not None else line.step)
        if self._last is None:
            self._first = line.step
        else:
            self._note_gap(self._last, line.step)
        seconds = line.seconds
        if line.elapsed is not None:
            seconds = self._from_clock(line.step, line.elapsed)
        counted = None
        if seconds is not None and 0 < seconds < 1e7:
            # our own clock stops for evaluations
            evaluations_apart = self._form == "onecard" or line.elapsed is not None
            follows = not evaluations_apart and self._evaluated in (line.step, line.step - 1)
            counted = self._times.add(seconds, after_eval=follows)
        self._seconds += since * (self._times.typical if counted is None else counted)
        if line.mfu is not None and 0 < line.mfu < 10 and len(self._mfus) < _MOST_MFUS:
            self._mfus.append(line.mfu)
        self._last = line.step
        if line.loss is not None:
            self._take_loss(line.step, line.loss)

    def _take_loss(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            self._lost(step)
            self._last_loss = loss
        elif 0 <= loss <= LARGEST_LOSS:
            self._curve.add(float(step), loss, self._seconds)
            self._last_loss = loss
        else:
            self.unreadable(f"step {step}: loss {loss:g}")

    def _lost(self, step: int) -> None:
        if len(self._not_finite) < _MOST_NOT_FINITE:
            self._not_finite.append(step)

    def _note_gap(self, before: int, step: int) -> None:
        if len(self._strides) < _STRIDES:
            self._strides.append(step - before)
            self._stride = statistics.median(self._strides)
        if self._stride is None or len(self._strides) < 5:
            return
        if step - before > _WIDE_GAP * self._stride:
            self._gaps += 1
            widest = self._widest_gap
            if widest is None or step - before > widest[1] - widest[0]:
                self._widest_gap = before, step

    def _from_clock(self, step: int, elapsed: float) -> float | None:
        """Seconds per step since the last clock reading; a clock that goes back is counted and not used."""
        before, self._clock = self._clock, (step, elapsed)
        if before is None or step <= before[0]:
            return None
        if elapsed < before[1]:
            self._clock_jumps += 1
            return None
        return (elapsed - before[1]) / (step - before[0])

    def _rewind(self, step: int) -> None:
        self._superseded += self._curve.rewind(step)
        while self._evals and self._evals[-1].step > step:
            self._evals.pop()
        self._seconds = self._curve.last_seconds
        self._last = self._curve.last_step
        self._clock = None
