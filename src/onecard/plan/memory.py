"""Peak memory of a training step, part by part: a closed form, counted in bytes that torch allocates.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(n_embd=384, batch_size=16, vocab_size=50304)
>>> memory = peak_memory(run, find_gpu("RTX 4070"), "bfloat16")
>>> round(memory.allocated_bytes.mid / 2**30, 2), memory.fits
(7.87, 'yes')
"""

import re

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.plan.params import params
from onecard.plan.result import Fits, Memory, Range
from onecard.units import MIB

# What the card shows beyond what torch allocates: the CUDA context and cuBLAS workspaces grow with the card's SMs.
# 352–375 MiB + 3.5–4 MiB an SM: the twelve micro-batch-8 and -16 readings of runpod-gpt2-sweep less the formula.
CONTEXT_BYTES, CONTEXT_BYTES_PER_UNIT = 365 * MIB, round(3.8 * MIB)
DESKTOP_BYTES = 600 * MIB  # a desktop with a browser on a consumer card, kept free where the driver was not asked
_ALLOCATED = ("weights", "gradients", "optimizer", "cast_weights", "activations", "logits_and_loss")


def peak_memory(config: RunConfig, device: Device, dtype: str, gpus: int = 1, taken_bytes: int | None = None) -> Memory:
    """The peak of one process on one card. `parts` sum to process_bytes.mid; all but context and slack, to allocated."""
    parts = _parts(config, dtype)
    parts |= _overheads(config, parts, device, gpus)
    allocated = sum(parts[name] for name in _ALLOCATED)
    process = sum(parts.values())
    spread = parts["context"] * 0.2 + parts["slack"] * 0.5 + allocated * 0.01
    range_ = Range(process - spread, process, process + spread)
    desktop = _desktop_bytes(device) if taken_bytes is None else taken_bytes
    return Memory(
        parts=parts,
        allocated_bytes=Range(allocated * 0.99, allocated, allocated * 1.01),
        process_bytes=range_,
        card_bytes=device.usable_bytes,
        desktop_bytes=desktop,
        fits=_fits(range_, device.usable_bytes - desktop),
        changes=[],
    )


def _fits(process: Range, room: int) -> Fits:
    if process.high <= room:
        return "yes"
    return "no" if process.low > room else "tight"


def _desktop_bytes(device: Device) -> int:
    if device.taken_bytes is not None:
        return device.taken_bytes
    return DESKTOP_BYTES if re.match(r"(RTX|GTX|RX|Arc|Titan) ?\w*\d", device.name) else 0


def _parts(config: RunConfig, dtype: str) -> dict[str, int]:
    m = config.shape
    total = params(m).total
    layers, width, heads, vocab = m.n_layer, m.n_embd, m.n_head, m.vocab_size
    tokens = config.tokens_per_micro_batch
    cast = 2 * (12 * layers * width * width + vocab * width)
    logits = (6 if config.compile else 12) * tokens * vocab
    activations = tokens * (layers * (36 * width + 4 * heads + 12) + 6 * width + 32)
    if config.compile:
        # at the end of the backward pass: the head's gradient in three copies
        floor = 4 * total + 2 * tokens * vocab + 6 * vocab * width
        logits = max(logits, floor - cast - activations)
    return {
        "weights": 4 * total,
        "gradients": 4 * total,
        "optimizer": 8 * total,
        "cast_weights": cast,
        "activations": activations,
        "logits_and_loss": logits,
    }


def _overheads(config: RunConfig, parts: dict[str, int], device: Device, gpus: int) -> dict[str, int]:
    """Context, and what the allocator holds but nobody uses.

    Gradients and moments come to live after the first forward pass, in what its largest buffer (the logits) left free;
    the next pass then has to get a new one. So the card holds the larger of the two, not the gradients alone.
    """
    largest = (2 if config.compile else 4) * config.tokens_per_micro_batch * config.shape.vocab_size
    late = parts["gradients"] + parts["optimizer"]
    return {
        "context": CONTEXT_BYTES + CONTEXT_BYTES_PER_UNIT * device.units,
        "slack": max(0, largest - late),
    }
