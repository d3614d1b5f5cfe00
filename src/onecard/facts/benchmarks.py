"""What the released GPT-2 sizes reach on benchmarks, by task and protocol.

>>> known_figures("hellaswag", "lm-eval").models["GPT-2 124M"]["acc_norm"]
0.3114
"""

import tomllib
from dataclasses import dataclass
from functools import cache

from onecard.facts.data_files import fact_file


@dataclass(frozen=True)
class KnownFigures:
    """The figures of released models on one task under one protocol, the smallest model first."""

    task: str
    protocol: str
    source: str
    models: dict[str, dict[str, float]]


@cache
def _all() -> tuple[KnownFigures, ...]:
    return tuple(
        KnownFigures(**entry) for entry in tomllib.loads(fact_file("benchmarks.toml"))["figure"]
    )


def known_figures(task: str, protocol: str) -> KnownFigures | None:
    return next((f for f in _all() if (f.task, f.protocol) == (task, protocol)), None)
