"""Report files of `onecard doctor --report`, read as runs of onecard's own: a step, its config and what it took.

>>> read_report(Path("nowhere.json"))
Traceback (most recent call last):
    ...
ValueError: nowhere.json cannot be read
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.facts.here import find_seen
from onecard.untrusted import printable, read_json

SCHEMA = "onecard.hardware/1"
_MOST_BYTES = 1_000_000
_MOST_SECONDS = 1e4


@dataclass(frozen=True)
class Observed:
    """One measured step of the doctor's own small model."""

    device: Device | None  # None: a card that the table does not have
    mode: str  # eager or compiled
    seconds: float
    planned_seconds: float | None
    peak_bytes: float | None


def read_report(path: Path) -> dict[str, Any]:
    """The file's content, checked; ValueError in a few words where it is none."""
    try:
        content = read_json(path, _MOST_BYTES)
    except OSError:
        raise ValueError(f"{path.name} cannot be read") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} is no report of `onecard doctor`")
    if not isinstance(content.get("checks"), list):
        raise ValueError(f"{path.name} has no checks")
    for key in ("device", "torch", "system", "date", "kind"):
        if not isinstance(content.get(key), str) or len(content[key]) > 200:
            raise ValueError(f"{path.name} has no {key}")
        content[key] = printable(content[key])
    return content


def observed(content: dict[str, Any]) -> list[Observed]:
    """The steps of a report that ended well and carry a time."""
    figures = {
        str(row.get("check")): row["figures"]
        for row in content["checks"]
        if isinstance(row, dict)
        and row.get("status") == "ok"
        and isinstance(row.get("figures"), dict)
    }
    peak = _number(figures.get("memory", {}).get("peak_bytes"), 1e15)
    found = []
    for check, mode in (("step", "eager"), ("compiled step", "compiled")):
        seconds = _number(figures.get(check, {}).get("seconds"), _MOST_SECONDS)
        if seconds is not None:
            planned = _number(figures[check].get("planned_seconds"), _MOST_SECONDS)
            eager_peak = peak if mode == "eager" else None
            found.append(Observed(_device(content), mode, seconds, planned, eager_peak))
    return found


def _device(content: dict[str, Any]) -> Device | None:
    memory = _number(content.get("memory_bytes"), 1e15)
    if content["kind"] != "cuda" or memory is None:
        return None
    try:
        return find_seen(content["device"], int(memory))
    except UserError:
        return None


def _number(value: Any, most: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < most:
        return None
    return float(value)
