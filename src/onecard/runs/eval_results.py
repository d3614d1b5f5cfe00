"""What an evaluation found, kept in the run's folder so that nothing is measured twice.

out/evals/hellaswag-step_00000500.json
"""

import contextlib
import hashlib
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard.files import write_json
from onecard.untrusted import finite, printable, read_json

SCHEMA = "onecard.eval/2"
FOLDER = "evals"
TASK_TITLES = {"hellaswag": "HellaSwag", "lambada": "LAMBADA"}
Z = 1.959964  # standard deviations on either side of a 95 % interval
_MOST_FILES = 10_000
_SHOWN = 200  # characters of a name in another program's file


@dataclass(frozen=True)
class Figure:
    """One figure of a result: a share with its 95 % interval, or a plain number without."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def interval(share: float, items: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many items.

    >>> [round(bound, 4) for bound in interval(0.289, 1000)]
    [0.2618, 0.3179]
    """
    spread = Z * Z / items
    middle = (share + spread / 2) / (1 + spread)
    half = Z * math.sqrt(share * (1 - share) / items + spread / (4 * items)) / (1 + spread)
    return max(middle - half, 0.0), min(middle + half, 1.0)


@dataclass(frozen=True)
class NextLevel:
    """The released model just above a result, and how many more tokens of the same training should reach it."""

    model: str
    tokens: float
    tokens_low: float
    tokens_high: float


@dataclass(frozen=True)
class Result:
    """One task (or text) on one model."""

    model: str
    step: int
    task: str
    protocol: str
    items: int
    truncated: int  # items whose context did not fit
    figures: tuple[Figure, ...]
    seconds: float
    of: int | None = None  # items of the whole set, where --limit took fewer
    key: str = ""  # digest of the weights, the items and the options
    tokenizer: str = ""
    next_level: NextLevel | None = None  # where the loss law and the public pairs reach it

    def figure(self, name: str) -> Figure | None:
        return next((figure for figure in self.figures if figure.name == name), None)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> "Result":
        """ValueError where the value is not a result."""
        try:
            if value["schema"] != SCHEMA:
                raise ValueError("another schema")
            figures = tuple(_figure(figure) for figure in value["figures"])
            of = value["of"]
            return cls(
                model=str(value["model"])[:_SHOWN],
                step=int(value["step"]),
                task=str(value["task"])[:_SHOWN],
                protocol=str(value["protocol"])[:_SHOWN],
                items=int(value["items"]),
                truncated=int(value["truncated"]),
                figures=figures,
                seconds=float(value["seconds"]),
                of=None if of is None else int(of),
                key=str(value["key"])[:_SHOWN],
                tokenizer=str(value["tokenizer"])[:_SHOWN],
                next_level=_next_level(value.get("next_level")),
            )
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a result: {error}") from None


def _figure(value: Any) -> Figure:
    numbers = [value["value"], value["low"], value["high"]]
    if not all(n is None or finite(n) is not None for n in numbers):
        raise ValueError("a figure is not a number")
    return Figure(str(value["name"])[:_SHOWN], float(numbers[0]), numbers[1], numbers[2])


def _next_level(value: Any) -> NextLevel | None:
    if value is None:  # also results of before November 2026
        return None
    numbers = [value["tokens"], value["tokens_low"], value["tokens_high"]]
    if any(finite(n) is None for n in numbers):
        raise ValueError("tokens are not a number")
    return NextLevel(str(value["model"])[:_SHOWN], *map(float, numbers))


def keep(result: Result, run_folder: Path) -> Path:
    """Write the result into the run's folder; a newer one of the same task and step takes its place."""
    folder = run_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", printable(result.task)).strip("._") or "task"
    if len(name) > 80 or name != result.task:  # two tasks may not share a file
        name = f"{name[:80]}-{hashlib.sha256(result.task.encode()).hexdigest()[:8]}"
    path = folder / f"{name}-step_{result.step:08d}.json"
    write_json(path, result.to_json())
    return path


def kept(run_folder: Path) -> list[Result]:
    """The results in a run's folder, newest step last; files that are none are passed over."""
    results = []
    with contextlib.suppress(OSError):
        for path in sorted((run_folder / FOLDER).glob("*.json"))[:_MOST_FILES]:
            with contextlib.suppress(OSError, ValueError):
                results.append(Result.from_json(read_json(path, most_bytes=1 << 20)))
    return sorted(results, key=lambda result: result.step)


def main_figure(result: Result) -> Figure | None:
    """The one figure that stands for a result: the length-normalised accuracy, the accuracy, the bits per byte."""
    for name in ("acc_norm", "acc", "bits_per_byte"):
        if (figure := result.figure(name)) is not None:
            return figure
    return result.figures[0] if result.figures else None


def newest(results: list[Result]) -> dict[str, Result]:
    """The newest result of each task."""
    return {result.task: result for result in results}
