"""The fastest settings of a config on this very machine, measured with real train steps.

>>> tuning = autotune(RunConfig(n_layer=2, max_iters=100), seconds=20)        # doctest: +SKIP
>>> tuning.changes, round(tuning.gain, 2)                                      # doctest: +SKIP
({'chunked_loss': True}, 1.71)

The total batch and the numbers that come out stay what the config asks for; what may change is how a step is computed
(autotune_choices.py). One setting after another, its choices race by successive halving: each gets a few steps, the faster
half gets more of them, and the winner must beat what there was, which runs beside it, by TAKEN. On a CPU they take turns, so
that a disturbance affects all of them equally; on a card one is resident at a time. A choice that runs out of memory, does not run here or
has another loss is out. The limit of time holds for the search as a whole.
"""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model import machine, processor
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.planner.step_time import COMPILE_SECONDS_PER_LAYER
from onecard.train.autotune_choices import (
    Choice,
    measured,
    measured_rows,
    settings,
    words,
)
from onecard.train.probe import Turn, start

SECONDS = 180.0  # of a search, unless it is given another limit
TAKEN = 0.02  # a choice is taken where it saves at least this share of the time
_ROUNDS = (1, 2, 4)  # steps that the choices still in the race get,
_SHORTEST = 0.3  # but so many seconds at least, unless that would be
_MOST_STEPS = 40
_FIRST_SHARE = 0.1  # of the limit: where steps are slow, the given config gets fewer of them first
_HOPELESS = 1.25  # times what it races with: such a choice gets no more steps,
_CLEAR = 0.9  # and one this much faster needs none after the second round
# seconds of a step that scatters by more than it may gain: the winner is measured again
_QUICK, _TURNS = 0.5, 7
_AUTOTUNED_COMPILE = 4.0  # times as long as torch.compile's default mode
SAME_LOSS = 0.01  # nats: the first step's loss may differ by rounding alone
FP8_STEPS, FP8_LOSS = 10, 0.02  # fp8's loss stays this near over its first steps
# seconds done, seconds in all, what is being tried
Tell = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Trial:
    """One choice and what its steps took."""

    changes: Choice
    seconds: float | None  # of a measured step, the quickest; None where it did not run
    steps: int
    against: float | None = None  # the step of what it raced with
    note: str = ""


@dataclass(frozen=True)
class Tuning:
    trials: list[Trial]
    config: RunConfig  # the winner
    changes: Choice  # from the config that was given
    before_seconds: float  # of a measured step as it was given
    after_seconds: float
    rows: int  # sequences of a measured step
    spent_seconds: float

    @property
    def gain(self) -> float:
        """How many times as fast the winner is."""
        return self.before_seconds / self.after_seconds


class _Out(Exception):
    """A choice that leaves the race, and why."""


@dataclass
class _Search:
    device: torch.device
    rows: int
    deadline: float
    began: float
    tell: Tell
    trials: list[Trial] = field(default_factory=list)
    turns: dict[str, Turn] = field(default_factory=dict)  # at work, by config
    loss: float | None = None  # of the given config's first step
    compile_seconds: float | None = None  # torch.compile's default mode, once it was tried

    def first(self, config: RunConfig) -> list[float]:
        """Seconds of the config's own steps, which it gets whatever the limit."""
        taken = self._steps(config, 1)
        enough = self.began + _FIRST_SHARE * (self.deadline - self.began)
        while len(taken) < max(_ROUNDS) and time.perf_counter() < enough:
            taken += self._steps(config, 1)
        self.loss = self._turn(config).losses[0]
        self.trials.append(Trial({}, min(taken), len(taken)))
        return taken

    def race(
        self, now: RunConfig, choices: list[Choice], known: list[float]
    ) -> tuple[RunConfig, list[float]]:
        """The fastest config and its steps: `now`, whose steps are `known`, or one of the choices."""
        configs = [now.replace(**choice) for choice in choices]
        running: dict[int, list[float]] = {place: [] for place in range(len(choices))}
        side_by_side = self.device.type == "cpu"
        beside: list[float] = [] if side_by_side else known
        for count in _ROUNDS:
            if side_by_side:
                beside += self._steps(now, count)
            for place in list(running):
                try:
                    running[place] += self._tried(configs[place], choices[place], count)
                except _Out as why:
                    del running[place]
                    self.trials.append(Trial(choices[place], None, 0, note=str(why)))
            ranked = sorted(running, key=lambda place: min(running[place]))
            limit = _HOPELESS * min(beside)
            for rank, place in enumerate(ranked):
                if rank >= max(1, len(ranked) // 2) or min(running[place]) > limit:
                    self._record(choices[place], running.pop(place), beside)
                    self._leave(configs[place])
            clear = (
                count > 1 and len(running) == 1 and min(running[ranked[0]]) < _CLEAR * min(beside)
            )
            if not running or clear or time.perf_counter() > self.deadline:
                break
        won = min(running, key=lambda place: min(running[place]), default=None)
        if won is None:
            return now, known
        self._record(choices[won], running[won], beside)
        if min(running[won]) > (1 - TAKEN) * min(beside):
            self._leave(configs[won])
            return now, known
        self._leave(now)
        # as many times as fast as what it raced with, when both were measured at the same time
        share = min(running[won]) / min(beside)
        return configs[won], [share * seconds for seconds in known]

    def _record(self, choice: Choice, taken: list[float], beside: list[float]) -> None:
        self.trials.append(Trial(choice, min(taken), len(taken), min(beside)))

    def _tried(self, config: RunConfig, choice: Choice, count: int) -> list[float]:
        left = self.deadline - time.perf_counter()
        if left <= 0 or self._preparation(config) > left:
            raise _Out("no time")
        self.tell(time.perf_counter() - self.began, self.deadline - self.began, words(choice))
        try:
            taken = self._steps(config, count)
            self._same_loss(config, choice)
            return taken
        except (RunFailure, RuntimeError, ImportError) as error:
            if isinstance(error, RuntimeError) and not is_out_of_memory(error):
                raise
            why = "does not run here" if isinstance(error, ImportError) else "no memory"
        # outside the except clause, whose traceback would keep its tensors alive
        self._leave(config)
        raise _Out(why)

    def _same_loss(self, config: RunConfig, choice: Choice) -> None:
        """Rounding apart, every choice computes the same: else it is out. Dropout draws other numbers for other pieces."""
        loss = self._turn(config).losses[0]
        allowed = FP8_LOSS if choice.get("fp8") else SAME_LOSS
        if self.loss is not None and not config.dropout and not abs(loss - self.loss) <= allowed:
            self._leave(config)
            raise _Out(f"another loss: {loss:.4f}, not {self.loss:.4f}")

    def _preparation(self, config: RunConfig) -> float:
        """Seconds that the compiler will take before the first step; a search does not begin what it cannot end."""
        if not config.compile or _key(config, self.rows) in self.turns:
            return 0.0
        usual = self.compile_seconds or COMPILE_SECONDS_PER_LAYER * config.n_layer
        return usual * (_AUTOTUNED_COMPILE if "autotune" in config.compile_mode else 1.0)

    def _steps(self, config: RunConfig, count: int) -> list[float]:
        """Seconds of at least `count` steps of that config, warmed up."""
        with processor.as_before():
            processor.prepare(config, self.device)
            turn = self._turn(config)
            taken = turn.steps(count)
            more = min(_MOST_STEPS, int(_SHORTEST / min(taken))) - count
            return taken + turn.steps(more) if more > 0 else taken

    def _turn(self, config: RunConfig) -> Turn:
        """The config at work; on a card alone, for more would change what fits."""
        key = _key(config, self.rows)
        if key in self.turns:
            return self.turns[key]
        if self.device.type != "cpu":
            self.turns.clear()
            gc.collect()
            free_cached_memory()
            torch._dynamo.reset()  # or the graph of another attention kernel would serve
        began = time.perf_counter()
        turn = start(self.device, measured(config, self.rows))
        if turn is None:
            raise ImportError("cannot be compiled here")
        turn.steps(1)
        if config.compile and config.compile_mode == "default":
            self.compile_seconds = time.perf_counter() - began
        self.turns[key] = turn
        return turn

    def _leave(self, config: RunConfig) -> None:
        self.turns.pop(_key(config, self.rows), None)
        gc.collect()
        free_cached_memory()

    def confirmed(self, given: RunConfig, won: RunConfig) -> float:
        """The winner's step over that of the config as it was given, by turns: the median of their ratios. Many small gains
        were each the best of several, and some of them luck."""
        steps = max(_ROUNDS)
        turns = [(self._steps(given, steps), self._steps(won, steps)) for _ in range(_TURNS)]
        median = statistics.median
        return median(median(after) / median(before) for before, after in turns)

    def parity(self, config: RunConfig) -> tuple[float, float]:
        """The mean loss of the first steps without fp8 and with it, from the same weights on the same rows."""
        losses = []
        for fp8 in (False, True):
            self.turns.clear()
            turn = self._turn(config.replace(fp8=fp8))
            turn.steps(FP8_STEPS - 1)  # the first one warmed it up
            losses.append(statistics.mean(turn.losses[:FP8_STEPS]))
        return losses[0], losses[1]


def autotune(
    config: RunConfig,
    seconds: float = SECONDS,
    tell: Tell | None = None,
    asked: str = "auto",
    fp8: bool = False,
) -> Tuning:
    """The fastest settings found within `seconds`; the config's own where nothing beats them. fp8 is tried where asked."""
    torch.set_float32_matmul_precision("high")  # as the training loop does
    device = machine.choose_device(asked if asked != "auto" else config.device)
    machine.keep_freed_memory(device)
    if fp8:
        machine.require_fp8(device)
    began = time.perf_counter()
    rows = measured_rows(config)
    search = _Search(device, rows, began + seconds, began, tell or (lambda *_: None))
    try:
        known = search.first(config)
    except (RunFailure, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        raise RunFailure(
            "not one step of this config runs here",
            hint="a smaller batch_size, chunked_loss = true or recompute = 'block' take less memory",
        ) from None
    now, before = config, min(known)
    for choices in settings(config, device, rows, fp8):
        fresh = choices(now)
        if not fresh or time.perf_counter() > search.deadline:
            continue
        won, steps = search.race(now, fresh, known)
        if won.fp8 and not now.fp8:
            without, with_fp8 = search.parity(now)
            if not abs(with_fp8 - without) <= FP8_LOSS:
                note = f"another loss over {FP8_STEPS} steps: {with_fp8:.4f}, not {without:.4f}"
                search.trials.append(Trial({"fp8": True}, None, 0, note=note))
                continue
        now, known = won, steps
    changes: Choice = now.changed(since=config)
    if changes and device.type == "cpu" and min(known) < _QUICK:
        share = search.confirmed(config, now)
        known = [share * before]
        if share > 1 - TAKEN:
            note = "no faster than the config as it was"
            search.trials.append(Trial(changes, None, 0, note=note))
            now, known, changes = config, [before], {}
    spent = time.perf_counter() - began
    return Tuning(search.trials, now, changes, before, min(known), rows, spent)


def _key(config: RunConfig, rows: int) -> str:
    return repr(sorted(vars(measured(config, rows)).items(), key=lambda item: item[0]))
