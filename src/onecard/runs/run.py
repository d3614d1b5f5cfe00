"""Run: one training run, whoever logged it; and the builder that every reader fills line by line.

builder = RunBuilder("a.log", "nanogpt")
builder.step(100, loss=5.1234, seconds=3.90122, mfu=0.1293)
builder.eval(500, val_loss=4.7)
run = builder.done()
"""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any, Literal

from onecard.config import KEYS
from onecard.runs.curve import LossCurve, StepTimes

How = Literal["log", "config", "flag", "default", "inferred"]
Format = Literal[
    "onecard", "nanogpt", "llm.c", "nanochat", "modded-nanogpt", "litgpt", "trainer", "csv"
]

LARGEST_STEP = 10**10
LARGEST_LOSS = 1e4  # nats; above it a figure is no loss, and the line counts as unreadable
_SHOWN_UNREADABLE = 3
_MOST_EVALS = 4096


@dataclass(frozen=True)
class Known:
    """A value and how it is known."""

    value: Any
    how: How


@dataclass(frozen=True)
class Eval:
    step: int
    val_loss: float | None = None
    train_loss: float | None = None
    bits_per_byte: float | None = None


@dataclass
class Run:
    """One run as its log tells it. Units: seconds, tokens, bytes; shares as fractions; None where the log is silent."""

    name: str
    source: str
    format: Format
    config: dict[str, Known] = field(default_factory=dict)
    curve: LossCurve = field(default_factory=LossCurve)
    times: StepTimes = field(default_factory=StepTimes)
    evals: list[Eval] = field(default_factory=list)
    first_step: int = 0
    last_step: int = 0
    last_loss: float | None = None
    mfu_printed: float | None = None  # median of what the log printed, as a fraction
    mfu_settled: float | None = (
        None  # its 90th percentile: nanoGPT's running mean sags after each evaluation
    )
    printed_peak_flops: float | None = None  # what that figure was divided by, where it is known
    params_printed: float | None = None
    params_error: float = 0.0  # half a unit of the printed figure's last digit
    params_total: int | None = None  # where the log counts every tensor
    tokens_per_step: Known | None = None
    flops_per_token: float | None = None  # as the log states it, for models that are not nanoGPT's
    gpu: str | None = None
    gpus: int = 1
    peak_flops: float | None = None  # the card's, as our own log states it
    dtype: str | None = None
    max_steps: int | None = None
    vocab_size: int | None = None
    tokenizer: str | None = None
    bytes_per_token: float | None = None
    dataset: str | None = None
    dataset_tokens: int | None = None
    memory_bytes: float | None = None
    data_wait: float | None = None  # share of the time
    watts: float | None = None
    kwh: float | None = None
    wall_seconds: float | None = None  # evaluations and checkpoints included
    not_finite: list[int] = field(
        default_factory=list
    )  # the first steps whose loss was NaN or infinite
    signs: list[str] = field(
        default_factory=list
    )  # what the log says in words: "compile-failed", "slow-attention", …
    changes: list[tuple[int, str]] = field(
        default_factory=list
    )  # (step, "learning_rate: 0.001 → 0.002"): changed at a resume, by request
    plan: dict[str, Any] | None = None  # what was predicted, in our own run folders
    state: str | None = None
    unreadable: int = 0
    unreadable_lines: list[str] = field(default_factory=list)
    superseded: int = 0
    clock_jumps: int = 0
    gaps: int = 0  # jumps of the step count by more than five times the usual
    widest_gap: tuple[int, int] | None = None

    def value(self, key: str) -> Any:
        known = self.config.get(key)
        return None if known is None else known.value


class RunBuilder:
    """Fills a Run from lines in the order they were written; a step count that goes back is a resume, or damage."""

    def __init__(self, name: str, form: Format, source: str = ""):
        self.run = Run(name, source or name, form)
        self._mfus: list[float] = []
        self._held: tuple[int, float | None, float | None, float | None, float | None] | None = (
            None  # a step that went back; the next one tells why
        )
        self._seconds = 0.0  # of training, without what leaked in
        self._elapsed: tuple[int, float] | None = None
        self._evaluated: int | None = None
        self._last: int | None = None
        self._strides: list[int] = []  # the first steps between lines, for what is usual
        self._stride: float | None = None

    @property
    def empty(self) -> bool:
        return self._last is None and not self.run.evals and self._held is None

    @property
    def last(self) -> int | None:
        return self._last

    def know(self, key: str, value: Any, how: How = "log") -> None:
        """A config key's value; a file given by the user wins over the log, a flag over both."""
        if key in KEYS:
            self.run.config[key] = Known(value, how)

    def tokens_per_step(self, tokens: int, how: How = "log") -> None:
        if 0 < tokens < 10**12:
            self.run.tokens_per_step = Known(tokens, how)

    def sign(self, word: str) -> None:
        if word not in self.run.signs:
            self.run.signs.append(word)

    def unreadable(self, line: str) -> None:
        self.run.unreadable += 1
        if len(self.run.unreadable_lines) < _SHOWN_UNREADABLE:
            self.run.unreadable_lines.append(line[:120])

    def eval(self, step: int, **losses: float | None) -> None:
        self._evaluated = step
        kept = {
            k: v
            for k, v in losses.items()
            if v is not None and math.isfinite(v) and 0 <= v <= LARGEST_LOSS
        }
        if not 0 <= step <= LARGEST_STEP:
            return
        if not kept:
            if any(v is not None and not math.isfinite(v) for v in losses.values()):
                self.run.not_finite.append(step)
            return
        evals = self.run.evals
        while evals and evals[-1].step >= step:
            evals.pop()
        evals.append(Eval(step, **kept))
        if len(evals) > _MOST_EVALS:
            del evals[1::2]

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
            held, self._held = self._held, None
            assert self._last is not None
            if (
                step > self._last
            ):  # the one before was alone in going back: a damaged number, not a resume
                self.unreadable(f"step {held[0]} after step {self._last}")
            else:
                self._rewind(min(step, held[0]))
                self._take(*held)
                if step <= held[0]:
                    self._rewind(step)
        if step == self._last and loss == self.run.last_loss:
            self.run.superseded += (
                1  # the same line twice, as two processes on one terminal print it
            )
            return
        if self._last is not None and step <= self._last:
            self._held = step, loss, seconds, elapsed, mfu
            return
        self._take(step, loss, seconds, elapsed, mfu)

    def done(self) -> Run | None:
        """The run as a whole; None when nothing was logged."""
        if self._held is not None:
            self.unreadable(f"step {self._held[0]} after step {self._last}")
        run = self.run
        if self._last is None and not run.evals:
            return None
        if self._last is None:
            self._last = run.evals[-1].step
            run.first_step = run.evals[0].step
        run.last_step = max(self._last, run.evals[-1].step if run.evals else 0)
        if self._mfus:
            run.mfu_printed = statistics.median(self._mfus)
            run.mfu_settled = sorted(self._mfus)[int(0.9 * (len(self._mfus) - 1))]
        usual = run.times.median()
        if usual is not None:  # the steps before the first logged one took their time too
            offset = run.first_step * usual
            run.curve.seconds = [seconds + offset for seconds in run.curve.seconds]
        return run

    def _take(
        self,
        step: int,
        loss: float | None,
        seconds: float | None,
        elapsed: float | None,
        mfu: float | None,
    ) -> None:
        run = self.run
        since = step - (self._last if self._last is not None else step)
        if self._last is None:
            run.first_step = step
        else:
            self._note_gap(self._last, step)
        if elapsed is not None:
            seconds = self._from_clock(step, elapsed)
        counted = None
        if seconds is not None and 0 < seconds < 1e7:
            counted = run.times.add(
                seconds, after_eval=elapsed is None and self._evaluated in (step, step - 1)
            )
        if counted is None:
            counted = run.times.median() or 0.0
        self._seconds += since * counted
        if mfu is not None and 0 < mfu < 10 and len(self._mfus) < 100_000:
            self._mfus.append(mfu)
        self._last = step
        if loss is None:
            return
        if not math.isfinite(loss):
            if len(run.not_finite) < 100:
                run.not_finite.append(step)
            run.last_loss = loss
        elif 0 <= loss <= LARGEST_LOSS:
            run.curve.add(float(step), loss, self._seconds)
            run.last_loss = loss
        else:
            self.unreadable(f"step {step}: loss {loss:g}")

    def _note_gap(self, before: int, step: int) -> None:
        if len(self._strides) < 32:
            self._strides.append(step - before)
            self._stride = statistics.median(self._strides)
        if (
            self._stride is not None
            and len(self._strides) >= 5
            and step - before > 5 * self._stride
        ):
            self.run.gaps += 1
            if (
                self.run.widest_gap is None
                or step - before > self.run.widest_gap[1] - self.run.widest_gap[0]
            ):
                self.run.widest_gap = before, step

    def _from_clock(self, step: int, elapsed: float) -> float | None:
        """Seconds per step since the last clock reading; a clock that goes back is counted and not believed."""
        before, self._elapsed = self._elapsed, (step, elapsed)
        if before is None or step <= before[0]:
            return None
        if elapsed < before[1]:
            self.run.clock_jumps += 1
            return None
        return (elapsed - before[1]) / (step - before[0])

    def _rewind(self, step: int) -> None:
        run = self.run
        run.superseded += run.curve.rewind(step)
        while run.evals and run.evals[-1].step > step:
            run.evals.pop()
        self._seconds = run.curve.seconds[-1] if run.curve.seconds else 0.0
        self._last = int(run.curve.steps[-1]) if run.curve.steps else None
        self._elapsed = None
