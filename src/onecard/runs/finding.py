"""A finding: one sentence with its evidence, by the rule that found it."""

import math
from dataclasses import dataclass, field
from typing import Any

from onecard.messages import Note


@dataclass(frozen=True)
class Finding:
    """`note.code` is the rule's name; `gain` the share of the step's time that `plan` expects from what it advises."""

    note: Note
    evidence: dict[str, Any] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    gain: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.note.code,
            "text": str(self.note),
            "evidence": {key: _plain(value) for key, value in self.evidence.items()},
            "runs": list(self.runs),
            "gain": self.gain,
        }


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
