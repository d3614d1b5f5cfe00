"""What both fits end with: leaving families out, the range from what was left out, and the file of constants.

>>> leave_out([("a", 1), ("b", 2)], lambda item: item[0], lambda rest: sum(n for _, n in rest))
{'a': 2, 'b': 1}
>>> [round(x, 2) for x in quantiles([0.0, 1.0, 2.0], ["a", "a", "b"], (0.1, 0.9))]
[0.0, 2.0]
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Fitted = TypeVar("Fitted")
ROWS_OF_A_FAMILY = (
    8  # a family counts alike up to so many rows: one sweep does not stand for the world
)


def leave_out(
    items: Sequence[Item], family: Callable[[Item], str], fit: Callable[[list[Item]], Fitted]
) -> dict[str, Fitted]:
    """For each family, the constants fitted on all the others."""
    names = sorted({family(item) for item in items})
    return {name: fit([item for item in items if family(item) != name]) for name in names}


def quantiles(
    values: Sequence[float], families: Sequence[str], shares: Iterable[float]
) -> list[float]:
    """Quantiles of the misses, each family counting alike up to ROWS_OF_A_FAMILY rows; linear between the middles of votes."""
    sizes = Counter(families)
    ordered = sorted(
        zip(values, (1 / max(ROWS_OF_A_FAMILY, sizes[name]) for name in families), strict=True)
    )
    places, reached = [], 0.0
    for _, vote in ordered:
        places.append(reached + vote / 2)
        reached += vote
    return [_between(share * reached, places, [value for value, _ in ordered]) for share in shares]


def _between(at: float, places: list[float], values: list[float]) -> float:
    if at <= places[0]:
        return values[0]
    for i in range(1, len(places)):
        if at <= places[i]:
            part = (at - places[i - 1]) / (places[i] - places[i - 1])
            return values[i - 1] + part * (values[i] - values[i - 1])
    return values[-1]


def rounded(value: Any) -> Any:
    """Four digits: more would differ from machine to machine."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def write(
    target: Path,
    made: dict[str, Any],
    residuals: Path,
    head: list[str],
    rows: Iterable[list[Any]],
    check: bool,
) -> int:
    """The constants and what they miss by; or, to check, only whether the file is what was made. An exit code."""
    text = json.dumps(rounded(made), indent=1, sort_keys=True) + "\n"
    if check:
        same = target.read_text(encoding="utf-8") == text
        print(f"{target.name} is {'' if same else 'NOT '}what its script makes")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    with residuals.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(head)
        table.writerows(rows)
    print(f"wrote {target.name} and {residuals.name}: spread {made['spread']}")
    return 0
