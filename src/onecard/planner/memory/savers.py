"""The settings that take less memory for a little time or care: what is suggested where a run does not fit.

Which of them are chosen together, and what each must bring to be chosen, is advise/savers.py's.

>>> single_savers(RunConfig(compile=False))[-1]
{'optimizer_state': '4bit'}
"""

from typing import Literal

from onecard.config import STATE_BITS, RunConfig

# Each is suggested alone; offered_states adds what the moments may be kept in
SAVERS: tuple[dict[str, object], ...] = (
    {"chunked_loss": True},
    {"recompute": "cheap"},
    {"recompute": "block"},
    {"compile_unit": "block"},
    {"weights": "bfloat16"},
    {"gradients": "bfloat16"},
    {"offload_optimizer": True},
)
# How weights and gradients are kept where nothing else is enough
LEAN = {"compile_unit": "block", "weights": "bfloat16", "gradients": "bfloat16"}


def offered_states(config: RunConfig) -> tuple[Literal["8bit", "4bit"], ...]:
    """The `optimizer_state`s to suggest. Muon's momentum in 4 bits costs loss (planner/warnings.py has how much): it
    is never suggested, only taken where it is asked for.

    >>> offered_states(RunConfig()), offered_states(RunConfig(optimizer="muon"))
    (('8bit', '4bit'), ('8bit',))
    """
    return ("8bit",) if config.optimizer == "muon" else ("8bit", "4bit")


def single_savers(config: RunConfig) -> list[dict[str, object]]:
    """What could be suggested to this config, each alone; moments that are small already are not made larger."""
    smaller = [state for state in offered_states(config) if STATE_BITS[state] < config.state_bits]
    states: list[dict[str, object]] = [{"optimizer_state": state} for state in smaller]
    savers = [saver for saver in SAVERS if "compile_unit" not in saver or config.compile]
    shared = config.shard != "none"
    if config.matmul_dtype not in ("auto", "bfloat16") or shared:
        savers = [saver for saver in savers if "weights" not in saver]
    if shared:
        savers = [saver for saver in savers if "gradients" not in saver]
    return [*savers, *states]


def spelt(change: dict[str, object]) -> str:
    """The change as it stands in a config file."""
    return ", ".join(f"{key} = {value!r}" for key, value in change.items())
