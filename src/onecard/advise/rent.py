"""The same run on cards that can be rented: hours and money side by side.

>>> from onecard.config import load
>>> offers = rented(load("gpt2", ["vocab_size=50304"]))
>>> offers[0].cost <= offers[-1].cost
True
"""

from dataclasses import dataclass
from typing import Any

from onecard.advise.savers import fastest, micro_batches
from onecard.advise.schedule import run_seconds
from onecard.config import RunConfig
from onecard.facts.gpus import find_gpu
from onecard.facts.rentals import rentals
from onecard.planner.result import Range


@dataclass(frozen=True)
class Rented:
    gpu: str
    batch_size: int
    gradient_accumulation_steps: int
    savers: list[str]
    step_seconds: float
    seconds: Range  # of the whole run, 80 %
    cost: float  # at the typical price
    cost_low: float | None  # at the lowest price found
    cost_high: float | None
    currency: str
    price: float  # per hour
    period: str
    source: str
    changes: dict[str, Any]  # config keys that the card changes, for `onecard launch`


def rented(config: RunConfig) -> list[Rented]:
    """Every rentable card that takes the run, the cheapest first; the total batch stays as it is."""
    offers = []
    for rental in rentals():
        device = find_gpu(rental.gpu)
        tuned = fastest(config, device, device.training_dtype, micro_batches(config))
        if tuned is None:
            continue
        middle = run_seconds(tuned.config, tuned.time)
        seconds = Range(
            *(
                middle * end / tuned.time.seconds.mid
                for end in (tuned.time.seconds.low, tuned.time.seconds.mid, tuned.time.seconds.high)
            )
        )
        hours = middle / 3600
        offers.append(
            Rented(
                gpu=device.name,
                batch_size=tuned.config.batch_size,
                gradient_accumulation_steps=tuned.config.gradient_accumulation_steps,
                savers=tuned.savers.names,
                step_seconds=tuned.time.seconds.mid,
                seconds=seconds,
                cost=hours * rental.typical,
                cost_low=None if rental.low is None else hours * rental.low,
                cost_high=None if rental.high is None else hours * rental.high,
                currency=rental.currency,
                price=rental.typical,
                period=rental.period,
                source=rental.source,
                changes=tuned.config.changed(since=config),
            )
        )
    return sorted(offers, key=lambda offer: offer.cost)
