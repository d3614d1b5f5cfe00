"""The fastest settings of a config on this very machine, measured with real train steps.

>>> found = autotune(RunConfig(n_layer=2, max_iters=100), seconds=20)        # doctest: +SKIP
>>> found.changes, round(found.gain, 2)                                      # doctest: +SKIP
({'chunked_loss': True}, 1.71)

The total batch and the numbers that come out stay what the config asks for; what may change is how a step is computed. One
setting after another, the likeliest first: its choices race by successive halving (every choice gets a step, the faster half
gets more of them), and the winner must beat what there was by TAKEN. A choice that does not fit in memory is out, and so are
larger ones. The limit of time holds for the search as a whole.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model import machine
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.train.probe import Turn, start

SECONDS = 180.0  # of a search, unless it is given another limit
TAKEN = 0.02  # a choice is taken where it saves at least this share of the time
_ROUNDS = (1, 2, 4)  # steps that the choices still in the race get
_LARGEST_ROWS = (
    64  # sequences of a measured step at most: a share of the total batch tells the same
)
# seconds done, seconds in all, what is being tried
Tell = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Trial:
    """One choice and what its steps took."""

    changes: dict[str, Any]  # config keys, or "threads"
    seconds: float | None  # of a measured step, the median; None where it did not run
    steps: int
    note: str = ""


@dataclass(frozen=True)
class Tuning:
    trials: list[Trial]
    config: RunConfig  # the winner
    changes: dict[str, Any]  # from the config that was given
    threads: int | None  # torch's threads of the winner, where another number than usual won
    before_seconds: float  # of a measured step as it was given
    after_seconds: float
    rows: int  # sequences of a measured step
    spent_seconds: float

    @property
    def gain(self) -> float:
        """How many times as fast the winner is."""
        return self.before_seconds / self.after_seconds


@dataclass
class _Search:
    device: torch.device
    rows: int
    deadline: float
    began: float
    tell: Tell
    trials: list[Trial] = field(default_factory=list)
    warm: dict[str, Turn | None] = field(default_factory=dict)

    def race(
        self, config: RunConfig, choices: list[dict[str, Any]], seconds: float | None
    ) -> tuple[dict[str, Any], float | None]:
        """The fastest of the choices and its seconds; nothing where what there is (`seconds`) is as fast."""
        running: dict[int, list[float]] = {place: [] for place in range(len(choices))}
        out: dict[int, str] = {}
        for steps in _ROUNDS:
            for place in list(running):
                late = time.perf_counter() > self.deadline
                if late and (seconds is not None or running[place]):
                    break  # only the config as it is gets a step whatever the limit
                whole = self.deadline - self.began
                self.tell(time.perf_counter() - self.began, whole, words(choices[place]))
                try:
                    running[place] += self._steps(config, choices[place], steps)
                except (RunFailure, RuntimeError, ImportError) as error:
                    if not isinstance(error, ImportError | RunFailure) and not is_out_of_memory(
                        error
                    ):
                        raise
                    out[place] = (
                        "does not run here" if isinstance(error, ImportError) else "no memory"
                    )
                    del running[place]
                    free_cached_memory()
            ranked = sorted((p for p in running if running[p]), key=lambda p: min(running[p]))
            keep = ranked[: max(1, len(ranked) // 2)]
            self._record(choices, {p: s for p, s in running.items() if p not in keep}, {})
            running = {place: running[place] for place in keep}
        self._record(choices, running, out)
        if not running:
            return {}, seconds
        winner = next(iter(running))
        # the quickest step: whatever else ran on the machine only ever adds to it
        best = min(running[winner])
        if seconds is not None and best > seconds * (1 - TAKEN):
            return {}, seconds
        return choices[winner], best

    def _record(
        self, choices: list[dict[str, Any]], seen: dict[int, list[float]], out: dict[int, str]
    ) -> None:
        for place, taken in seen.items():
            if taken:
                self.trials.append(Trial(choices[place], min(taken), len(taken)))
        self.trials += [Trial(choices[place], None, 0, why) for place, why in out.items()]

    def _steps(self, config: RunConfig, choice: dict[str, Any], count: int) -> list[float]:
        """Seconds of `count` steps of that choice, after one that warms it up."""
        changed = measured(
            config.replace(**{k: v for k, v in choice.items() if k != "threads"}), self.rows
        )
        usual = torch.get_num_threads()
        key = repr(sorted((k, v) for k, v in vars(changed).items()))
        if key not in self.warm:
            self.warm.clear()  # one model at a time: more would change what fits
            self.warm[key] = start(self.device, changed)
            if (turn := self.warm[key]) is not None:
                turn.steps(1)
        turn = self.warm[key]
        if turn is None:
            raise ImportError("cannot be compiled here")
        torch.set_num_threads(choice.get("threads", usual))
        try:
            return turn.steps(count)
        finally:
            torch.set_num_threads(usual)


def autotune(
    config: RunConfig, seconds: float = SECONDS, tell: Tell | None = None, asked: str = "auto"
) -> Tuning:
    """The fastest settings found within `seconds`; the config's own where nothing beats them."""
    torch.set_float32_matmul_precision("high")  # as the training loop does
    device = machine.choose_device(asked if asked != "auto" else config.device)
    machine.keep_freed_memory(device)
    began = time.perf_counter()
    rows = measured_rows(config)
    search = _Search(device, rows, began + seconds, began, tell or (lambda *_: None))
    now, threads = config, torch.get_num_threads()
    _, before = search.race(config, [{}], None)
    if before is None:
        raise RunFailure(
            "not one step of this config runs here",
            hint="a smaller batch_size, chunked_loss = true or recompute = 'block' take less memory",
        )
    best: float = before
    for choices in settings(config, device):
        fresh = [choice for choice in choices(now) if choice]
        if not fresh or time.perf_counter() > search.deadline:
            continue
        won, found = search.race(now, fresh, best)
        if won and found is not None:
            best = found
            threads = won.get("threads", threads)
            now = now.replace(**{k: v for k, v in won.items() if k != "threads"})
    usual = torch.get_num_threads()
    changes = {k: v for k, v in vars(now).items() if v != getattr(config, k)}
    return Tuning(
        search.trials,
        now,
        changes,
        threads if threads != usual else None,
        before,
        best,
        rows,
        time.perf_counter() - began,
    )


def settings(
    config: RunConfig, device: torch.device
) -> Iterator[Callable[[RunConfig], list[dict[str, Any]]]]:
    """One setting after another, the likeliest to gain first; each gives the choices that the config at hand has not got."""
    yield lambda now: [{"chunked_loss": not now.chunked_loss}]
    if config.recompute != "none":
        yield lambda now: [
            {"recompute": kind} for kind in ("none", "cheap") if kind != now.recompute
        ]
    yield micro_batches
    yield lambda now: [{"attention": "math" if now.attention == "flash" else "flash"}]
    if device.type == "cpu":
        most = torch.get_num_threads()
        yield lambda now: [{"threads": n} for n in sorted({1, most // 2, 2 * most} - {0, most})]
    yield lambda now: [{"compile": not now.compile}]  # last: it takes the longest to try
    yield micro_batches


def micro_batches(config: RunConfig) -> list[dict[str, Any]]:
    """Half, twice and four times the micro-batch, the total batch being the same."""
    total = config.batch_size * config.gradient_accumulation_steps
    sizes = {config.batch_size // 2, 2 * config.batch_size, 4 * config.batch_size}
    return [
        {"batch_size": size, "gradient_accumulation_steps": total // size}
        for size in sorted(sizes)
        if 1 <= size <= min(total, _LARGEST_ROWS) and total % size == 0
    ]


def measured_rows(config: RunConfig) -> int:
    """Sequences of a measured step: four micro-batches, or the whole step where that is less."""
    total = config.batch_size * config.gradient_accumulation_steps
    rows = config.batch_size
    while rows * 2 <= min(total, 4 * config.batch_size, max(_LARGEST_ROWS, config.batch_size)):
        if total % (rows * 2):
            break
        rows *= 2
    return rows


def measured(config: RunConfig, rows: int) -> RunConfig:
    """The config with a step of so many sequences: every choice does the same work."""
    size = min(config.batch_size, rows)
    return config.replace(batch_size=size, gradient_accumulation_steps=max(1, rows // size))


def words(changes: dict[str, Any]) -> str:
    """A choice as it stands in a config file."""
    return ", ".join(f"{key} = {value!r}" for key, value in changes.items()) or "as it is"
