"""What onecard knows of a config key beside its type: what it affects, its unit, its bounds and its help text.

Each key of RunConfig is declared with `key(...)`; validation, `--keys`, docs/cli.md, the planner's and compare's lists
and what may change on resume all follow from it.

>>> @dataclasses.dataclass
... class Example:
...     steps: int = key(100, "learning", "length of the run", unit="steps", least=1)
>>> facts = facts_of(dataclasses.fields(Example)[0])
>>> facts.unit, sorted(facts.affects)
('steps', ['learning'])
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

# shape     the weights there are, and so whether a checkpoint fits
# batch     which tokens make up one optimizer step
# learning  what is learned from them
# data      which tokens there are
# speed     how fast a step is; its result differs by rounding alone
# memory    how much memory a step takes
# output    what is measured, written and shown, and when the run stops
# machine   where it runs
KINDS: Final = ("shape", "batch", "learning", "data", "speed", "memory", "output", "machine")

MOST_STEPS = 1_000_000_000  # beyond it, a slip of the keyboard


@dataclass(frozen=True)
class KeyFacts:
    """What is known of one key. Bounds: `least` and `most` are allowed values, `above` and `below` are not."""

    affects: frozenset[str]
    help: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    example: str = ""

    @property
    def may_change_on_resume(self) -> bool:
        """Whether a run stays the same run when this key changes: only speed, memory, output or machine differ."""
        return not self.affects & {"shape", "batch", "learning", "data"}


class ByValues:
    """Shown, compared and hashed by the values of its fields. A dataclass with seventy of them would write each out, which takes
    a hundredth of a plan's time."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))


def key(default: Any, affects: str, help: str, **facts: Any) -> Any:
    """A dataclass field with its facts; `affects` is words from KINDS."""
    kinds = frozenset(affects.split())
    assert kinds <= set(KINDS), affects
    return dataclasses.field(
        default=default, metadata={"facts": KeyFacts(kinds, help=help, **facts)}
    )


def steps(default: int | None, affects: str, help: str) -> Any:
    """A key that counts steps."""
    return key(default, affects, help, unit="steps", least=1, most=MOST_STEPS)


def facts_of(field: "dataclasses.Field[Any]") -> KeyFacts:
    facts = field.metadata["facts"]
    assert isinstance(facts, KeyFacts)
    return facts
