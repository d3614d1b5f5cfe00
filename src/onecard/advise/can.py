"""Can this card train that model at all? Compute and memory, each against what is needed, and what to do instead.

>>> answer = can("gpt2", "RTX 4070", seconds=30 * DAY)
>>> answer.verdict, answer.compute.ratio > 10
('yes', True)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from onecard.advise.instead import Instead, instead
from onecard.advise.models import NamedModel, named_model
from onecard.advise.need import Reading, readings
from onecard.advise.offload import Offload, offload
from onecard.advise.savers import (
    Savers,
    Tuned,
    all_savers,
    fastest,
    micro_batches,
    own_step_time,
    variant,
)
from onecard.config import RunConfig
from onecard.config.model_rules import padded_vocab
from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.messages import Note
from onecard.planner import resolve_device
from onecard.planner.memory import peak_memory
from onecard.planner.result import Fits, as_plain
from onecard.units import DAY, GIB, YEAR
from onecard.version import __version__

SCHEMA = "onecard.can/1"
Verdict = Literal["yes", "with_savers", "no"]


@dataclass(frozen=True)
class Delivery:
    """FLOPs the cards deliver in the time, by one way of reckoning."""

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


@dataclass(frozen=True)
class Saved:
    """Memory at micro-batch 1 with one set of savers."""

    savers: list[str]
    allocated_bytes: float
    process_bytes: float
    fits: Fits
    largest_batch: int | None  # the largest micro-batch that fits, of those that divide the total


@dataclass(frozen=True)
class CardMemory:
    plain_bytes: float  # allocated at micro-batch 1, no saver
    plain_process_bytes: float  # as nvidia-smi shows it
    plain_fits: Fits
    with_savers: list[Saved]
    card_bytes: int
    desktop_bytes: int
    offload: Offload


@dataclass(frozen=True)
class Answer:
    schema: str
    version: str
    model: str
    params: int
    config: RunConfig  # tuned for the card, where it fits
    device: Device
    gpus: int
    seconds: float
    utilization: float | None
    verdict: Verdict
    because: Literal["memory", "time"] | None  # what a "no" is for
    verdict_text: Note
    compute: Compute
    memory: CardMemory
    savers: list[str]  # of the fastest that fits
    instead: list[Instead]
    notes: list[Note]

    def to_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = as_plain(self)
        return answer


def can(
    model: str,
    gpu: Device | str | None = None,
    *,
    gpus: int = 1,
    seconds: float = YEAR,
    utilization: float | None = None,
    tokens: float | None = None,
    overrides: Iterable[str] = (),
) -> Answer:
    """Everything that decides it. `utilization` is the share of peak × time that counts; None: our predicted rate."""
    _check(gpus, seconds, utilization, tokens)
    wanted = named_model(model, overrides)
    device = resolve_device(gpu)
    config = variant(
        wanted.config, compile=wanted.config.compile and device.can_compile and device.kind != "cpu"
    )
    dtype = device.training_dtype if config.dtype == "auto" else config.dtype
    sequences = max(1, config.batch_size * config.gradient_accumulation_steps // gpus) * gpus
    config = variant(config, batch_size=1, gradient_accumulation_steps=sequences)
    tuned = fastest(config, device, dtype, micro_batches(config, gpus), gpus=gpus)
    memory = _memory(config, device, dtype, gpus)
    compute = _compute(wanted, tuned, config, device, dtype, gpus, seconds, utilization, tokens)
    verdict, because = _verdict(memory, tuned, compute)
    chosen = (tuned.config if tuned else config).replace()  # checked
    return Answer(
        schema=SCHEMA,
        version=__version__,
        model=wanted.label,
        params=wanted.params,
        config=chosen,
        device=device,
        gpus=gpus,
        seconds=seconds,
        utilization=utilization,
        verdict=verdict,
        because=because,
        verdict_text=_said(verdict, because, wanted, tuned, memory, compute, device, seconds),
        compute=compute,
        memory=memory,
        savers=tuned.savers.names if tuned else [],
        instead=instead(
            wanted, chosen, device, gpus, seconds, compute.readings[0], memory.offload, because
        )
        if verdict != "yes"
        else [],
        notes=_notes(chosen, device, dtype, compute, utilization),
    )


def _check(gpus: int, seconds: float, utilization: float | None, tokens: float | None) -> None:
    if gpus < 1:
        raise UserError(f"{gpus} cards train nothing", hint="for example --gpus 2")
    if not seconds > 0:
        raise UserError("the time must be above zero", hint="for example --for 30d or --for 1y")
    if utilization is not None and not 0 < utilization <= 1:
        raise UserError(
            f"utilization = {utilization:g} is not a share",
            hint="from 0 to 1, for example --utilization 0.9",
        )
    if tokens is not None and not tokens > 0:
        raise UserError("the tokens must be above zero", hint="for example --tokens 10B")


def _memory(config: RunConfig, device: Device, dtype: str, gpus: int) -> CardMemory:
    plain = peak_memory(Savers().on(config), device, dtype, gpus, advice=False)
    rows = []
    for savers in all_savers(config):
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
                least.fits,
                largest.config.batch_size if largest else None,
            )
        )
    return CardMemory(
        plain_bytes=plain.allocated_bytes.mid,
        plain_process_bytes=plain.process_bytes.mid,
        plain_fits=plain.fits,
        with_savers=sorted(rows, key=lambda row: (len(row.savers), -row.process_bytes)),
        card_bytes=plain.card_bytes,
        desktop_bytes=plain.desktop_bytes,
        offload=offload(config, device, dtype),
    )


def _compute(
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
    run = tuned.config if tuned else Savers(True, "block", False).on(config)
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
    found = [
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
    first = found[0]
    return Compute(
        delivered_flops=counts.flops,
        needed_flops=first.reading.needed_flops,
        ratio=first.ratio,
        basis=counts.name,
        deliveries=deliveries,
        readings=found,
        predicted_seconds=first.reading.needed_flops / rate,
        hypothetical=tuned is None,
    )


def _verdict(
    memory: CardMemory, tuned: Tuned | None, compute: Compute
) -> tuple[Verdict, Literal["memory", "time"] | None]:
    if tuned is None:
        return "no", "memory"
    if compute.ratio < 1:
        return "no", "time"
    return ("yes" if memory.plain_fits == "yes" else "with_savers"), None


def _said(
    verdict: Verdict,
    because: str | None,
    model: NamedModel,
    tuned: Tuned | None,
    memory: CardMemory,
    compute: Compute,
    device: Device,
    seconds: float,
) -> Note:
    first = compute.readings[0]
    figures = {
        "model": model.label,
        "card": device.name,
        "tokens": first.reading.tokens,
        "need": compute.predicted_seconds,
        "time": seconds,
    }
    if verdict == "yes":
        return Note(
            "can-yes",
            "yes: {model} on {tokens:count} tokens takes the {card} about {need:duration}",
            **figures,
        )
    if verdict == "with_savers":
        assert tuned is not None
        return Note(
            "can-savers",
            "yes, with {savers}: {model} on {tokens:count} tokens then takes the {card} about {need:duration}",
            savers=", ".join(tuned.savers.names),
            **figures,
        )
    if because == "memory":
        least = min(
            [memory.plain_process_bytes, *(row.process_bytes for row in memory.with_savers)]
        )
        return Note(
            "can-no-memory",
            "not on this card: with every saver {model} still wants {least:bytes}, and the {card} has {room:bytes}",
            least=least,
            room=memory.card_bytes,
            **figures,
        )
    return Note(
        "can-no-time",
        "not in that time: {model} on {tokens:count} tokens takes the {card} about {need:duration}, not {time:duration}",
        **figures,
    )


def _notes(
    run: RunConfig, device: Device, dtype: str, compute: Compute, utilization: float | None
) -> list[Note]:
    said = []
    if any(not needed.reading.published for needed in compute.readings):
        said.append(
            Note(
                "unpublished",
                "how many tokens OpenAI's GPT-2 saw was never published; estimates differ by more than ten "
                "times, so it is a range here",
            )
        )
    if utilization is not None:
        predicted = next(d for d in compute.deliveries if d.name == "predicted")
        peak = next(d for d in compute.deliveries if d.name != "predicted")
        reached = predicted.flops_per_second / peak.flops_per_second
        said.append(
            Note(
                "utilization",
                "we expect training to reach {reached:percent} of the {dtype} peak, against the {asked:percent} asked for",
                reached=reached,
                dtype=peak.dtype,
                asked=utilization,
            )
        )
        if len(compute.deliveries) == 3:
            said.append(
                Note(
                    "fp32-peak",
                    "the fp32 peak is often quoted, but training in {dtype} runs on the tensor cores, whose peak is "
                    "{times:.1f} times that",
                    dtype=peak.dtype,
                    times=peak.flops_per_second / compute.deliveries[1].flops_per_second,
                )
            )
    padded = padded_vocab(run.shape.vocab_size)
    if padded != run.shape.vocab_size:
        was, now = (
            own_step_time(variant(run, vocab_size=v), device, dtype).seconds.mid
            for v in (run.vocab_size, padded)
        )
        if now < 0.99 * was:
            said.append(
                Note(
                    "padding",
                    "vocab_size = {padded} instead of {vocab} changes nothing in what is learnt and saves "
                    "{share:percent} of the time",
                    padded=padded,
                    vocab=run.shape.vocab_size,
                    share=1 - now / was,
                )
            )
    if compute.hypothetical:
        said.append(
            Note("hypothetical", "the predicted rate is that of the same card with enough memory")
        )
    return said


__all__ = ["DAY", "GIB", "Answer", "can"]
