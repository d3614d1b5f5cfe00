"""Run: one training run as its log gives it, whichever trainer wrote it. A frozen value; builder.py makes it line by line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onecard.errors import UserError
from onecard.runs.eval_results import Result
from onecard.runs.loss_curve import LossCurve
from onecard.runs.step_times import StepTimes

How = Literal["log", "config", "flag", "default", "inferred"]
MOST_RUNS = 1000  # in one file
DISTURBED = 0.05  # `cpu_wait` from which a step's time is not the run's own


def check_count(runs: int) -> None:
    """A file of more runs than anyone keeps together is refused before it fills the memory."""
    if runs > MOST_RUNS:
        raise UserError(
            f"more than {MOST_RUNS:,} runs in one file", hint="split it, or export fewer"
        )


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
    sources: Mapping[str, float] = field(default_factory=dict)  # of a mix: the loss of each source
    base_val_loss: float | None = None  # of a tuned run: on the text of its base
    core: float | None = None  # nanochat's CORE metric


@dataclass(frozen=True)
class ConfigChange:
    """A config key that a resume was allowed to change."""

    step: int
    key: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Run:
    """One run as its log gives it. Units: seconds, tokens, bytes; shares as fractions; None where the log is silent."""

    name: str
    source: str
    format: str  # "onecard", or the `form` of its reader
    config: Mapping[str, Known] = field(default_factory=dict)
    curve: LossCurve = field(default_factory=LossCurve)
    times: StepTimes = field(default_factory=StepTimes)
    evals: tuple[Eval, ...] = ()
    first_step: int = 0
    last_step: int = 0
    last_loss: float | None = None
    logged_seconds: float = 0.0  # of training in the steps that the log covers
    mfu_printed: float | None = None  # median of what the log printed, as a fraction
    mfu_settled: float | None = None  # 90th percentile: nanoGPT's mean drops after evaluations
    printed_peak_flops: float | None = None  # what that figure was divided by, where it is known
    params_printed: float | None = None
    params_error: float = 0.0  # half a unit of the printed figure's last digit
    params_total: int | None = None  # where the log counts every tensor
    tokens_per_step: Known | None = None
    flops_per_token: float | None = None  # as the log states it, for models that are not nanoGPT's
    gpu: str | None = None
    gpus: int = 1
    peak_flops: float | None = None  # of all cards together, as our own log states it
    dtype: str | None = None
    max_steps: int | None = None
    vocab_size: int | None = None
    dataset: str | None = None
    dataset_tokens: int | None = None
    memory_bytes: float | None = None
    data_wait: float | None = None  # share of the time
    cpu_wait: float | None = None  # share of the time that a thread waited for other programs
    watts: float | None = None
    kwh: float | None = None
    wall_seconds: float | None = None  # evaluations and checkpoints included
    not_finite: tuple[int, ...] = ()  # the first steps whose loss was NaN or infinite
    signs: frozenset[str] = frozenset()  # what the log says in words: "slow-attention", …
    changes: tuple[ConfigChange, ...] = ()
    plan: Mapping[str, Any] | None = None  # what was predicted, in our own run folders
    exports: tuple[str, ...] = ()  # in words, from our own run folders
    results: tuple[Result, ...] = ()  # of `onecard eval`, kept in our own run folders
    state: str | None = None
    unreadable: int = 0
    unreadable_lines: tuple[str, ...] = ()
    superseded: int = 0
    clock_jumps: int = 0
    gaps: int = 0  # jumps of the step count by more than five times the usual
    widest_gap: tuple[int, int] | None = None

    def value(self, key: str) -> Any:
        known = self.config.get(key)
        return None if known is None else known.value
