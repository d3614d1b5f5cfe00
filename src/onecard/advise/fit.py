"""Keep my model and my total batch: the fastest micro-batch, accumulation and memory savers that fit the card.

>>> from onecard.config import load
>>> fit(load("fineweb-124M-24gb"), "RTX 4090").plan.memory.fits
'yes'
"""

from dataclasses import dataclass
from typing import Literal

from onecard.advise.savers import (
    SAVER_KEYS,
    Savers,
    Tuned,
    all_savers,
    fastest,
    micro_batches,
    savers_of,
    with_memory,
)
from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.card_names import short_name
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import RunPlan, plan, resolve_device
from onecard.planner.memory import peak_memory, reserve
from onecard.planner.memory.savers import HALVES
from onecard.planner.result import Fits, JsonAnswer
from onecard.units import GIB

SCHEMA = "onecard.fit/1"


@dataclass(frozen=True)
class Choice:
    """One set of savers with its fastest micro-batch."""

    savers: list[str]
    batch_size: int
    gradient_accumulation_steps: int
    step_seconds: float
    process_bytes: float
    fits: Fits


@dataclass(frozen=True)
class Fitted(JsonAnswer):
    schema: str
    config: RunConfig
    plan: RunPlan
    before: RunPlan
    savers: list[str]
    limited_by: Literal["memory", "compute"]
    reasons: list[Note]
    runners_up: list[Choice]


def fit(
    config: RunConfig,
    gpu: Device | str | None = None,
    *,
    data: str | int | None = None,
    price: Price | str | None = None,
) -> Fitted:
    """The config as it was, but for batch_size, gradient_accumulation_steps and the savers."""
    device = resolve_device(gpu)
    before = plan(config, device, data=data, price=price)
    config = before.config  # with the data set's vocabulary
    batches = micro_batches(config)
    best = fastest(config, device, before.dtype, batches)
    if best is None:
        raise _too_large(config, device, before.dtype)
    chosen = config.replace(**{key: getattr(best.config, key) for key in CHOSEN})
    after = plan(chosen, device, data=data, price=price)
    others = [
        tuned
        for savers in all_savers(config, before.dtype, device.kind)
        if savers != best.savers
        and (tuned := fastest(config, device, before.dtype, batches, choices=[savers])) is not None
    ]
    return Fitted(
        schema=SCHEMA,
        config=chosen,
        plan=after,
        before=before,
        savers=best.savers.names,
        limited_by="memory" if _slowed_by_memory(best, config, device, before.dtype) else "compute",
        reasons=_reasons(before, after, best.savers),
        runners_up=[
            choice_of(tuned)
            for tuned in sorted(others, key=lambda each: each.seconds_per_token)[:3]
        ],
    )


CHOSEN = ("batch_size", "gradient_accumulation_steps", "optimizer", *SAVER_KEYS)


def choice_of(tuned: Tuned) -> Choice:
    config = tuned.config
    return Choice(
        tuned.savers.names,
        config.batch_size,
        config.gradient_accumulation_steps,
        tuned.time.seconds.mid,
        tuned.memory.process_bytes.mid,
        tuned.memory.fits,
    )


def _slowed_by_memory(best: Tuned, config: RunConfig, device: Device, dtype: str) -> bool:
    """Would the run be faster if the card had memory without end? By more than a percent."""
    endless = fastest(config, with_memory(device, 10_000), dtype, micro_batches(config))
    return endless is not None and endless.seconds_per_token < 0.99 * best.seconds_per_token


def _too_large(config: RunConfig, device: Device, dtype: str) -> UserError:
    """No micro-batch and no saver helps: how much it lacks, and what to ask next."""
    one = config.replace(batch_size=1)
    tried = (savers.on(one) for savers in all_savers(config, dtype, device.kind))
    memory = min(
        (peak_memory(least, device, dtype, advice=False) for least in tried),
        key=lambda memory: memory.process_bytes.mid,
    )
    return UserError(
        f"this model does not fit on the {short_name(device.name)} even with every memory saver: about "
        f"{memory.process_bytes.mid / GIB:.1f} of {device.usable_bytes / GIB:.1f} GiB at micro-batch 1, {reserve(device, memory.desktop_bytes)}",
        hint=f'`onecard can CONFIG --gpu "{device.name}"` shows what would; `onecard recommend` finds a model that fits',
    )


def _reasons(before: RunPlan, after: RunPlan, savers: Savers) -> list[Note]:
    was, now = before.time.step_seconds.mid, after.time.step_seconds.mid
    same = all(getattr(before.config, key) == getattr(after.config, key) for key in CHOSEN)
    notes = []
    if same:
        notes.append(Note("fit-same"))
    elif before.memory.fits == "no":
        notes.append(Note("fit-now-fits", bytes=before.memory.process_bytes.mid, now=now))
    elif before.memory.fits == "tight":
        notes.append(Note("fit-loosened", bytes=before.memory.process_bytes.mid, now=now))
    elif now < was * 0.995:
        notes.append(Note("fit-faster", now=now, was=was, share=1 - now / was))
    else:
        notes.append(Note("fit-equal", share=abs(1 - now / was) + 0.001))
    notes.append(Note("fit-total", tokens=after.tokens.per_step))
    if after.config.state_bits < 32 and before.config.state_bits == 32:
        notes.append(Note("fit-4bit" if after.config.state_bits == 4 else "fit-8bit"))
    if any(getattr(after.config, key) != getattr(before.config, key) for key in HALVES):
        notes.append(Note("fit-bf16"))
    if after.config.offload_optimizer and not before.config.offload_optimizer:
        notes.append(Note("fit-offload", host=after.memory.host_bytes))
    if savers_of(before.config).names and not savers.names:
        notes.append(Note("fit-unneeded"))
    return notes
