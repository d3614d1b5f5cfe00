"""The memory savers, one by one and together, and the fastest micro-batch that fits with them.

>>> from onecard.facts.gpus import find_gpu
>>> card, run = find_gpu("RTX 4070"), RunConfig(vocab_size=50304, batch_size=512, gradient_accumulation_steps=1)
>>> tuned = fastest(run, card, card.training_dtype, (1, 2, 4, 8, 16, 32, 64))
>>> tuned.memory.fits, tuned.config.tokens_per_step
('yes', 524288)
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.planner.calibration_file import known_calibration
from onecard.planner.memory import peak_memory
from onecard.planner.memory.savers import (
    SAVERS,
    TOGETHER,
    Saver,
    changed,
    offered_states,
    savers_in,
    suits,
)
from onecard.planner.result import Memory
from onecard.planner.step_time import StepTime, step_time
from onecard.units import GIB

DOUBLING_CHARGE = 0.002  # for each doubling of the micro-batch: memory is worth keeping free when nothing is gained
BOUND_SLACK = 0.97  # the largest micro-batch is the fastest per token to within so much, tile effects included


_RUNGS = sorted(SAVERS, key=lambda saver: saver.rung)
SAVER_KEYS = tuple(dict.fromkeys(saver.key for saver in _RUNGS))
_OFF = {key: getattr(RunConfig, key) for key in SAVER_KEYS}


@dataclass(frozen=True)
class Savers:
    """A choice of memory savers, one of a key at most."""

    chosen: frozenset[Saver] = frozenset()

    @classmethod
    def setting(cls, **values: object) -> "Savers":
        """Those with these values.

        >>> Savers.setting(chunked_loss=True, recompute="none").names
        ['chunked_loss']
        """
        return cls(frozenset(savers_in(values)))

    @property
    def values(self) -> dict[str, Any]:
        """All of RunConfig's keys that a saver sets, as they are with these."""
        return {**_OFF, **{saver.key: saver.value for saver in self.chosen}}

    @property
    def names(self) -> list[str]:
        """The config keys it sets, as a person would write them."""
        return [saver.name for saver in _RUNGS if saver in self.chosen]

    @property
    def charge(self) -> float:
        """Counts as time: a run with savers is planned so much shorter, and more memory can only help it."""
        return sum(saver.charge for saver in SAVERS if saver in self.chosen)

    def on(self, config: RunConfig) -> RunConfig:
        return variant(config, **self.values)

    def having(self, **values: object) -> "Savers":
        """These, with other values of some keys."""
        return Savers.setting(**{**self.values, **values})


def savers_of(config: RunConfig) -> Savers:
    values = {key: getattr(config, key) for key in SAVER_KEYS}
    if config.optimizer == "adamw8bit" and config.state_bits == 8:  # another name of it
        values["optimizer_state"] = "8bit"
    return Savers.setting(**values)


def all_savers(config: RunConfig, dtype: str = "bfloat16", kind: str = "cuda") -> list[Savers]:
    """Every combination that is tried for this config, the plain one first; what was asked for stays.

    What changes how weights and gradients are kept comes only on top of all that changes no result. `kind` is the device's:
    only a card has another memory beside its own.
    """
    asked = savers_of(config)
    states = ["float32", *offered_states(config)]
    if (state := asked.values["optimizer_state"]) != "float32":
        states = [state]
    recomputes = ["block"] if config.offload_activations else ["none", "cheap", "block"]
    choices = [
        asked.having(chunked_loss=chunked, recompute=recompute, optimizer_state=state)
        for state in states
        for recompute in recomputes
        for chunked in (False, True)
    ]
    lean = asked.having(**TOGETHER)
    for rung in range(1, _RUNGS[-1].rung + 1):
        added = {
            saver.key: saver.value
            for saver in SAVERS
            if saver.rung == rung and suits(saver, config, dtype, kind)
        }
        lean = lean.having(**added)
        if not added or changed(config, lean.values) is None:
            continue  # other keys exclude it: reduce-overhead, say, whole layers
        # on the host there is room: 4 bits would save nothing that matters
        away = lean.values["offload_optimizer"]
        usual = [state for state in states if state != "4bit"] if away else states
        choices += [lean.having(optimizer_state=state) for state in usual or states]
    return sorted(dict.fromkeys(choices), key=lambda savers: savers.charge)


def variant(config: RunConfig, **changes: Any) -> RunConfig:
    """`config` with other values, unchecked: the checks cost more than the plan's arithmetic, and the search tries
    thousands of values that are right by construction. What it returns to a person goes through `replace`."""
    other = object.__new__(RunConfig)
    other.__dict__.update(config.__dict__)
    other.__dict__.update(changes)
    return other


@dataclass(frozen=True)
class Tuned:
    """A config with its fastest fitting micro-batch and savers."""

    config: RunConfig
    savers: Savers
    time: StepTime
    memory: Memory
    seconds_per_token: float  # with the charge for its savers: what a schedule may count on


def fastest(
    config: RunConfig,
    device: Device,
    dtype: str,
    batches: Sequence[int],
    *,
    gpus: int = 1,
    choices: Sequence[Savers] | None = None,
) -> Tuned | None:
    """The fastest of `batches` (ascending) and savers whose step, of config's total batch, fits; None if none does.

    Savers are tried in the order of the best they could do with unlimited memory, and left when that is not enough.
    """
    sequences = config.sequences_per_step
    best: Tuned | None = None
    ranked = sorted(
        (
            (
                _per_token(
                    _with_batch(each.on(config), batches[-1], sequences), each, device, dtype, gpus
                )[0],
                place,
                each,
            )
            for place, each in enumerate(choices or all_savers(config, dtype, device.kind))
        ),
        key=lambda item: item[:2],
    )
    near = len(batches) // 2
    for ideal, _, savers in ranked:
        if best is not None and ideal * BOUND_SLACK > best.seconds_per_token:
            break
        saving = savers.on(config)
        near = _fitting(saving, device, dtype, batches, sequences, gpus, max(near - 1, 0))
        for batch in reversed(batches[:near]):
            trial = _with_batch(saving, batch, sequences)
            charged, time = _per_token(trial, savers, device, dtype, gpus)
            if best is None or charged < best.seconds_per_token:
                best = Tuned(
                    trial,
                    savers,
                    time,
                    peak_memory(trial, device, dtype, gpus, advice=False),
                    charged,
                )
            elif charged * BOUND_SLACK > best.seconds_per_token:
                break  # smaller ones are slower still
    return best


@dataclass(frozen=True)
class WhatIfDevice(Device):
    """A card as it is not sold; `real` is the one whose measurements hold for it."""

    real: Device | None = None


def own_step_time(config: RunConfig, device: Device, dtype: str, gpus: int = 1) -> StepTime:
    """As plan() predicts it: by this machine's own probe where there is one. The file is read once."""
    real = device.real if isinstance(device, WhatIfDevice) and device.real else device
    return step_time(config, device, dtype, gpus, known_calibration(real))


def _per_token(
    config: RunConfig, savers: Savers, device: Device, dtype: str, gpus: int
) -> tuple[float, StepTime]:
    time = own_step_time(config, device, dtype, gpus)
    charge = 1 + savers.charge + DOUBLING_CHARGE * math.log2(config.batch_size)
    return time.seconds.mid * charge / config.tokens_per_step, time


def _with_batch(config: RunConfig, batch: int, sequences: int) -> RunConfig:
    return variant(config, batch_size=batch, gradient_accumulation_steps=sequences // batch)


def micro_batches(config: RunConfig, gpus: int = 1, most: int = 128) -> tuple[int, ...]:
    """The micro-batches that leave the total batch exactly as it is, smallest first."""
    sequences = config.sequences_per_step // gpus
    return tuple(rows for rows in range(1, min(sequences, most) + 1) if sequences % rows == 0)


def _fitting(
    config: RunConfig,
    device: Device,
    dtype: str,
    batches: Sequence[int],
    sequences: int,
    gpus: int,
    near: int,
) -> int:
    """How many of `batches`, from the smallest, fit: memory grows with the micro-batch, so bisect, from `near` on."""
    low, high = 0, len(batches)
    middle = min(near, high - 1)
    while low < high:
        trial = _with_batch(config, batches[middle], sequences)
        if peak_memory(trial, device, dtype, gpus, advice=False).fits == "yes":
            low = middle + 1
        else:
            high = middle
        middle = low if low == near + 1 and low < high else (low + high) // 2
    return low


def with_memory(device: Device, gib: float) -> WhatIfDevice:
    """The same card with other memory, as if it were sold so: for what-ifs."""
    share = device.usable_bytes / device.memory_bytes
    values = {field.name: getattr(device, field.name) for field in dataclasses.fields(Device)}
    values |= {"memory_bytes": round(gib * GIB), "usable_bytes": round(gib * GIB * share)}
    return WhatIfDevice(**values, real=device)
