"""Memory that a model needs at micro-batch 1, plain and with each set of savers, against what a card has.

answer = card_memory(config, card, "bfloat16", 1)
"""

from dataclasses import dataclass

from onecard.advise.savers import Savers, all_savers, fastest, micro_batches
from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.memory import peak_memory
from onecard.planner.result import Fits


@dataclass(frozen=True)
class Saved:
    """Memory at micro-batch 1 with one set of savers."""

    savers: list[str]
    allocated_bytes: float
    process_bytes: float
    process_high: float  # the upper end of its 80 % range
    fits: Fits
    largest_batch: int | None  # the largest micro-batch that fits, of those that divide the total
    host_bytes: int  # kept in the computer's memory
    host_seconds: float  # of a step, to copy them


@dataclass(frozen=True)
class CardMemory:
    plain_bytes: float  # allocated at micro-batch 1, no saver
    plain_process_bytes: float  # as nvidia-smi shows it
    plain_fits: Fits
    with_savers: list[Saved]
    card_bytes: int
    desktop_bytes: int  # kept free for a desktop, or taken by other programs

    @property
    def least(self) -> Saved:
        """The set of savers that needs the least; the plain form where that is all there is."""
        return min(self.with_savers, key=lambda row: row.process_bytes)


def card_memory(config: RunConfig, device: Device, dtype: str, gpus: int) -> CardMemory:
    plain = peak_memory(Savers().on(config), device, dtype, gpus, advice=False)
    rows = []
    for savers in all_savers(config, dtype, device.kind):
        if not savers.names:
            continue
        least = peak_memory(savers.on(config), device, dtype, gpus, advice=False)
        largest = fastest(
            config, device, dtype, micro_batches(config, gpus), gpus=gpus, choices=[savers]
        )
        rows.append(
            Saved(
                savers.names,
                least.allocated_bytes.mid,
                least.process_bytes.mid,
                least.process_bytes.high,
                least.fits,
                largest.config.batch_size if largest else None,
                least.host_bytes,
                largest.time.parts.get("host", 0.0) if largest else 0.0,
            )
        )
    return CardMemory(
        plain_bytes=plain.allocated_bytes.mid,
        plain_process_bytes=plain.process_bytes.mid,
        plain_fits=plain.fits,
        with_savers=sorted(rows, key=lambda row: (len(row.savers), -row.process_bytes)),
        card_bytes=plain.card_bytes,
        desktop_bytes=plain.desktop_bytes,
    )
