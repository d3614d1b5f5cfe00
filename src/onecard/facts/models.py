"""Models and runs that people compare with: size, tokens (a range where unpublished), losses, sources.

>>> [m.name for m in known_models() if m.preset == "gpt2-xl"]
['GPT-2 1.5B (OpenAI)']
"""

import tomllib
from dataclasses import dataclass, field
from functools import cache

from onecard.facts.data_files import fact_file


@dataclass(frozen=True)
class KnownModel:
    """A published model: size, tokens it was trained on, and the losses it reached."""

    name: str
    params: int
    tokens_low: float
    tokens_high: float
    source: str
    aliases: tuple[str, ...] = ()  # other names people give it
    preset: str | None = None  # the released model of this preset's shape
    # data set → nats per GPT-2 token on its validation text
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """The middle of the range, in ratio."""
        return float((self.tokens_low * self.tokens_high) ** 0.5)

    @property
    def flops(self) -> float:
        """6·N·D."""
        return 6 * self.params * self.tokens


@cache
def known_models() -> tuple[KnownModel, ...]:
    content = tomllib.loads(fact_file("models.toml"))
    return tuple(
        KnownModel(**{**entry, "aliases": tuple(entry.get("aliases", ()))})
        for entry in content["model"]
    )
