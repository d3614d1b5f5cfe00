"""80 % ranges by conformal prediction over families: from the misses of families that the constants never saw.

>>> misses = {"a": [0.1, 0.2], "b": [-0.1], "c": [0.0], "d": [0.3], "e": [-0.2]}
>>> [round(end, 2) for end in interval(misses)]
[-0.2, 0.3]

Each family has one vote, shared by its rows, and one vote more lies beyond the last miss: for a row drawn from a new family,
families being exchangeable, the range then holds at least 80 % (hierarchical conformal prediction; Lee, Barber and Willett
2023, arXiv 2306.06342). The misses are leave-family-out ones of refitted constants, for which the theorem guarantees 60 % and
practice shows about the 80 % asked for (the jackknife+; Barber, Candès, Ramdas and Tibshirani 2021).
"""

from collections.abc import Mapping, Sequence

COVERAGE = 0.8


def interval(
    misses: Mapping[str, Sequence[float]], coverage: float = COVERAGE
) -> tuple[float, float]:
    """The ends between which a new family's row lies with that probability, one half of the rest on either side."""
    tail = (1 - coverage) / 2
    return -_end({name: [-miss for miss in row] for name, row in misses.items()}, tail), _end(
        misses, tail
    )


def _end(misses: Mapping[str, Sequence[float]], tail: float) -> float:
    """The smallest miss with at most `tail` of the votes above it, the vote beyond the last one counted."""
    families = [row for row in misses.values() if row]
    votes = sorted((miss, 1 / len(row)) for row in families for miss in row)
    allowed = tail * (len(families) + 1) - 1  # one vote is beyond every miss
    above = 0.0
    for miss, vote in reversed(votes):
        above += vote
        if above > allowed + 1e-9:
            return miss
    return votes[0][0] if votes else 0.0


def grouped(
    items: Sequence[tuple[str, str, float]], fewest: int
) -> dict[str, dict[str, list[float]]]:
    """(group, family, miss) by group and family; a group with fewer families borrows those of all the others."""
    every: dict[str, list[float]] = {}
    groups: dict[str, dict[str, list[float]]] = {}
    for group, family, miss in items:
        every.setdefault(family, []).append(miss)
        groups.setdefault(group, {}).setdefault(family, []).append(miss)
    return {g: rows if len(rows) >= fewest else every for g, rows in groups.items()}
