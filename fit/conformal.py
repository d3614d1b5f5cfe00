"""80 % ranges by conformal prediction over families: from the misses of families that the constants never saw.

>>> misses = {"a": [0.1, 0.2], "b": [-0.1], "c": [0.0], "d": [0.3], "e": [-0.2]}
>>> [round(end, 2) for end in interval(misses)]
[-0.2, 0.3]

Each family has one vote, shared by its rows, and one vote more lies beyond the last miss: for a row drawn from a new family,
families being exchangeable, the range then holds at least 80 % (hierarchical conformal prediction; Lee, Barber and Willett
2023, arXiv 2306.06342). The misses are leave-family-out ones of refitted constants, for which the theorem guarantees 60 % and
practice shows about the 80 % asked for (the jackknife+; Barber, Candès, Ramdas and Tibshirani 2021). Kinds of runs that are
harder to predict have wider ranges: a miss counts in units of its kind's usual one (normalised scores).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

COVERAGE = 0.8
POOLED = 1.0  # families that all kinds together count for in a kind's usual miss


@dataclass(frozen=True)
class Miss:
    """How far a row of a family that was left out lies from its prediction."""

    kind: str
    family: str
    size: float  # measured less predicted, in logarithms or nats


def ranges(
    misses: Iterable[Miss], kinds: Iterable[str], coverage: float = COVERAGE, beyond: float = 1.0
) -> dict[str, tuple[float, float]]:
    """For each kind of run, the ends between which a new family's row lies with that probability.

    `beyond` 0 leaves out the vote beyond the last miss: with a dozen families it would make the widest miss of all the range.
    What is promised is then less by 2 / (families + 1)."""
    rows = list(misses)
    usual = usual_misses(rows, kinds)
    scores: dict[str, list[float]] = {}
    for row in rows:
        scores.setdefault(row.family, []).append(row.size / usual[row.kind])
    low, high = interval(scores, coverage, beyond)
    return {kind: (low * size, high * size) for kind, size in usual.items()}


def usual_misses(rows: Sequence[Miss], kinds: Iterable[str]) -> dict[str, float]:
    """The families' mean absolute miss, kind by kind, pooled towards that of all rows."""

    def by_family(kept: Iterable[Miss]) -> list[float]:
        families: dict[str, list[float]] = {}
        for row in kept:
            families.setdefault(row.family, []).append(abs(row.size))
        return [statistics.mean(sizes) for sizes in families.values()]

    overall = statistics.mean(by_family(rows))
    answer = {}
    for kind in kinds:
        own = by_family(row for row in rows if row.kind == kind)
        middle = statistics.mean(own) if own else overall
        answer[kind] = (len(own) * middle + POOLED * overall) / (len(own) + POOLED)
    return answer


def interval(
    misses: Mapping[str, Sequence[float]], coverage: float = COVERAGE, beyond: float = 1.0
) -> tuple[float, float]:
    """The same without kinds; one half of what may lie outside on either side."""
    tail = (1 - coverage) / 2
    below = {name: [-miss for miss in row] for name, row in misses.items()}
    return -_end(below, tail, beyond), _end(misses, tail, beyond)


def _end(misses: Mapping[str, Sequence[float]], tail: float, beyond: float) -> float:
    """The smallest miss with at most `tail` of the votes above it, the vote beyond the last one counted."""
    families = [row for row in misses.values() if row]
    votes = sorted((miss, 1 / len(row)) for row in families for miss in row)
    allowed = tail * (len(families) + beyond) - beyond
    above = 0.0
    for miss, vote in reversed(votes):
        above += vote
        if above > allowed + 1e-9:
            return miss
    return votes[0][0] if votes else 0.0
