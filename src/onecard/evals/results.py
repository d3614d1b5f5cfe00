"""What an evaluation found, kept in the run's folder so that nothing is measured twice.

out/evals/hellaswag-step_00000500.json
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onecard.evals.tasks import Figure
from onecard.files import write_json
from onecard.untrusted import read_json

SCHEMA = "onecard.eval/1"


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

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> "Result":
        """ValueError where the value is not a result."""
        try:
            if value["schema"] != SCHEMA:
                raise ValueError("another schema")
            figures = tuple(Figure(**figure) for figure in value["figures"])
            if not all(math.isfinite(figure.value) for figure in figures):
                raise ValueError("a figure is not a number")
            return cls(
                model=str(value["model"]),
                step=int(value["step"]),
                task=str(value["task"]),
                protocol=str(value["protocol"]),
                items=int(value["items"]),
                truncated=int(value["truncated"]),
                figures=figures,
                seconds=float(value["seconds"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a result: {error}") from None


def keep(result: Result, run_folder: Path) -> Path:
    folder = run_folder / "evals"
    folder.mkdir(exist_ok=True)
    path = folder / f"{result.task}-step_{result.step:08d}.json"
    write_json(path, result.to_json())
    return path


def kept(run_folder: Path) -> list[Result]:
    """The results in a run's folder, newest step last; files that are none are passed over."""
    found = []
    for path in sorted((run_folder / "evals").glob("*.json")):
        try:
            found.append(Result.from_json(read_json(path, most_bytes=1 << 20)))
        except (OSError, ValueError):
            continue
    return sorted(found, key=lambda result: result.step)
