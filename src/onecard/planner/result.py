"""RunPlan: every figure of a plan, in base units (tokens, FLOPs, seconds, bytes, kWh), shares as fractions.

`RunPlan.to_json()` is the documented `--json` answer (docs/formats.md); field names are its paths.
"""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.messages import Note, T

SCHEMA = "onecard.plan/1"


def as_plain(value: Any) -> Any:
    """Any result as JSON's own kinds; a sentence is its code and its English words."""
    if isinstance(value, Note):
        return {"code": value.code, "text": str(value)}
    if isinstance(value, T):
        return str(value)
    if is_dataclass(value):
        return {f.name: as_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value


class JsonAnswer:
    """A dataclass that a command shows: as JSON, each field by its name."""

    def to_json(self) -> dict[str, Any]:
        return dict(as_plain(self))


@dataclass(frozen=True)
class WhatIf:
    """The run's duration if a step took this long."""

    step_seconds: float
    tokens_per_second: float
    total_seconds: float  # the steps alone


@dataclass(frozen=True)
class Range:
    """An 80 % range: one run in ten is expected below `low`, one in ten above `high`."""

    low: float
    mid: float
    high: float

    def scaled(self, factor: float) -> "Range":
        return Range(self.low * factor, self.mid * factor, self.high * factor)

    def inverse(self, numerator: float = 1.0) -> "Range":
        return Range(numerator / self.high, numerator / self.mid, numerator / self.low)


@dataclass(frozen=True)
class Params:
    """Parameters, counted the three ways in use."""

    total: int
    nanogpt: int  # what nanoGPT prints: without position embeddings
    non_embedding: int  # without token and position embeddings and a tied head
    parts: dict[str, int]


@dataclass(frozen=True)
class SourceEpochs:
    """One source of a mix: how often the run goes through it."""

    name: str
    share: float
    unique_tokens: int
    epochs: float
    worth: float  # what its tokens teach, as a share of what so many fresh ones would


@dataclass(frozen=True)
class Tokens:
    """Tokens of the run, beside what the data hold and what the size asks for."""

    per_step: int
    total: int
    per_param: float
    compute_optimal: float  # tokens that are compute-optimal for this size
    dataset: str | None
    unique: int | None
    epochs: float | None
    sources: list[SourceEpochs] = field(default_factory=list)  # of a mix


@dataclass(frozen=True)
class Flops:
    """Floating-point operations by three formulas in use."""

    per_token_nanogpt: float
    per_token_6n: float
    per_token_exact: float
    total_nanogpt: float
    total_6nd: float
    total_exact: float


@dataclass(frozen=True)
class Time:
    """How long a step and the run take."""

    step_seconds: Range
    tokens_per_second: Range
    total_seconds: Range
    compile_seconds: float
    # seconds of one step: matmul, memory, optimizer, launch, data, exchange
    parts: dict[str, float]
    what_if: list[WhatIf]  # hours in all for other seconds per step
    basis: str  # "measured": a probe of this very card; "fitted": cards of its architecture; "class": a wider estimate
    finish: str | None  # ISO time if started now; None beyond the calendar


@dataclass(frozen=True)
class Mfu:
    """Model FLOPs utilization against the card's own peak and against nanoGPT's A100."""

    card: Range
    nanogpt: Range  # against an A100's 312 TFLOPS, as nanoGPT prints


Fits = Literal["yes", "tight", "no"]


@dataclass(frozen=True)
class Memory:
    """Memory at the peak of a step against what the card has."""

    parts: dict[str, int]
    allocated_bytes: Range  # torch.cuda.max_memory_allocated
    process_bytes: Range  # with the CUDA context and the allocator's slack, as nvidia-smi counts
    card_bytes: int
    desktop_bytes: int  # taken by others on the card, or kept free for them
    fits: Fits
    changes: list[Note]  # what would make it fit
    host_bytes: int = 0  # of a computer's memory, by all cards in it, where something is kept there


@dataclass(frozen=True)
class ShardWay:
    """One way of sharing the model out over the cards, and what it takes."""

    shard: str  # the config key's value
    process_bytes: float  # of each card
    fits: Fits
    step_seconds: Range
    exchange_seconds: float  # of a step, in all: what the cards send each other
    waiting_seconds: float  # of these, what the cards wait for


@dataclass(frozen=True)
class Energy:
    """Electricity and its cost."""

    watts: float
    kwh: Range
    cost: Range
    currency: str
    price_per_kwh: float
    price_source: T


@dataclass(frozen=True)
class Loss:
    """The validation loss to expect, with its range."""

    # nats per token on held-out text of the same data set, at the end of the schedule
    expected: Range
    perplexity: Range
    curve: list[tuple[int, float]]  # (step, expected loss) along the schedule
    repetition: float  # nats that seeing the data again costs against fresh data
    dataset: str
    beats_gpt2: Note | None
    in_support: bool  # inside the sizes and tokens per parameter that the public losses cover
    hellaswag: Range | None = None  # share, completion style, where public pairs say anything


@dataclass(frozen=True)
class KnownRun:
    """A published run to compare this one with."""

    name: str
    params: int
    tokens: float  # the middle of the range
    tokens_low: float
    tokens_high: float  # above tokens_low where the count was never published
    flops: float  # 6·N·D
    ratio: float  # this plan's 6·N·D over that run's
    loss: float | None  # nats on the text this plan reads, where it is known
    source: str


@dataclass(frozen=True)
class RunPlan(JsonAnswer):
    """Everything `onecard plan` answers, as one value."""

    schema: str
    version: str
    config: RunConfig
    device: Device
    gpus: int
    dtype: str
    params: Params
    tokens: Tokens
    flops: Flops
    time: Time
    mfu: Mfu
    memory: Memory
    energy: Energy
    loss: Loss | None
    known_runs: list[KnownRun]
    warnings: list[Note]
    formulas: dict[str, str]  # figure's path → formula and source, for --explain
    nodes: int = 1  # machines that the cards are in
    ways: list[ShardWay] = field(default_factory=list)  # of several cards: each value of `shard`
