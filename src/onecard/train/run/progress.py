"""How far a run is, as frozen values: each step, evaluation and checkpoint returns the next one.

`Progress` is what must survive a stop and is neither weights nor optimizer; it lives in each checkpoint's state.json.
What is not in it is derived from the step: the rows of a step and its random numbers are functions of (seed, step), so
there is no data position or generator to save. `RunState` adds what only the running process needs, and `StepClock`
measures how long the steps of this process take; functions say what is due after a step.
"""

import dataclasses
import math
import time
from dataclasses import dataclass, field
from typing import Any

from onecard.config import RunConfig
from onecard.config.model_rules import decay_start, evaluation_due
from onecard.train.run.loss_watch import LossWatch

_STEPS_TO_JUDGE = 3  # the first steps of a process are slower than the rest


@dataclass(frozen=True)
class Progress:
    step: int = 0  # optimizer steps done
    tokens: int = 0
    # in the learning-rate schedule; ahead of `step` when max_hours shortens the run
    position: float = 0.0
    place: int = 0  # rows of training data used
    seconds: float = 0.0  # of the loop, evaluation and checkpoints included, over all restarts
    tasks_seconds: float = 0.0  # of the benchmarks of eval_tasks, which are not in `seconds`
    kwh: float = 0.0
    micro_batch: int = 1
    val_loss: float | None = None  # at this step, if it was evaluated
    best_val_loss: float | None = None
    skipped: tuple[int, ...] = ()  # steps given up as bad
    watch: LossWatch = field(default_factory=LossWatch)
    scaler: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        losses = {key: _finite(plain[key]) for key in ("val_loss", "best_val_loss")}
        return {**plain, **losses, "skipped": list(self.skipped)}

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Progress":
        known = {f.name: state[f.name] for f in dataclasses.fields(cls) if f.name in state}
        watch, skipped = LossWatch(**state["watch"]), tuple(state["skipped"])
        return cls(**{**known, "watch": watch, "skipped": skipped})


@dataclass(frozen=True)
class RunState:
    """A run between two steps."""

    progress: Progress
    saved_step: int | None = None  # of the newest checkpoint on disk
    save_seconds: float = 0.0  # the last checkpoint's
    eval_seconds: float = 0.0  # the last evaluation's
    benchmark_seconds: float = 0.0  # the last benchmark's
    eval_micro_batch: int | None = None  # what fits, once an evaluation ran out of memory
    stride: float = 1.0  # how far the last step moved the schedule
    last_bad_step: int | None = None
    rolled_back: frozenset[int] = frozenset()  # steps that already cost a roll-back

    def with_progress(self, **changes: Any) -> "RunState":
        """This state with other values in its `progress`."""
        return dataclasses.replace(self, progress=dataclasses.replace(self.progress, **changes))


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def random_seed(seed: int, step: int, rank: int) -> int:
    """The seed of the random numbers (dropout) of one step in one process: never a state that could be lost."""
    mixed = (
        seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB
    ) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


def advance(config: RunConfig, state: RunState, step_seconds: float | None) -> float:
    """How far the schedule moves with this step: 1, or more when max_hours would end the run before its decay does.

    max_hours is all the time that the run takes; the last evaluation, checkpoint and benchmark come after its steps.
    """
    if config.max_hours is None or step_seconds is None:
        return 1.0
    progress = state.progress
    spent = progress.seconds + progress.tasks_seconds
    reserve = state.save_seconds + state.eval_seconds + state.benchmark_seconds
    left_steps = _steps_within(
        config.max_hours * 3600 - spent - reserve, max(step_seconds, 1e-9), config, state
    )
    return max(1.0, (config.max_iters - progress.position) / max(left_steps, 1.0))


def _steps_within(seconds: float, step_seconds: float, config: RunConfig, state: RunState) -> float:
    """How many steps there is time for, with the benchmarks between them, each as long as the last one was."""
    interval, benchmark = config.eval_tasks_interval, state.benchmark_seconds
    if interval is None or not benchmark:
        return seconds / step_seconds
    before = interval - state.progress.step % interval  # steps until the next benchmark
    seconds -= before * step_seconds
    if seconds <= benchmark:
        return before + min(seconds, 0.0) / step_seconds
    rounds, rest = divmod(seconds - benchmark, interval * step_seconds + benchmark)
    return before + interval * rounds + min(rest / step_seconds, interval)


def finished(config: RunConfig, progress: Progress) -> bool:
    return progress.step >= config.max_iters or progress.position >= config.max_iters - 1e-6


def log_due(config: RunConfig, progress: Progress, skipped: bool) -> bool:
    return progress.step % config.log_interval == 0 or skipped or finished(config, progress)


def eval_due(config: RunConfig, step: int, last: bool) -> bool:
    return last or evaluation_due(config, step)


def eval_missing(config: RunConfig, progress: Progress) -> bool:
    """Before the first step, of a base that is to be tuned; later where the run ended between a step and its evaluation."""
    if progress.step == 0:
        return config.learn_from == "answers"
    return progress.val_loss is None and eval_due(config, progress.step, finished(config, progress))


def save_due(config: RunConfig, step: int, improved: bool) -> bool:
    if config.checkpoint_interval is not None:
        return step % config.checkpoint_interval == 0
    return step % config.eval_interval == 0 and (improved or config.always_save_checkpoint)


def predecay_due(config: RunConfig, state: RunState) -> bool:
    """Whether the flat part of a schedule ends here, as near as the strides come that max_hours makes it in."""
    start = decay_start(config)
    if not config.keep_predecay or start is None:
        return False
    return -state.stride < state.progress.position - start < max(state.stride, 2)


def tasks_due(config: RunConfig, step: int, last: bool) -> bool:
    interval = config.eval_tasks_interval
    return last or (interval is not None and step % interval == 0)


def sample_due(config: RunConfig, step: int, last: bool) -> bool:
    return last or step % (config.sample_interval or config.eval_interval) == 0


@dataclass(frozen=True)
class Interval:
    """The steps since the last log line."""

    step_seconds: float  # the mean; neither evaluations nor checkpoints
    data_wait: float  # the share of it spent waiting for rows


class StepClock:
    """begin() and end() around each step; a step that is done again begins again."""

    def __init__(self) -> None:
        self._process_began = self._last_end = self._step_began = time.perf_counter()
        self._process_steps = 0
        self._seconds, self._wait, self._steps = 0.0, 0.0, 0  # since the last log line

    def begin(self) -> None:
        self._step_began = time.perf_counter()

    def end(self, wait_seconds: float) -> float:
        """Seconds since the last step ended: this one and all that came between."""
        now = time.perf_counter()
        passed, self._last_end = now - self._last_end, now
        self._process_steps += 1
        self._seconds += now - self._step_began
        self._wait += wait_seconds
        self._steps += 1
        return passed

    def leave_out(self, seconds: float) -> None:
        """Time between steps that is booked apart: neither a step's nor the run's."""
        self._last_end += seconds
        self._process_began += seconds

    def pace(self) -> float | None:
        """Seconds per step since the process started, with all that comes between steps; None until that says something."""
        if self._process_steps < _STEPS_TO_JUDGE:
            return None
        return (self._last_end - self._process_began) / self._process_steps

    def interval(self) -> Interval:
        """The steps since the last call."""
        interval = Interval(self._seconds / self._steps, self._wait / self._seconds)
        self._seconds, self._wait, self._steps = 0.0, 0.0, 0
        return interval
