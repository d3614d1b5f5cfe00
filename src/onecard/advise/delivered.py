"""Compute that cards deliver in a time, against what a model needs: at their peaks, and at the rate that plan() predicts.

answer = compute(model, tuned, config, card, "bfloat16", 1, YEAR, 0.9, None)
"""

from dataclasses import dataclass

from onecard.advise.named_model import NamedModel
from onecard.advise.need import Reading, readings
from onecard.advise.savers import Tuned, own_step_time, variant
from onecard.config import RunConfig
from onecard.facts.gpus import Device


@dataclass(frozen=True)
class Delivery:
    """FLOPs the cards deliver in the time, by one way of counting."""

    name: str  # float32_peak, tensor_peak, predicted
    dtype: str
    flops_per_second: float  # one card, before utilization
    utilization: float  # the share of peak × time; 1 for the predicted rate, which is all in
    flops: float


@dataclass(frozen=True)
class Needed:
    """A reading against what is delivered."""

    reading: Reading
    ratio: float
    ratio_low: float  # where the tokens are a range
    ratio_high: float
    seconds: float  # at the rate of the delivery that counts
    ratios: dict[str, float]  # by delivery


@dataclass(frozen=True)
class Compute:
    delivered_flops: float
    needed_flops: float
    ratio: float
    basis: str  # the delivery that counts
    deliveries: list[Delivery]
    readings: list[Needed]
    predicted_seconds: float  # for the reading that decides, at the predicted rate
    hypothetical: bool  # the predicted rate is that of a card with enough memory


def compute(
    model: NamedModel,
    tuned: Tuned | None,
    config: RunConfig,
    device: Device,
    dtype: str,
    gpus: int,
    seconds: float,
    utilization: float | None,
    tokens: float | None,
) -> Compute:
    """FLOPs delivered in the time against FLOPs needed, by each way of counting both."""
    # where it does not fit: the rate that plan() shows for the model's own config, as if the card had the memory
    run = tuned.config if tuned else variant(model.config, compile=config.compile)
    rate = (
        6 * model.params * run.tokens_per_step / own_step_time(run, device, dtype, gpus).seconds.mid
    )
    deliveries = [Delivery("predicted", dtype, rate / gpus, 1.0, rate * seconds)]
    if utilization is not None:
        peaks = {"tensor_peak": dtype, "float32_peak": "float32"}
        deliveries = [
            *(
                Delivery(
                    name,
                    kind,
                    device.peak_flops(kind),
                    utilization,
                    device.peak_flops(kind) * gpus * utilization * seconds,
                )
                for name, kind in peaks.items()
                if name == "float32_peak" or kind != "float32"
            ),
            *deliveries,
        ]
    counts = deliveries[0]
    rates = [
        Needed(
            reading=reading,
            ratio=counts.flops / reading.needed_flops,
            ratio_low=counts.flops / reading.needed_high,
            ratio_high=counts.flops / reading.needed_low,
            seconds=reading.needed_flops / counts.flops * seconds,
            ratios={
                delivery.name: delivery.flops / reading.needed_flops for delivery in deliveries
            },
        )
        for reading in readings(model, tokens)
    ]
    first = rates[0]
    return Compute(
        delivered_flops=counts.flops,
        needed_flops=first.reading.needed_flops,
        ratio=first.ratio,
        basis=counts.name,
        deliveries=deliveries,
        readings=rates,
        predicted_seconds=first.reading.needed_flops / rate,
        hypothetical=tuned is None,
    )
