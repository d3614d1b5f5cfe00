"""Calibration: what `onecard probe` measured on this machine's own device, kept as JSON in the user's config folder.

One file a device, torch version and power limit. A corrupt or foreign file is ignored with a warning, never an error.

`step_work` counts the kinds of work in a step; `calibration_fit` finds what each of them costs here.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.card_rate import speed_fit
from onecard.planner.exchange import exchange_seconds
from onecard.planner.step_counts import micro_kernels, waiting
from onecard.planner.step_time import host_part
from onecard.planner.step_work import PART_OF, Costs, mode, predicted, work
from onecard.planner.workload import Workload

MODES = ("eager", "compiled")
# What is measured alone: FLOP/s of matmuls by shape, bytes/s of copies, seconds a tiny operation.
RATES = (
    "matmul",
    "matmul_narrow",
    "matmul_head",
    "copy",
    "triad",
    "fresh",
    "operation_seconds",
    "host_seconds",
)
MOST_SPREAD = 0.25  # leaving one of very few shapes out asks more of the costs than a plan does
_HELD = 0.8  # of the probe's own steps, that the range holds however disturbed they were
_WIDEST = 100.0  # a range beyond which a plan means nothing
_MOST_RUNS = 50  # finished runs kept as observations
# How much wider the range is for what the probe did not try: careful widths, with no measurement behind them. Compiled
# where only eager steps were timed, another value of one of _SETTINGS, each e-fold beyond the largest shape.
_UNTRIED_MODE, _UNTRIED_SETTING, _BEYOND = 0.15, 0.05, 0.02
ODD_RUN = 3.0  # a run slower or faster than predicted by more than this was slowed by something else than the device


@dataclass(frozen=True)
class Observation:
    """Real train steps of one shape: the median seconds of one step."""

    work: Workload
    seconds: float


@dataclass(frozen=True)
class Calibration:
    """What `onecard probe` measured on one device."""

    device: str
    memory_bytes: int
    torch: str
    power_limit_watts: float | None
    date: str  # ISO time
    dtype: str  # of the matmuls, as Workload names it
    rates: dict[str, float]  # by RATES
    # the host's share of starting a kernel, where a card can run behind it; 0 on a CPU
    host_seconds: float
    costs: dict[str, Costs]  # by mode, "eager" and perhaps "compiled"
    spread: dict[str, float]  # by mode: half the 80 % range of one step, as a share
    observations: tuple[Observation, ...] = ()
    runs: tuple[
        tuple[str, float], ...
    ] = ()  # finished trainings: (mode, measured over predicted seconds)

    def covers(self, w: Workload) -> bool:
        """Whether these measurements say anything of such a step: the dtype is the one that was measured, and what launches
        and multiplies is not another thing (CUDA graphs, fp8)."""
        return w.dtype == self.dtype and not (w.fp8 or w.graphs)

    def parts(self, w: Workload, device: Device) -> dict[str, float]:
        """Seconds of one step by what they are spent on, the keys of `step_time.step_parts`."""
        costs = self.costs.get(mode(w), self.costs["eager"])
        scale = self.correction(mode(w))
        parts = dict.fromkeys(("matmul", "memory", "optimizer", "launch", "data", "exchange"), 0.0)
        for kind, amount in work(w).items():
            parts[PART_OF[kind]] += scale * costs[kind] * amount
        busy = sum(parts.values())
        parts["launch"] += waiting(busy, micro_kernels(w) * w.accumulation * self.host_seconds)
        parts["exchange"] = exchange_seconds(w, device, busy, speed_fit())
        return {**parts, **host_part(w, device, busy / w.accumulation)}

    def range_of(self, w: Workload) -> tuple[float, float]:
        """The 80 % range as factors: from the probe's own residuals, wider for what it did not try."""
        half = self.spread.get(mode(w), self.spread["eager"] + _UNTRIED_MODE)
        seen = {field: {getattr(o.work, field) for o in self.observations} for field in _SETTINGS}
        for field, values in seen.items():
            if getattr(w, field) not in values:
                half += _UNTRIED_SETTING
        largest = max((o.work.tokens * o.work.matmul_params for o in self.observations), default=1)
        # larger than anything tried: the costs are carried further
        beyond = w.tokens * w.matmul_params / largest
        half += _BEYOND * math.log(max(1.0, beyond))
        return 1 / (1 + half), 1 + half

    @property
    def disturbed(self) -> float | None:
        """How far its own steps lie from what it predicts for them, where that is more than a quiet machine explains."""
        off = 0.0
        for kind, costs in self.costs.items():
            off = max(
                off,
                own_miss(
                    [o for o in self.observations if mode(o.work) == kind], costs, self.host_seconds
                ),
            )
        return off if off > MOST_SPREAD else None

    def correction(self, kind: str) -> float:
        """What finished trainings say of the prediction, pulled toward 1 as if one more had been as predicted."""
        logs = [math.log(ratio) for name, ratio in self.runs if name == kind]
        return math.exp(sum(logs) / (len(logs) + 1))


_SETTINGS = (
    "gpus",
    "modern",
    "bias",
    "dropout",
    "flash",
    "chunked_loss",
    "recompute",
    "optimizer",
    "mask_documents",
)


def own_miss(
    observations: Sequence[Observation], costs: Mapping[str, float], host_seconds: float = 0.0
) -> float:
    """Half the range that holds four of five of the steps which the costs were fitted to; 0 where it is within the usual.

    A fit always lies nearer to its own steps than to others, so only what is beyond MOST_SPREAD means anything.
    """
    ratios = [predicted(seen.work, costs, host_seconds) / seen.seconds for seen in observations]
    misses = sorted(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    held = misses[min(int(_HELD * len(misses)), len(misses) - 1)] if misses else 0.0
    return min(held, _WIDEST) if held > MOST_SPREAD else 0.0


def refine(calibration: Calibration, config: RunConfig, seconds: float) -> Calibration:
    """With what a finished training measured: one more ratio, that moves later predictions part of the way."""
    dtype = calibration.dtype if config.matmul_dtype == "auto" else config.matmul_dtype
    w = Workload.of(config, dtype)
    if not calibration.covers(w) or not seconds > 0:
        return calibration
    costs = calibration.costs.get(mode(w), calibration.costs["eager"])
    ratio = seconds / predicted(w, costs, calibration.host_seconds)
    if not 1 / ODD_RUN < ratio < ODD_RUN:
        return calibration
    return dataclasses.replace(
        calibration, runs=(*calibration.runs, (mode(w), ratio))[-_MOST_RUNS:]
    )
