"""state.json of a checkpoint, field by field: what docs/formats.md promises is checked before anything relies on it.

The checksum finds damage; these checks find a file that somebody wrote by hand or with another program.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.untrusted import finite

_MOST = 2**53  # tokens, rows, bytes: what JSON carries exactly
_MOST_PARTS = 100_000
_DIGEST = re.compile(r"[0-9a-f]{64}")


def checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def check_state(state: Mapping[str, Any], file_names: Iterable[str]) -> None:
    """ValueError, naming the field, unless every field is there and of its kind."""
    for name, good in _FIELDS.items():
        if name not in state:
            raise ValueError(f"{name} is missing")
        if not good(state[name]):
            raise ValueError(f"{name} is not what it must be ({str(state[name])[:60]!r})")
    for name, good in _OPTIONAL.items():
        if name in state and not good(state[name]):
            raise ValueError(f"{name} is not what it must be ({str(state[name])[:60]!r})")
    for name in file_names:
        entry = state["files"].get(name)
        if not (isinstance(entry, dict) and _DIGEST.fullmatch(str(entry.get("sha256")))):
            raise ValueError(f"files has no checksum of {name}")
    try:
        RunConfig.from_values(state["config"])
    except UserError as error:
        raise ValueError(f"config: {error.message}") from None


def check_parts(state: Mapping[str, Any]) -> None:
    """The fields that a checkpoint in several parts has beside the others."""
    parts, tensors = state.get("parts"), state.get("tensors")
    if not (isinstance(parts, int) and _at_least_one(parts) and parts <= _MOST_PARTS):
        raise ValueError(f"parts is not what it must be ({str(parts)[:60]!r})")
    if not isinstance(tensors, dict):
        raise ValueError("tensors is missing")
    for name, known in tensors.items():
        good = (
            isinstance(known, dict) and _counts(known.get("shape")) and _counts(known.get("starts"))
        )
        if not (good and known["shape"] and len(known["starts"]) == parts):
            raise ValueError(f"tensors says nothing of {name[:80]}")


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _at_least_one(value: Any) -> bool:
    return _count(value) and value >= 1


def _number(value: Any) -> bool:
    return finite(value) is not None


def _amount(value: Any) -> bool:
    return _number(value) and value >= 0


def _loss(value: Any) -> bool:
    return value is None or _number(value)


def _watch(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"steps", "mean", "variance"}
        and _count(value["steps"])
        and _number(value["mean"])
        and _amount(value["variance"])
    )


_SCALER = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def _scaler(value: Any) -> bool:
    """torch's GradScaler; empty where the precision needs none."""
    return isinstance(value, dict) and (
        not value or (set(value) == set(_SCALER) and all(map(_amount, value.values())))
    )


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_count, value))


def _object(value: Any) -> bool:
    return isinstance(value, dict)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "step": _count,
    "tokens": _count,
    "position": _amount,
    "place": _count,
    "seconds": _amount,
    "kwh": _amount,
    "micro_batch": _at_least_one,
    "val_loss": _loss,
    "best_val_loss": _loss,
    "skipped": _counts,
    "watch": _watch,
    "scaler": _scaler,
    "config": _object,
    "log_offset": _count,
    "files": _object,
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {
    "processes": _at_least_one,
    "torch": lambda value: isinstance(value, str),
    "tasks_seconds": _amount,
    "identity": _object,  # checkpoints of before November 2026 have none
}
