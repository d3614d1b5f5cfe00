"""Least squares without numpy, for a plan must start in a quarter of a second: a dozen unknowns, none below 0."""

from collections.abc import Sequence


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
