"""What a person sees while it trains: a live picture on a terminal, nanoGPT's plain lines in a pipe.

    with View(config, plan, total_steps=20_000) as view:
        view.step({"step": 100, "loss": 5.12, "step_seconds": 3.9, "tokens_per_second": 134_433, "mfu": 0.69})
        view.eval({"step": 500, "val_loss": 4.7})

The fields are those of log.jsonl (docs/formats.md); one that is missing or None is left out of the picture. Where the
output can no longer be written (a closed pipe or terminal, a full disk), that is reported once on the other stream and the
view is quiet from then on: nobody's reading is worth a run.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from onecard.config import RunConfig
from onecard.planner.result import RunPlan
from onecard.runs.forecast import expected_at
from onecard.streams import give_up, to_stream
from onecard.train.io.curve_and_pace import Curve, Pace
from onecard.train.run.processor_watch import MUCH
from onecard.units import show_bytes, show_count, show_duration

_REDRAW_SECONDS = 0.25


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # to the view; Rich would end the program


class View:
    """A context manager; everything it knows came through `step`, `eval` and `message`."""

    def __init__(
        self,
        config: RunConfig,
        plan: RunPlan | None,
        total_steps: int,
        quiet: bool = False,
        console: Console | None = None,
    ):
        self.config = config
        self.plan = plan
        self.total_steps = total_steps
        self.console = console or _Console(highlight=False)
        self.live = self.console.is_terminal and not quiet
        self.quiet = quiet
        self._last: Mapping[str, Any] = {}
        self._cpu_wait = 0.0
        self._eval: Mapping[str, Any] = {}
        self._curve = Curve()
        self._pace = Pace(total_steps)
        self._smooth: float | None = None
        self._drawn = 0.0  # when
        self._picture: Live | None = None
        self._bar = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            expand=True,
        )
        self._task = self._bar.add_task("steps", total=total_steps)

    def __enter__(self) -> "View":
        if self.live:
            self._picture = Live(
                get_renderable=self._render,
                console=self.console,
                auto_refresh=False,  # a thread of its own would fail where nobody can answer it
                redirect_stderr=False,
            )
            self._shown(self._picture.start)
        return self

    def __exit__(self, *_: object) -> None:
        self._end_picture()

    def step(self, fields: Mapping[str, Any]) -> None:
        """One optimizer step, with the fields of its log line."""
        self._last = fields
        self._cpu_wait = fields.get("cpu_wait", self._cpu_wait)  # not in every line
        self._pace.add(int(fields["step"]), fields.get("step_seconds"))
        loss = fields.get("loss")
        if loss is not None and math.isfinite(loss):
            self._smooth = loss if self._smooth is None else 0.9 * self._smooth + 0.1 * loss
            self._curve.add(self._smooth)
        self._bar.update(self._task, completed=fields["step"])
        first_or_last = self._pace.steps == 1 or fields["step"] >= self.total_steps
        if self._picture is not None:
            if first_or_last or time.monotonic() - self._drawn >= _REDRAW_SECONDS:
                self._drawn = time.monotonic()
                self._shown(self._picture.refresh)
        elif not self.quiet and (first_or_last or fields["step"] % self.config.log_interval == 0):
            self._say(self._step_line(fields))

    def eval(self, fields: Mapping[str, Any]) -> None:
        self._eval = fields
        if not self.quiet:
            self._say(_eval_line(fields))

    def message(self, text: str) -> None:
        """A sentence that must be seen: above the picture, or a line; on stderr where nothing else is shown."""
        if self.quiet:
            to_stream(sys.stderr, text)
        else:
            self._say(text)

    def _say(self, text: str) -> None:
        self._shown(self._print, text)

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)
        if not self.live:
            self.console.file.flush()  # a pipe to tee shows it now, not 8 KiB later

    def _shown(self, show: Callable[..., object], *arguments: Any) -> None:
        """Do it, or be quiet from now on where the output is gone."""
        try:
            show(*arguments)
        except (OSError, ValueError) as error:  # ValueError: a file that was closed
            if self.quiet:
                return  # reported already
            self.quiet, self.live = True, False
            self._end_picture()
            give_up(self.console.file, error)

    def _end_picture(self) -> None:
        picture, self._picture = self._picture, None
        if picture is not None:
            self._shown(picture.stop)

    def _step_line(self, fields: Mapping[str, Any]) -> str:
        parts = [f"loss {_number(fields.get('loss'))}"]
        if (seconds := fields.get("step_seconds")) is not None:
            parts.append(f"time {seconds * 1000:.2f}ms")
        if (mfu := fields.get("mfu")) is not None:
            parts.append(f"card mfu {mfu:.2%}")  # not "mfu": nanoGPT's is against an A100
        if (rate := fields.get("tokens_per_second")) is not None:
            parts.append(f"{rate:,.0f} tok/s")
        if (memory := fields.get("memory_bytes")) is not None:
            parts.append(self._memory(memory))
        if (left := self._pace.left()) is not None:
            parts.append(f"{_span(*left)} left")
        return f"iter {fields['step']}: {', '.join(parts)}"

    def _memory(self, measured: float) -> str:
        """The reading with its name, as `plan` names it: "7.00 GiB allocated", "540 MiB process"."""
        reading = f" {self.plan.device.memory_reading}" if self.plan else ""
        return f"{show_bytes(measured)}{reading}"

    def _render(self) -> Group:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in self.facts():
            facts.add_row(name, value)
        return Group(self._bar, facts)

    def facts(self) -> list[tuple[str, str]]:
        """The rows of the picture: (name, value)."""
        last, rows = self._last, []
        if "loss" in last:
            rows.append(("loss", f"{_number(last['loss'])}  {self._curve.draw(48)}"))
        if self._eval:
            rows.append(("evaluation", _eval_line(self._eval)))
        if (normal := self._normal()) is not None:
            rows.append(("curve", normal))
        speed = []
        if (rate := last.get("tokens_per_second")) is not None:
            speed.append(f"{rate:,.0f} tokens/s")
        if (mfu := last.get("mfu")) is not None:
            card = f" of the {self.plan.device.name}'s peak" if self.plan else ""
            speed.append(f"MFU {mfu:.1%}{card}")
        if (wait := last.get("data_wait")) is not None and wait > 0.02:
            speed.append(f"{wait:.0%} of the time waits for data")
        if self._cpu_wait >= MUCH:
            speed.append(f"{self._cpu_wait:.0%} of the time waits for other programs")
        if speed:
            rows.append(("speed", " · ".join(speed)))
        if (pace := self._pace_row()) is not None:
            rows.append(("step time", pace))
        machine = []
        if (memory := last.get("memory_bytes")) is not None:
            of = f" of {show_bytes(self.plan.memory.card_bytes)}" if self.plan else ""
            machine.append(f"{self._memory(memory)}{of}")
        if (watts := last.get("watts")) is not None:
            machine.append(f"{watts:.0f} W, {last.get('kwh') or 0.0:.3f} kWh so far")
        if machine:
            rows.append(("card", " · ".join(machine)))
        if (left := self._pace.left()) is not None:
            tokens = (
                f" · {show_count(last['tokens'])} tokens seen"
                if last.get("tokens") is not None
                else ""
            )
            rows.append(("left", f"{_span(*left)}{tokens}"))
        return rows

    def _pace_row(self) -> str | None:
        seconds = self._pace.median()
        if seconds is None:
            return None
        if self.plan is None:
            return show_duration(seconds)
        wanted = self.plan.time.step_seconds
        verdict = (
            "slower"
            if seconds > wanted.high
            else "faster"
            if seconds < wanted.low
            else "as predicted"
        )
        return (
            f"{show_duration(seconds)} · {verdict} ({_span(wanted.low, wanted.high)} was predicted)"
        )

    def _normal(self) -> str | None:
        """Is this curve normal? Against the plan's curve; silent in the first steps, which say nothing."""
        if self.plan is None or self._smooth is None or self._pace.steps < 20:
            return None
        step, loss = self._last.get("step", 0), self.plan.loss
        expected = expected_at(self.plan, step)
        if expected is None or loss is None:
            return None
        # The end's 80 % range, twice as wide at the start, where the schedule and the seed still show.
        band = max((loss.expected.high - loss.expected.low) / 2, 0.03 * expected)
        band *= 2 - min(1.0, step / max(1, self.total_steps))
        off = self._smooth - expected
        word = (
            "as expected"
            if abs(off) <= band
            else "higher than expected"
            if off > 0
            else "lower than expected"
        )
        return f"{word}: {self._smooth:.3f} where {expected:.3f} ± {band:.2f} is usual at this step"


def _eval_line(fields: Mapping[str, Any]) -> str:
    parts = []
    if fields.get("train_loss") is not None:
        parts.append(f"train loss {_number(fields['train_loss'])}")
    parts.append(f"val loss {_number(fields.get('val_loss'))}")
    if fields.get("perplexity") is not None:
        perplexity = fields["perplexity"]  # of a diverged run it has hundreds of digits
        parts.append(
            f"perplexity {perplexity:.2f}" if perplexity < 1e6 else f"perplexity {perplexity:.1e}"
        )
    if fields.get("bits_per_byte") is not None:
        parts.append(f"{fields['bits_per_byte']:.4f} bits per byte")
    if isinstance(fields.get("sources"), Mapping):
        parts.append(", ".join(f"{k} {_number(v)}" for k, v in fields["sources"].items()))
    return f"step {fields.get('step')}: {', '.join(parts)}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4f}"


def _span(low: float, high: float) -> str:
    first, last = show_duration(low), show_duration(high)
    return first if first == last else f"{first} – {last}"
