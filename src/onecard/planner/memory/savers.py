"""The memory savers: settings that take less memory for a little time or care, each with what advice says of it.

Where a run does not fit, the plan suggests them one by one; which of them are chosen together is advise/savers.py's.

>>> single_savers(RunConfig(compile=False))[-1]
{'optimizer_state': '4bit'}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onecard.config import STATE_BITS, RunConfig
from onecard.errors import UserError


@dataclass(frozen=True)
class Saver:
    """`charge`: what it must bring before it is chosen, as a share of the step's time. Most savers change no result, only
    speed by a little more or less than is modelled; moments of few bits round (docs/performance.md has what that costs).

    `rung`: advice tries those of rung 0 in every combination, the others only on top of all that suit on lower rungs."""

    key: str
    value: bool | str
    charge: float
    letter: str  # in the table by memory
    comment: str  # in a config that advice writes
    rung: int = 0
    alone: bool = True  # whether it does anything by itself

    @property
    def name(self) -> str:
        """As a person would write it: chunked_loss, recompute=cheap."""
        return self.key if self.value is True else f"{self.key}={self.value}"


AGAIN = "activations computed again going backward"
ROUNDED, SUMMED = "2 bytes each, rounded by chance", "added up in 2 bytes each, rounded by chance"
INPUTS = "the inputs of layers, until the backward pass"
SAVERS = (
    Saver("chunked_loss", True, 0.005, "c", "never holds all logits at once"),
    Saver("recompute", "cheap", 0.01, "r", AGAIN),
    Saver("recompute", "block", 0.01, "R", AGAIN),
    Saver("compile_unit", "block", 0.01, "b", "gradients come layer by layer", rung=1),
    Saver("weights", "bfloat16", 0.02, "w", ROUNDED, rung=2),
    Saver("gradients", "bfloat16", 0.02, "g", SUMMED, rung=2),
    # charged for memory of a computer that the plan may not know
    Saver("offload_optimizer", True, 0.08, "o", "{host} of the computer's memory", rung=3),
    Saver("offload_activations", True, 0.01, "a", INPUTS, rung=4, alone=False),
    Saver("optimizer_state", "8bit", 0.02, "8", "moments in a byte each"),
    Saver("optimizer_state", "4bit", 0.04, "4", "moments in half a byte each"),
)
TOGETHER: dict[str, object] = {"chunked_loss": True, "recompute": "block"}
# How weights and gradients are kept where nothing else is enough
HALVES: dict[str, object] = {"weights": "bfloat16", "gradients": "bfloat16"}


def savers_in(values: Mapping[str, object]) -> list[Saver]:
    """Those that these values of RunConfig's keys switch on."""
    return [saver for saver in SAVERS if values.get(saver.key) == saver.value]


def offered_states(config: RunConfig) -> tuple[Literal["8bit", "4bit"], ...]:
    """The `optimizer_state`s to suggest. Muon's momentum in 4 bits costs loss (planner/warnings.py has how much): it
    is never suggested, only taken where it is asked for.

    >>> offered_states(RunConfig()), offered_states(RunConfig(optimizer="muon"))
    (('8bit', '4bit'), ('8bit',))
    """
    return ("8bit",) if config.optimizer == "muon" else ("8bit", "4bit")


def single_savers(
    config: RunConfig, dtype: str = "bfloat16", kind: str = "cuda"
) -> list[dict[str, object]]:
    """What could be suggested to this config, each alone."""
    alone = (saver for saver in SAVERS if saver.alone)
    return [{saver.key: saver.value} for saver in alone if suits(saver, config, dtype, kind)]


def changed(config: RunConfig, change: Mapping[str, object]) -> RunConfig | None:
    """`config` with these keys; None where its other keys exclude them."""
    try:
        return config.replace(**change)
    except UserError:
        return None


def suits(saver: Saver, config: RunConfig, dtype: str, kind: str) -> bool:
    """Whether the setting would do anything in a run that computes in `dtype` on a device of this kind; moments that are
    small already are not made larger."""
    match saver.key:
        case "compile_unit":
            return config.compile
        case "weights" | "gradients":
            return halves_suit(config, dtype)
        case "offload_optimizer" | "offload_activations":
            return kind == "cuda"  # only a card has another memory beside its own
        case "optimizer_state":
            state = str(saver.value)
            return state in offered_states(config) and STATE_BITS[state] < config.state_bits
    return True


def halves_suit(config: RunConfig, dtype: str) -> bool:
    """Matrices in bf16 are multiplied in bf16, and shards are kept in fp32 (config/validate.py)."""
    return dtype == "bfloat16" and config.shard == "none"


def spelt(change: dict[str, object]) -> str:
    """The change as it stands in a config file."""
    return ", ".join(f"{key} = {value!r}" for key, value in change.items())
