"""How much the choice of size matters: half and double, the flat part, what the fit's error and Chinchilla make of it.

around = neighbours(search, best)
sensitivity(search, best, around).flat
"""

import math
from dataclasses import dataclass

from onecard.advise.limits import FLAT
from onecard.advise.schedule import Candidate
from onecard.advise.search import Search
from onecard.advise.shapes import PROPORTIONS, Shape
from onecard.messages import Note
from onecard.planner.optimal import compute_optimal_tokens

FLAT_TIME = 0.05  # where a loss is asked for: the time to reach it


@dataclass(frozen=True)
class Size:
    """One point of the chart: the best run of a size in this budget."""

    params: int
    n_layer: int
    n_embd: int
    tokens: int
    seconds: float
    loss: float
    in_support: bool  # no shorter for its size than public runs


@dataclass(frozen=True)
class Sensitivity:
    """How much the choice of size matters."""

    half: Size | None  # None: it does not fit, or no such shape is in the public range of sizes
    double: Size | None
    flat: bool  # sizes that differ by a factor of 1.5 and more are within 0.01 nats of the best
    flat_params: tuple[int, int]  # the smallest and largest size within 0.01 nats
    fit_error: float  # nats: half the 80 % range of the expected loss
    unsure_params: tuple[int, int]  # the sizes within the fit's error
    chinchilla: Size | None  # the size that Chinchilla's law would choose for this budget
    notes: list[Note]


def neighbours(search: Search, best: Candidate) -> list[Candidate]:
    """The best run of each of a ladder of sizes around the choice, smallest first; those that do not fit left out."""
    chosen = Shape(best.config.n_layer, best.config.n_embd)
    ladder = [
        shape
        for shape in search.shapes
        if shape == chosen
        or (
            shape.n_layer == round(shape.n_embd / PROPORTIONS[0])
            and 1 / 12 < search.params(shape) / best.params < 12
        )
    ]
    return [run for shape in ladder if (run := search.run(shape)) is not None]


def size_of(run: Candidate) -> Size:
    return Size(
        run.params,
        run.config.n_layer,
        run.config.n_embd,
        run.tokens,
        run.seconds,
        run.loss,
        run.estimate.in_support,
    )


def sensitivity(search: Search, best: Candidate, runs: list[Candidate]) -> Sensitivity:
    error = (best.estimate.final.high - best.estimate.final.low) / 2
    half, double = (_nearest(search, best.params * factor) for factor in (0.5, 2.0))
    everything = [*runs, best, *(run for run in (half, double) if run)]
    until = search.budget.loss is not None
    flat = _within(
        everything, search.score(best) * (1 + FLAT_TIME) if until else best.loss + FLAT, search
    )
    unsure = _within(everything, search.score(best) * 2 if until else best.loss + error, search)
    optimal = min(
        everything, key=lambda run: abs(math.log(run.tokens / compute_optimal_tokens(run.params)))
    )
    is_flat = flat[1] >= 1.5 * flat[0]
    notes = _time_notes(flat, error) if until else _loss_notes(flat, unsure, error, is_flat)
    if double is None:
        notes.append(Note("no-double"))
    if optimal.params != best.params and not until:
        notes.append(
            Note(
                "chinchilla",
                params=optimal.params,
                tokens=optimal.tokens,
                difference=optimal.loss - best.loss,
            )
        )
    return Sensitivity(
        half=size_of(half) if half else None,
        double=size_of(double) if double else None,
        flat=is_flat,
        flat_params=flat,
        fit_error=error,
        unsure_params=unsure,
        chinchilla=size_of(optimal),
        notes=notes,
    )


def _loss_notes(
    flat: tuple[int, int], unsure: tuple[int, int], error: float, is_flat: bool
) -> list[Note]:
    figures = {"low": flat[0], "high": flat[1], "flat": FLAT}
    return [
        Note("flat", **figures)
        if is_flat
        else Note("sharp", **figures)
        if flat[0] < flat[1]
        else Note("sharpest", **figures),
        Note("fit-error", error=error, low=unsure[0], high=unsure[1]),
    ]


def _time_notes(flat: tuple[int, int], error: float) -> list[Note]:
    return [
        Note("flat-time", low=flat[0], high=flat[1], share=FLAT_TIME),
        Note("fit-error-time", error=error),
    ]


def _nearest(search: Search, params: float) -> Candidate | None:
    """The run of the shape nearest to a size; None if no shape is near, it does not fit, or no public run is so short."""
    shape = min(
        search.shapes, key=lambda candidate: abs(math.log(search.params(candidate) / params))
    )
    return search.run(shape) if abs(math.log(search.params(shape) / params)) < 0.2 else None


def _within(runs: list[Candidate], most: float, search: Search) -> tuple[int, int]:
    """The smallest and the largest size that score no worse than `most`."""
    near = [run.params for run in runs if search.score(run) <= most]
    return min(near), max(near)
