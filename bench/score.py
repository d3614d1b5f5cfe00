"""What a table of predictions is scored by: shared by accuracy.py and loss_accuracy.py.

>>> score([Answer("a", "f", "time", 1.1, 0.9, 1.3, 1.0)])["median_abs_error"]
0.1
"""

import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One prediction beside its measurement; or the reason why there is none."""

    id: str
    family: str
    kind: str
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    skipped: str | None = None
    note: str = ""
    foreign: bool = False
    quality: str = ""
    at: float | None = None  # tokens of a curve's point

    @property
    def scored(self) -> bool:
        return self.predicted is not None and self.measured is not None and self.skipped is None

    def as_json(self) -> dict[str, Any]:
        return {key: _tidy(value) for key, value in asdict(self).items()}


def into_pipe(main: Callable[[], int]) -> int:
    """A script's exit code; 0 where the reader of its output went away, as `head` does."""
    try:
        code = main()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def score(answers: Iterable[Answer], relative: bool = True) -> dict[str, Any]:
    """Median and 90th-percentile absolute error, signed bias, and how many measurements the range held; as fractions of
    the measurement, or in its own unit."""
    kept = [a for a in answers if a.scored]
    if not kept:
        return {
            "n": 0,
            "median_abs_error": None,
            "p90_abs_error": None,
            "bias": None,
            "coverage": None,
        }
    errors = [(a.predicted - a.measured) / (a.measured if relative else 1) for a in kept]  # type: ignore[operator]
    sizes = sorted(map(abs, errors))
    held = sum(a.low <= a.measured <= a.high for a in kept)  # type: ignore[operator]
    return {
        "n": len(kept),
        "median_abs_error": _tidy(quantile(sizes, 0.5)),
        "p90_abs_error": _tidy(quantile(sizes, 0.9)),
        "bias": _tidy(quantile(sorted(errors), 0.5)),
        "coverage": _tidy(held / len(kept)),
    }


def nats(found: dict[str, Any]) -> dict[str, Any]:
    """score()'s answer with the unit in its names."""
    return {
        "n": found["n"],
        "median_abs_error_nats": found["median_abs_error"],
        "p90_abs_error_nats": found["p90_abs_error"],
        "bias_nats": found["bias"],
        "coverage": found["coverage"],
    }


def by_family(answers: list[Answer], relative: bool = True) -> dict[str, dict[str, Any]]:
    return {
        f: score([a for a in answers if a.family == f], relative)
        for f in sorted({a.family for a in answers})
    }


def coverage_interval(answers: list[dict[str, Any]], draws: int = 2000) -> tuple[float, float]:
    """80 % interval of the coverage: families drawn again with their rows, since rows of one family fail together."""
    families: dict[str, list[bool]] = {}
    for row in answers:
        if not row["skipped"]:
            held = row["low"] <= row["measured"] <= row["high"]
            families.setdefault(row["family"], []).append(held)
    chance, groups = random.Random(0), list(families.values())
    found = []
    for _ in range(draws):
        drawn = [held for _ in groups for held in chance.choice(groups)]
        found.append(sum(drawn) / len(drawn))
    found.sort()
    return found[draws // 10], found[draws - draws // 10]


def is_geforce(card: str) -> bool:
    """RTX 2060 to 5090, laptops' too; not the workstations' RTX 4000 Ada and its like."""
    return bool(re.match(r"RTX \d{4}( |$)(?!Ada)", card))


def reasons(answers: Iterable[Answer]) -> dict[str, int]:
    """How many answers were left out for each reason, the most usual first; what a row says of itself is left out of it.

    >>> one, two = (Answer(id, "f", "time", skipped=f"n_layer = {id!r} is not a number") for id in "ab")
    >>> reasons([one, two])
    {'n_layer = … is not a number': 2}
    """
    counts: dict[str, int] = {}
    for answer in answers:
        if answer.skipped:
            plain = re.sub(r"'[^']*'|(?<== )\S+", "…", answer.skipped)
            counts[plain] = counts.get(plain, 0) + 1
    return dict(sorted(counts.items(), key=lambda each: -each[1]))


def family_mean(families: dict[str, dict[str, Any]], field: str) -> float | None:
    """The mean over families, so that one big sweep does not hide the rest."""
    values = [each[field] for each in families.values() if each[field] is not None]
    return _tidy(sum(values) / len(values)) if values else None


def quantile(ordered: list[float], share: float) -> float:
    """Linear between neighbours, as numpy's default."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _tidy(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def nats_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
