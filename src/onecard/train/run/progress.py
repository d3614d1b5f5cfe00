"""How far a run is, as frozen values: each step, evaluation and checkpoint returns the next one.

`Progress` is what must survive a stop and is neither weights nor optimizer; it lives in each checkpoint's state.json.
What is not in it is derived from the step: the rows of a step and its random numbers are functions of (seed, step), so
there is no data position or generator to save. `RunState` adds what only the running process needs.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from onecard.config import RunConfig
from onecard.train.run.loss_watch import LossWatch


@dataclass(frozen=True)
class Progress:
    step: int = 0  # optimizer steps done
    tokens: int = 0
    position: float = 0.0  # in the learning-rate schedule; ahead of `step` when max_hours presses
    place: int = 0  # rows of training data used
    seconds: float = 0.0  # of the loop, evaluation and checkpoints included, over all sittings
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
    last_bad_step: int | None = None
    rolled_back: frozenset[int] = frozenset()  # steps that already cost a roll-back

    def progressed(self, **changes: Any) -> "RunState":
        """The same run with these fields of its progress."""
        return dataclasses.replace(self, progress=dataclasses.replace(self.progress, **changes))


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def random_seed(seed: int, step: int, rank: int) -> int:
    """The seed of the random numbers (dropout) of one step in one process: never a state that could be lost."""
    mixed = (
        seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB
    ) % 2**64
    return (mixed ^ (mixed >> 31)) % 2**63


def advance(config: RunConfig, state: RunState, seconds_per_step: float | None) -> float:
    """How far the schedule moves with this step: 1, or more when max_hours would end the run before its decay does.

    max_hours is all the time that the run takes, benchmarks included; those still to come are expected to take as long as
    the last one, and the last evaluation, checkpoint and benchmark come on top of the steps.
    """
    if config.max_hours is None or seconds_per_step is None:
        return 1.0
    progress = state.progress
    if config.eval_tasks_interval is not None:
        seconds_per_step += state.benchmark_seconds / config.eval_tasks_interval
    reserve_seconds = state.save_seconds + state.eval_seconds + state.benchmark_seconds
    spent_seconds = progress.seconds + progress.tasks_seconds
    left_steps = (config.max_hours * 3600 - spent_seconds - reserve_seconds) / max(
        seconds_per_step, 1e-9
    )
    return max(1.0, (config.max_iters - progress.position) / max(left_steps, 1.0))


def finished(config: RunConfig, progress: Progress) -> bool:
    return progress.step >= config.max_iters or progress.position >= config.max_iters - 1e-6
