"""How much compute a model needs, by reading: as such models were trained, compute-optimal, and the tokens asked for.

>>> from onecard.advise.named_model import named_model
>>> [f"{r.kind} {r.needed_flops:.1e}" for r in readings(named_model("gpt2"), None) if r.kind == "compute_optimal"]
['compute_optimal 2.3e+18']

All by 6·N·D with N the true number of parameters.
"""

from dataclasses import dataclass
from typing import Literal

from onecard.advise.named_model import NamedModel
from onecard.facts.models import known_models
from onecard.planner.optimal import compute_optimal_tokens

NEAR = 0.06  # known models of so nearly the same size tell how such a one was trained
Kind = Literal["asked", "compute_optimal", "config", "as_trained"]


@dataclass(frozen=True)
class Reading:
    """One reading of what is needed. Tokens that were never published are a range, and so is all that follows."""

    kind: Kind
    name: str  # whose: the known model's name, or ""
    tokens: float
    tokens_low: float
    tokens_high: float
    needed_flops: float
    needed_low: float
    needed_high: float
    source: str

    @property
    def published(self) -> bool:
        return self.tokens_low == self.tokens_high


def readings(model: NamedModel, tokens: float | None) -> list[Reading]:
    """Every reading, the one that decides first: the tokens asked for, else compute-optimal."""
    counts = []
    if tokens is not None:
        counts.append(_reading("asked", "", model.params, tokens, tokens, tokens, "--tokens"))
    optimal = compute_optimal_tokens(model.params)
    counts.append(
        _reading(
            "compute_optimal",
            "",
            model.params,
            optimal,
            optimal,
            optimal,
            "Besiroglu et al. 2024, refit of Hoffmann et al. 2022",
        )
    )
    if model.own_tokens is not None:
        counts.append(
            _reading("config", "", model.params, *(model.own_tokens,) * 3, "its own max_iters")
        )
    others = [
        known
        for known in known_models()
        if known.name == model.known or _alike(known.params, known.preset, model)
    ]
    for known in sorted(others, key=lambda known: (known.preset is None, known.tokens)):
        counts.append(
            _reading(
                "as_trained",
                known.name,
                known.params,
                known.tokens,
                known.tokens_low,
                known.tokens_high,
                known.source,
            )
        )
    return counts


def _alike(params: int, preset: str | None, model: NamedModel) -> bool:
    return (preset is not None and preset == model.preset) or abs(params / model.params - 1) < NEAR


def _reading(
    kind: Kind, name: str, params: int, tokens: float, low: float, high: float, source: str
) -> Reading:
    return Reading(
        kind,
        name,
        tokens,
        low,
        high,
        6 * params * tokens,
        6 * params * low,
        6 * params * high,
        source,
    )
