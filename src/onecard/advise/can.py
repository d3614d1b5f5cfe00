"""Can this card train that model at all? Compute and memory, each against what is needed, and what to do instead.

>>> from onecard.units import DAY
>>> answer = can("gpt2", "RTX 4070", seconds=30 * DAY)
>>> answer.verdict, answer.compute.ratio > 10
('yes', True)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from onecard.advise.card_memory import CardMemory, card_memory
from onecard.advise.delivered import Compute, compute
from onecard.advise.instead import Instead, instead
from onecard.advise.named_model import NamedModel, named_model
from onecard.advise.outlook import Outlook, outlooks
from onecard.advise.savers import Tuned, fastest, micro_batches, variant
from onecard.advise.schedule import compiled_on
from onecard.config import RunConfig
from onecard.config.model_rules import padded_vocab
from onecard.errors import UserError
from onecard.facts.card_names import short_name
from onecard.facts.gpus import Device
from onecard.messages import Note
from onecard.planner import resolve_device
from onecard.planner.corpus import corpus_of
from onecard.planner.memory import reserve
from onecard.planner.optimal import compute_optimal_tokens
from onecard.planner.result import JsonAnswer
from onecard.planner.step_time import padding_gain
from onecard.planner.warnings import support_warnings
from onecard.units import YEAR
from onecard.version import __version__

SCHEMA = "onecard.can/1"
Verdict = Literal["yes", "with_savers", "no"]


@dataclass(frozen=True)
class Answer(JsonAnswer):
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
    # on the tokens that decide; evaluations and checkpoints included where it fits
    run_seconds: float
    outlooks: list[Outlook]  # on 10 B, compute-optimal and asked tokens, where it fits
    instead: list[Instead]
    notes: list[Note]
    warnings: list[
        Note
    ]  # where torch or onecard leaves the card out, or the prepared data is a part


def can(
    model: str,
    gpu: Device | str | None = None,
    *,
    gpus: int = 1,
    seconds: float = YEAR,
    utilization: float | None = None,
    tokens: float | None = None,
    recipe: str | None = None,
    overrides: Iterable[str] = (),
) -> Answer:
    """Everything that decides it. `utilization` is the share of peak × time that counts; None: our predicted rate. `recipe`: None
    for the config's own, since the model is the user's, not ours to choose."""
    _check(gpus, seconds, utilization, tokens)
    wanted = named_model(model, [*overrides, *([f"recipe={recipe}"] if recipe else [])])
    device = resolve_device(gpu)
    config = variant(wanted.config, compile=wanted.config.compile and compiled_on(device))
    dtype = device.dtype_of(config.matmul_dtype)
    sequences = max(1, config.sequences_per_step // gpus) * gpus
    config = variant(config, batch_size=1, gradient_accumulation_steps=sequences)
    tuned = fastest(config, device, dtype, micro_batches(config, gpus), gpus=gpus)
    memory = card_memory(config, device, dtype, gpus)
    needed = compute(wanted, tuned, config, device, dtype, gpus, seconds, utilization, tokens)
    verdict, because = _verdict(memory, tuned, needed)
    chosen = (tuned.config if tuned else config).replace()  # checked
    card = short_name(device.name) if gpus == 1 else f"{gpus} × {device.name}"
    reserved = reserve(device, memory.desktop_bytes)
    decides = needed.readings[0].reading.tokens
    lengths = {decides, compute_optimal_tokens(wanted.params)}
    ahead = outlooks(chosen, lengths, device, gpus) if tuned else []
    run_seconds = next(
        (outlook.seconds.mid for outlook in ahead if outlook.tokens == decides),
        needed.predicted_seconds,
    )
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
        verdict_text=_verdict_note(
            verdict, because, wanted, tuned, memory, reserved, decides, run_seconds, card, seconds
        ),
        compute=needed,
        memory=memory,
        savers=tuned.savers.names if tuned else [],
        run_seconds=run_seconds,
        outlooks=ahead,
        instead=instead(wanted, chosen, device, gpus, seconds, needed.readings[0], because)
        if verdict != "yes"
        else [],
        notes=_notes(chosen, device, dtype, needed, utilization),
        warnings=_warnings(chosen, device, bool(ahead)),
    )


def _warnings(config: RunConfig, device: Device, with_loss: bool) -> list[Note]:
    """Where there is a loss, it is of the data that is there."""
    data = corpus_of(config.dataset, asked=False).notes if with_loss else []
    return [*support_warnings(device), *data]


def _check(gpus: int, seconds: float, utilization: float | None, tokens: float | None) -> None:
    if gpus < 1:
        raise UserError(f"{gpus} cards train nothing", hint="for example 2")
    if not seconds > 0:
        raise UserError("the time must be above zero", hint="for example 30d or 1y")
    if utilization is not None and not 0 < utilization <= 1:
        raise UserError(
            f"utilization = {utilization:g} is not a share", hint="from 0 to 1, for example 0.9"
        )
    if tokens is not None and not tokens > 0:
        raise UserError("the tokens must be above zero", hint="for example 10B")


def _verdict(
    memory: CardMemory, tuned: Tuned | None, compute: Compute
) -> tuple[Verdict, Literal["memory", "time"] | None]:
    if tuned is None:
        return "no", "memory"
    if compute.ratio < 1:
        return "no", "time"
    return ("yes" if memory.plain_fits == "yes" else "with_savers"), None


def _verdict_note(
    verdict: Verdict,
    because: str | None,
    model: NamedModel,
    tuned: Tuned | None,
    memory: CardMemory,
    reserved: Note,
    tokens: float,
    run_seconds: float,
    card: str,
    seconds: float,
) -> Note:
    figures = {
        "model": model.label,
        "card": card,
        "tokens": tokens,
        "need": run_seconds,
        "time": seconds,
    }
    if verdict == "yes":
        return Note("can-yes", **figures)
    if verdict == "with_savers":
        assert tuned is not None
        return Note("can-savers", savers=", ".join(tuned.savers.names), **figures)
    if because == "memory":
        least = memory.least
        figures |= {"least": least.process_bytes, "high": least.process_high}
        figures |= {"total": memory.card_bytes, "reserve": reserved}
        tight = "can-tight-desktop" if least.process_high <= memory.card_bytes else "can-tight"
        return Note(tight if least.fits == "tight" else "can-no-memory", **figures)
    return Note("can-no-time", **figures)


def _notes(
    run: RunConfig, device: Device, dtype: str, compute: Compute, utilization: float | None
) -> list[Note]:
    notes = []
    if any(not needed.reading.published for needed in compute.readings):
        notes.append(Note("unpublished"))
    if utilization is not None:
        predicted = next(
            delivery for delivery in compute.deliveries if delivery.name == "predicted"
        )
        peak = next(delivery for delivery in compute.deliveries if delivery.name != "predicted")
        reached = predicted.flops_per_second / peak.flops_per_second
        notes.append(Note("utilization", reached=reached, dtype=peak.dtype, asked=utilization))
        if len(compute.deliveries) == 3:
            times = peak.flops_per_second / compute.deliveries[1].flops_per_second
            notes.append(Note("fp32-peak", dtype=peak.dtype, times=times))
    if (share := padding_gain(run, device, dtype)) > 0.01:
        vocab = run.shape.vocab_size
        notes.append(Note("padding", padded=padded_vocab(vocab), vocab=vocab, share=share))
    if compute.hypothetical:
        notes.append(Note("hypothetical"))
    return notes
