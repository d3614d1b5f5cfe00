"""Calibration: what `onecard probe` measured on this machine's own device, kept as JSON in the user's config folder.

One file a device, torch version and power limit. A corrupt or foreign file is ignored with a warning, never an error.

A step is a sum of a few kinds of work (`work` counts them), each at its own cost on the device. The costs are fitted to
the probe's real steps by non-negative least squares, held near what its matmuls, copies and tiny operations took, so
everything still grows with layers, width, batch and vocabulary.

>>> from onecard.config import RunConfig
>>> small = Workload.of(RunConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=256, compile=False), "float32")
>>> wide = Workload.of(RunConfig(n_layer=2, n_head=2, n_embd=128, vocab_size=256, compile=False), "float32")
>>> work(wide)["blocks"] / work(small)["blocks"], work(wide)["head"] / work(small)["head"]
(4.0, 2.0)
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.flops import attention_flops
from onecard.planner.speed import (
    exchange_seconds,
    micro_bytes,
    micro_kernels,
    optimizer_bytes,
    optimizer_flops,
    speed_fit,
    waiting,
)
from onecard.planner.workload import Workload
from onecard.units import MIB

Costs = dict[str, float]  # seconds a unit of work: a FLOP, a byte, a kernel, a step

# Which part of the step (plan.time.parts) each kind of work belongs to.
PART_OF = {
    "blocks": "matmul",  # FLOPs of the layers' matrices
    "head": "matmul",  # FLOPs of the vocabulary's matrix
    "attention": "matmul",  # FLOPs between the tokens of a sequence
    "layers": "memory",  # bytes of activations
    "logits": "memory",  # bytes of scores over the vocabulary: far larger tensors, out of any cache
    "fresh": "memory",  # bytes of tensors so large that the system hands out fresh pages every time
    "weights": "memory",  # bytes of weights and gradients, once a micro-batch
    "kernels": "launch",  # kernels or operations started
    "update": "optimizer",  # bytes of weights, gradients and moments, once a step
    "step": "launch",  # what every step costs whatever its size
}
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
_NOISE = 0.02  # relative error of one measured step: what the median of a dozen steps leaves on a quiet machine
_TRUST = 0.7  # how well a micro-benchmark tells a cost, as a share of it; steps that say otherwise move it further
_LEAST_SHARE = 0.05  # of its hint, that every kind of work costs
_LEAST_SPREAD = (
    0.04  # the same run, twice, on a machine that does nothing else differs by about this
)
_MOST_SPREAD = 0.25  # leaving one of very few shapes out asks more of the costs than a plan does
_HELD = 0.8  # of the probe's own steps, that the range holds however disturbed they were
_WIDEST = 100.0  # a range beyond which nothing is said anyway
_MOST_RUNS = 50  # finished runs kept as observations
_LARGE = (
    32 * MIB
)  # glibc's largest mmap threshold: a tensor above it is mapped by itself and faulted in anew
ODD_RUN = 3.0  # a run slower or faster than predicted by more than this tells of something else than the device


@dataclass(frozen=True)
class Observation:
    """Real train steps of one shape: the median seconds of one step."""

    work: Workload
    seconds: float


@dataclass(frozen=True)
class Calibration:
    device: str
    memory_bytes: int
    torch: str
    power_limit_watts: float | None
    date: str  # ISO time
    dtype: str  # of the matmuls, as Workload names it
    rates: dict[str, float]  # by RATES
    host_seconds: (
        float  # the host's share of starting a kernel, where a card can run behind it; 0 on a CPU
    )
    costs: dict[str, Costs]  # by mode, "eager" and perhaps "compiled"
    spread: dict[str, float]  # by mode: half the 80 % range of one step, as a share
    observations: tuple[Observation, ...] = ()
    runs: tuple[
        tuple[str, float], ...
    ] = ()  # finished trainings: (mode, measured over predicted seconds)

    def covers(self, w: Workload) -> bool:
        """Whether these measurements say anything of such a step: the dtype is the one that was measured."""
        return w.dtype == self.dtype

    def parts(self, w: Workload, device: Device) -> dict[str, float]:
        """Seconds of one step by what they are spent on, the keys of `speed.step_parts`."""
        costs = self.costs.get(mode(w), self.costs["eager"])
        scale = self.correction(mode(w))
        parts = dict.fromkeys(("matmul", "memory", "optimizer", "launch", "data", "exchange"), 0.0)
        for kind, amount in work(w).items():
            parts[PART_OF[kind]] += scale * costs[kind] * amount
        busy = sum(parts.values())
        parts["launch"] += waiting(busy, micro_kernels(w) * w.accumulation * self.host_seconds)
        parts["exchange"] = exchange_seconds(w, device, busy, speed_fit())
        return parts

    def range_of(self, w: Workload) -> tuple[float, float]:
        """The 80 % range as factors: from the probe's own residuals, wider for what it did not try."""
        half = self.spread.get(mode(w), self.spread["eager"] + 0.15)
        seen = {field: {getattr(o.work, field) for o in self.observations} for field in _SETTINGS}
        for field, values in seen.items():
            if getattr(w, field) not in values:
                half += 0.05
        largest = max((o.work.tokens * o.work.matmul_params for o in self.observations), default=1)
        beyond = (
            w.tokens * w.matmul_params / largest
        )  # larger than anything tried: the costs are carried further
        half += 0.02 * math.log(max(1.0, beyond))
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
        return off if off > _MOST_SPREAD else None

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


def mode(w: Workload) -> str:
    return "compiled" if w.compiled else "eager"


def work(w: Workload) -> dict[str, float]:
    """How much of each kind of work one step is: FLOPs, bytes, kernels."""
    fit = speed_fit()
    again = w.recompute == "block"
    everything = w.tokens * w.accumulation
    # micro_bytes is a sum over layers, logits and weights: without layers, and without tokens, the others are left
    bare, empty = dataclasses.replace(w, n_layer=0), dataclasses.replace(w, batch_size=0)
    logits = micro_bytes(bare, fit) - micro_bytes(dataclasses.replace(bare, batch_size=0), fit)
    weights = micro_bytes(empty, fit)
    layers = micro_bytes(w, fit) - weights - logits
    head = 6.0 * everything * w.vocab_size * w.n_embd
    if w.vocab_size % 8 and w.dtype in ("bfloat16", "float16"):
        head *= fit["odd_vocab_compiled"] if w.compiled else fit["odd_vocab"]
    amounts = {
        "blocks": (6.0 + 2 * again) * everything * w.n_layer * w.layer_params,
        "head": head,
        "attention": attention_flops(w)
        * everything
        * (3.5 + again if w.flash else 2.0 * (3 + again)),
        "layers": layers * w.accumulation,
        "logits": logits * w.accumulation,
        "fresh": fresh_bytes(w) * w.accumulation,
        "weights": weights * w.accumulation,
        "kernels": micro_kernels(w) * w.accumulation,
    }
    if w.dropout:
        amounts = {kind: amount * fit["dropout"] for kind, amount in amounts.items()}
    amounts["blocks"] += optimizer_flops(w)
    return {**amounts, "update": optimizer_bytes(w), "step": 1.0}


def fresh_bytes(w: Workload) -> float:
    """Bytes of one micro-batch in tensors above _LARGE: so many page faults were counted on a CPU."""
    logits = (
        0 if w.chunked_loss else 3 if w.compiled else 4
    )  # scores, their logarithms, and gradients of both
    tensors = [
        (4.0 * w.vocab_size * w.tokens, logits),
        (
            4.0 * w.vocab_size * w.n_embd,
            3 if w.tied else 2,
        ),  # the head's gradient, the embedding's, their sum
        (
            4.0 * w.ff_width * w.tokens,
            5 * w.n_layer,
        ),  # the MLP's input and output, its slope, two gradients
        (
            4.0 * (w.n_embd + 2 * w.kv_width) * w.tokens,
            2 * w.n_layer,
        ),  # queries, keys and values, and their gradients
    ]
    return sum(size * count for size, count in tensors if size > _LARGE)


def fit_costs(
    observations: Sequence[Observation], hints: Mapping[str, float], host_seconds: float = 0.0
) -> Costs:
    """The costs that explain the observed steps best in relative terms, each held loosely near its hint.

    Where the host's launching alone takes as long as the step did, the step says nothing of the card.
    """
    rows, wanted = [], []
    for seen in observations:
        host = micro_kernels(seen.work) * seen.work.accumulation * host_seconds
        if host > 0.8 * seen.seconds:
            continue
        busy = (seen.seconds**4 - host**4) ** 0.25
        amounts = work(seen.work)
        rows.append([amounts[kind] * hints[kind] / busy / _NOISE for kind in hints])
        wanted.append(1 / _NOISE)
    for place in range(len(hints)):
        rows.append([float(place == other) / _TRUST for other in range(len(hints))])
        wanted.append(1 / _TRUST)
    # what lies above the least share: no work is ever free, however a disturbed probe came out
    above = [value - _LEAST_SHARE * sum(row) for row, value in zip(rows, wanted, strict=True)]
    shares = non_negative_least_squares(rows, above)
    return {
        kind: (_LEAST_SHARE + share) * hints[kind]
        for kind, share in zip(hints, shares, strict=True)
    }


def non_negative_least_squares(
    rows: Sequence[Sequence[float]], wanted: Sequence[float]
) -> list[float]:
    """x ≥ 0 with the least Σ(row·x - wanted)²: Lawson and Hanson's active set, 1974, on the normal equations.

    >>> [round(x, 6) for x in non_negative_least_squares([[1, 1], [1, 2], [1, 3]], [3, 5, 7])]
    [1.0, 2.0]
    """
    size = len(rows[0])
    square = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    right = [
        sum(row[i] * value for row, value in zip(rows, wanted, strict=True)) for i in range(size)
    ]
    x, free = [0.0] * size, list[int]()
    for _ in range(10 * size):
        pull = {
            i: right[i] - sum(square[i][j] * x[j] for j in free)
            for i in range(size)
            if i not in free
        }
        best = max(pull, key=pull.__getitem__, default=None)
        if best is None or pull[best] <= 1e-9 * (1 + abs(right[best])):
            break
        free.append(best)
        while free:
            aim = dict(
                zip(
                    free,
                    solve([[square[i][j] for j in free] for i in free], [right[i] for i in free]),
                    strict=True,
                )
            )
            if min(aim.values()) > 0:
                for i in free:
                    x[i] = aim[i]
                break
            # go toward the aim until the first of them is 0, and hold that one there
            share = min(x[i] / (x[i] - aim[i]) for i in free if aim[i] <= 0)
            for i in free:
                x[i] += share * (aim[i] - x[i])
            free = [i for i in free if x[i] > 1e-12 and not (aim[i] <= 0 and x[i] <= 1e-9)]
            x = [value if i in free else 0.0 for i, value in enumerate(x)]
    return x


def solve(square: list[list[float]], right: list[float]) -> list[float]:
    """Gauss's elimination with the largest pivot; a column of zeros is left out with x = 0."""
    size = len(right)
    table = [[*row, value] for row, value in zip(square, right, strict=True)]
    for place in range(size):
        pivot = max(range(place, size), key=lambda i: abs(table[i][place]))
        table[place], table[pivot] = table[pivot], table[place]
        if not table[place][place]:
            continue
        for below in range(place + 1, size):
            factor = table[below][place] / table[place][place]
            for column in range(place, size + 1):
                table[below][column] -= factor * table[place][column]
    x = [0.0] * size
    for place in reversed(range(size)):
        rest = table[place][size] - sum(table[place][j] * x[j] for j in range(place + 1, size))
        x[place] = rest / table[place][place] if table[place][place] else 0.0
    return x


def spread_of(
    observations: Sequence[Observation], hints: Mapping[str, float], host_seconds: float = 0.0
) -> float:
    """Half the 80 % range: each step predicted from costs that were fitted without it.

    At most _MOST_SPREAD, unless the costs fitted to all steps miss those very steps by more: the machine was disturbed.
    """
    errors = []
    for place, seen in enumerate(observations):
        others = [*observations[:place], *observations[place + 1 :]]
        costs = fit_costs(others, hints, host_seconds)
        errors.append(predicted(seen.work, costs, host_seconds) / seen.seconds - 1)
    if not errors:
        return _MOST_SPREAD
    # 1.28 standard deviations hold 80 %; the median instead of the mean square, for one disturbed step is no news
    typical = sorted(abs(error) for error in errors)[len(errors) // 2] / 0.6745
    usual = min(max(_LEAST_SPREAD, 1.28 * typical), _MOST_SPREAD)
    return max(
        usual, own_miss(observations, fit_costs(observations, hints, host_seconds), host_seconds)
    )


def own_miss(
    observations: Sequence[Observation], costs: Mapping[str, float], host_seconds: float = 0.0
) -> float:
    """Half the range that holds four of five of the steps which the costs were fitted to; 0 where it is within the usual.

    A fit always lies nearer to its own steps than to others, so only what is beyond _MOST_SPREAD tells anything.
    """
    ratios = [predicted(seen.work, costs, host_seconds) / seen.seconds for seen in observations]
    misses = sorted(max(ratio, 1 / ratio) - 1 for ratio in ratios)
    held = misses[min(int(_HELD * len(misses)), len(misses) - 1)] if misses else 0.0
    return min(held, _WIDEST) if held > _MOST_SPREAD else 0.0


def predicted(w: Workload, costs: Mapping[str, float], host_seconds: float = 0.0) -> float:
    """Seconds of one step on one device."""
    busy = sum(costs[kind] * amount for kind, amount in work(w).items())
    return busy + waiting(busy, micro_kernels(w) * w.accumulation * host_seconds)


def refine(calibration: Calibration, config: RunConfig, seconds: float) -> Calibration:
    """With what a finished training measured: one more ratio, that moves later predictions part of the way."""
    dtype = calibration.dtype if config.dtype == "auto" else config.dtype
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
