"""What a run that fits comes to: hours and loss on 10 B tokens, on as many as are compute-optimal for the size, and on
those asked for.

for outlook in outlooks(config, {3.1e9}, card, 1): print(outlook.tokens, outlook.seconds)
"""

from collections.abc import Collection
from dataclasses import dataclass

from onecard.config import RunConfig
from onecard.config.key_facts import MOST_STEPS
from onecard.config.length import for_tokens
from onecard.facts.gpus import Device
from onecard.planner import plan
from onecard.planner.result import Range

ROUND_TOKENS = 10e9  # what public runs are compared by: one pass over FineWeb's 10 B-token samples


@dataclass(frozen=True)
class Outlook:
    tokens: float
    seconds: Range
    loss: Range | None  # None: nothing is known of such data
    dataset: str  # whose text the loss is of


def outlooks(
    config: RunConfig, lengths: Collection[float], device: Device, gpus: int
) -> list[Outlook]:
    """By the plan: evaluations and checkpoints are in the time."""
    ahead, most = [], MOST_STEPS * config.tokens_per_step
    for tokens in sorted({ROUND_TOKENS, *lengths}):
        planned = plan(for_tokens(config, min(tokens, most)), device, gpus=gpus)
        loss = planned.loss
        ahead.append(
            Outlook(
                tokens,
                planned.time.total_seconds,
                loss.expected if loss else None,
                loss.dataset if loss else "",
            )
        )
    return ahead
