"""The problem that fit/speed.py solves: constants with priors, effects of classes, cards, projects and families, and Gauss-Newton steps
over the runs' logarithms of time.

>>> start, sigma = PRIORS["bandwidth"]  # STREAM-like kernels reach 0.80 to 0.93 of the specification
>>> round(start * math.exp(-sigma), 2), round(start * math.exp(sigma), 2)
(0.75, 0.96)
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from fit.ceilings import ceilings
from fit.runs import Run
from onecard.facts.gpus import Device, all_gpus
from onecard.planner.stacks import OWN
from onecard.planner.step_counts import Fit
from onecard.planner.step_time import code_of, step_parts

# (start, sigma of the logarithm): what physics and kernel benchmarks say before any run is seen
PRIORS = {
    # a model's matmuls against the best large one, apart from what tiles and waves cost
    "matmul": (0.96, 0.04),
    "tile_seconds": (1e-6, 0.5),  # fill and drain of a tile: a microsecond or so
    # of a wave of tiles: half on average, less what a good choice of tile saves
    "wave": (0.35, 0.3),
    # FLOP/s of a unit at which half of the time goes to exponentials: FlashAttention-2, 3
    "attention_rate": (4.5e12, 0.4),
    "old_attention": (2.0, 0.3),
    "bandwidth": (0.85, 0.12),  # STREAM-like kernels reach 0.80–0.93 of the specification
    "eager_bytes": (1.1, 0.2),
    # of the bytes counted for RMSNorm and rotary positions written out in fp32: some people's take fewer steps, or are in bf16
    "written_out": (0.9, 0.3),
    "cache_hits": (0.3, 0.5),  # of a layer's bytes, where its stream is far smaller than the cache
    "kernel_seconds": (3e-6, 0.3),
    "host_seconds": (7e-6, 0.3),
    "dropout": (1.2, 0.1),  # masks drawn in every block and inside attention
    "odd_vocab": (2.0, 0.2),
    # two ladders in which only the vocabulary changes (r134 and r135, c025 and c026): 3 and 4 % of a step
    "odd_vocab_compiled": (1.15, 0.15),
    "half_rate": (1.1, 0.04),
    "power": (1 / 3, 0.3),  # of the watts a unit has, in what it sustains: a clock costs its cube
    "overlap": (0.5, 0.3),
    # of code that is not compiled, against Inductor's own launcher: the dispatcher, autocast and autograd for every kernel
    "eager_host": (2.0, 0.5),
    "textbook_host": (2.0, 0.4),  # Python between the kernels of code written to be read
    # of other people's code that is not compiled, where every micro-batch is a step: loss read, batch fetched, lines printed each time
    "single_step": (1.0, 0.15),
}
# How far (logarithm) classes, cards, projects and families scatter around one another, before any row is seen
CLASS_SIGMA, CARD_SIGMA, CACHE_SIGMA = 0.06, 0.06, 0.15
STACK_SIGMA, FAMILY_SIGMA, ROW_SIGMA = 0.06, 0.15, 0.06
# a laptop's watts are its maker's choice, from a third to all of what the chip may draw
LAPTOP_SIGMA = 0.25
STACK_STARTS = {"llm.c": math.log(0.93)}  # hand-written CUDA is taken to be 7 % faster
BASE = "nanogpt"  # the project whose code stands in for ours: plain PyTorch, compiled, of the same shape
STEPS = 7  # Gauss-Newton steps; the fit does not move after five


@cache
def usual_watts() -> dict[str, float]:
    """The middle of the watts that a unit has, class by class; laptops, whose watts are their maker's choice, left out."""
    classes: dict[str, list[float]] = {}
    for device in all_gpus():
        if device.kind == "cuda" and "Laptop" not in device.name:
            classes.setdefault(device.rate_class, []).append(device.watts / device.units)
    return {name: statistics.median(values) for name, values in sorted(classes.items())}


def usable(run: Run) -> bool:
    """Rows to fit on: readable, with a time, not second-hand (quality C)."""
    flags = run.row.get("flags", "")
    return (
        tested(run)
        and "includes the lazy torch.compile" not in flags
        and "fp8" not in run.row.get("dtype", "")
    )


def tested(run: Run) -> bool:
    return (
        run.trouble is None
        and run.time_trouble is None
        and run.step_seconds is not None
        and run.quality != "C"
    )


def predicted_seconds(run: Run, fit: Fit) -> float:
    assert run.workload is not None
    assert run.device is not None
    return sum(step_parts(run.workload, run.device, fit).values())


def measured_seconds(run: Run) -> float:
    assert run.step_seconds is not None
    return run.step_seconds


@dataclass(frozen=True)
class Problem:
    """The rows with what each is a member of; `theta` holds the logarithms of all constants and effects."""

    rows: list[Run]
    shares: dict[str, Any]  # ceilings
    names: list[str]
    start: np.ndarray
    sigma: np.ndarray
    measured: np.ndarray
    family_place: np.ndarray  # where in theta each row's family effect is
    robust: np.ndarray  # which of theta may be odd: families and projects

    @classmethod
    def of(cls, rows: list[Run], shares: dict[str, Any]) -> "Problem":
        devices = [run.device for run in rows if run.device]
        effects = {
            **{f"class {d.rate_class}": (0.0, CLASS_SIGMA) for d in devices},
            **{f"cache {d.architecture}": (0.0, CACHE_SIGMA) for d in devices},
            **{f"card {d.name}": (0.0, _card_sigma(d)) for d in devices},
            **{
                f"stack {stack_name(r)}": (STACK_STARTS.get(stack_name(r), 0.0), STACK_SIGMA)
                for r in rows
            },
            **{f"family {_group(r)}": (0.0, FAMILY_SIGMA) for r in rows},
        }
        priors = {n: (math.log(start), sigma) for n, (start, sigma) in PRIORS.items()}
        every = {**priors, **dict(sorted(effects.items()))}
        return cls(
            rows,
            shares,
            list(every),
            np.array([start for start, _ in every.values()]),
            np.array([sigma for _, sigma in every.values()]),
            np.log([measured_seconds(run) for run in rows]),
            np.array([list(every).index(f"family {_group(run)}") for run in rows]),
            np.array([name.startswith(("family", "stack")) for name in every]),
        )

    def fit_of(self, theta: np.ndarray) -> Fit:
        value = dict(zip(self.names, map(float, np.exp(theta)), strict=True))

        def effects(kind: str) -> dict[str, float]:
            return {n.split(" ", 1)[1]: v for n, v in value.items() if n.startswith(f"{kind} ")}

        stacks = effects("stack")
        stacks[OWN] = stacks.get(BASE, 1.0)
        return {
            **{name: value[name] for name in PRIORS},
            "classes": effects("class"),
            "cards": effects("card"),
            "caches": effects("cache"),
            "stacks": stacks,
            "ceilings": self.shares,
            "watts": usual_watts(),
        }

    def touching(self, run: Run) -> list[int]:
        """Which constants and effects the prediction of a row depends on through the model; not its stack and family."""
        assert run.device is not None
        d = run.device
        own = [f"class {d.rate_class}", f"cache {d.architecture}", f"card {d.name}"]
        return [*range(len(PRIORS)), *(self.names.index(name) for name in own)]

    def linear(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log predicted (with family effects) and its derivatives by theta."""
        fit = self.fit_of(theta)
        moved: dict[int, Fit] = {}
        predicted = np.zeros(len(self.rows))
        slopes = np.zeros((len(self.rows), len(theta)))
        for r, run in enumerate(self.rows):
            here = math.log(predicted_seconds(run, fit))
            family = self.family_place[r]
            predicted[r] = here + theta[family]
            slopes[r, family] = 1.0
            slopes[r, self.names.index(f"stack {stack_name(run)}")] = 1.0
            for i in self.touching(run):
                if i not in moved:
                    moved[i] = self.fit_of(_nudged(theta, i))
                slopes[r, i] = (math.log(predicted_seconds(run, moved[i])) - here) / _NUDGE
        return predicted, slopes

    def weights(self, misses: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Of each row: a family has one vote, as in the ranges (a sweep of one script is no forty opinions), and an odd row pulls,
        but not with its square."""
        sizes = np.bincount(self.family_place, weights=kept)[self.family_place]
        sigma = ROW_SIGMA * np.sqrt(np.maximum(1.0, sizes))
        z = misses / sigma
        return kept / (sigma**2 * np.sqrt(1 + z**2))

    def solve(
        self, theta: np.ndarray, predicted: np.ndarray, slopes: np.ndarray, kept: np.ndarray
    ) -> np.ndarray:
        """One step: the theta that fits the linearised rows best, under the priors; odd families pull less too."""
        weight = self.weights(self.measured - predicted, kept)
        z = (theta - self.start) / self.sigma
        robust = self.robust
        prior = 1 / (self.sigma**2 * np.where(robust, np.sqrt(1 + z**2), 1.0))
        target = self.measured - predicted + slopes @ theta
        left = slopes.T @ (weight[:, None] * slopes) + np.diag(prior)
        right = slopes.T @ (weight * target) + prior * self.start
        return np.asarray(np.linalg.solve(left, right))


_NUDGE = 1e-4


def _nudged(theta: np.ndarray, place: int) -> np.ndarray:
    moved = theta.copy()
    moved[place] += _NUDGE
    return moved


def stack_name(run: Run) -> str:
    assert run.workload is not None
    return code_of(run.workload)


def _card_sigma(device: Device) -> float:
    return LAPTOP_SIGMA if "Laptop" in device.name else CARD_SIGMA


def _group(run: Run) -> str:
    return f"{run.family}, {stack_name(run)}"


@dataclass(frozen=True)
class Fitted:
    """The constants at their best and the linearisation there, from which fits without some families follow at once."""

    problem: Problem
    theta: np.ndarray
    predicted: np.ndarray
    slopes: np.ndarray
    thetas: dict[frozenset[str], np.ndarray] = field(default_factory=dict)  # without some families

    @property
    def fit(self) -> Fit:
        return self.problem.fit_of(self.theta)

    @property
    def effects(self) -> dict[str, float]:
        """Each family's own factor within its project."""
        return {
            name.split(" ", 1)[1]: math.exp(value)
            for name, value in zip(self.problem.names, self.theta, strict=True)
            if name.startswith("family ")
        }

    def without(self, families: set[str] | frozenset[str]) -> np.ndarray:
        """Theta without these families, by one more linear step (two, so that the weights settle)."""
        known = self.thetas.get(frozenset(families))
        if known is not None:
            return known
        kept = np.array([run.family not in families for run in self.problem.rows])
        theta = self.theta
        for _ in range(2):
            predicted = self.predicted + self.slopes @ (theta - self.theta)
            theta = self.problem.solve(theta, predicted, self.slopes, kept)
        self.thetas[frozenset(families)] = theta
        return theta

    def fit_without(self, families: set[str] | frozenset[str]) -> Fit:
        """The constants without these families; what only they had is not known then."""
        fit = self.problem.fit_of(self.without(families))
        kept = [run.device for run in self.problem.rows if run.family not in families]
        seen = {device.rate_class for device in kept if device}
        return {**fit, "classes": {k: v for k, v in fit["classes"].items() if k in seen}}

    def misses(self, families: set[str] | frozenset[str], of: str) -> list[tuple[Run, float]]:
        """log(measured / predicted) of a family's rows by constants that saw none of `families`, linearised."""
        theta = self.without(families)
        log = self.predicted + self.slopes @ (theta - self.theta) - theta[self.problem.family_place]
        misses = self.problem.measured - log
        return [
            (run, float(misses[r])) for r, run in enumerate(self.problem.rows) if run.family == of
        ]


def fit_speed(runs: Iterable[Run], shares: dict[str, Any] | None = None) -> Fitted:
    """The constants that fit these runs best."""
    rows = [run for run in runs if usable(run)]
    problem = Problem.of(rows, shares or ceilings())
    theta, kept = problem.start, np.ones(len(rows), dtype=bool)
    for _ in range(STEPS):
        theta = problem.solve(theta, *problem.linear(theta), kept)
    return Fitted(problem, theta, *problem.linear(theta))
