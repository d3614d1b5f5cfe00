"""What `probe --autotune` tries: settings that change how a step is computed, never what it computes.

>>> micro_batches(RunConfig(batch_size=12, gradient_accumulation_steps=1), 12)
[{'batch_size': 4, 'gradient_accumulation_steps': 3}, {'batch_size': 6, 'gradient_accumulation_steps': 2}]
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from onecard.config import RunConfig
from onecard.config.model_rules import slice_rows
from onecard.model import processor
from onecard.planner.memory.savers import spelt

Choice = dict[str, Any]  # config keys
Choices = Callable[[RunConfig], list[Choice]]  # those that the config at hand has not got

LARGEST_ROWS = 64  # sequences of a measured step: a share of the total batch tells the same
_NEAR = 2  # micro-batches tried on either side


def settings(config: RunConfig, device: torch.device, rows: int, fp8: bool) -> Iterator[Choices]:
    """One setting after another, the likeliest to gain first, what takes long to try last."""
    card = device.type == "cuda"
    yield lambda now: [{"chunked_loss": not now.chunked_loss}]
    yield lambda now: slices(now, device.type != "cpu")
    if config.recompute != "none" and not config.offload_activations:
        yield lambda now: others(now, "recompute", ("none", "cheap"))
    yield lambda now: micro_batches(now, rows)
    if device.type == "cpu":
        yield threads
    if card:
        yield lambda now: others(now, "attention", ("flash", "cudnn", "efficient"))
    else:
        yield lambda now: others(now, "attention", ("flash", "math"))
    if config.optimizer == "adamw" and config.state_bits == 32:
        yield lambda now: [{"fused_optimizer": not now.fused_optimizer}]
    yield lambda now: compile_modes(now, card)
    yield lambda now: micro_batches(now, rows)
    if fp8 and not config.fp8:
        yield lambda now: [{"fp8": True}]


def others(config: RunConfig, key: str, values: tuple[str, ...]) -> list[Choice]:
    return [{key: value} for value in values if value != getattr(config, key)]


def slices(config: RunConfig, on_card: bool) -> list[Choice]:
    """Half, twice and four times the logits at a time, where the loss is sliced at all."""
    usual = config.chunk_rows or slice_rows(config.shape.vocab_size, on_card)
    if not config.chunked_loss or config.tokens_per_micro_batch <= usual:
        return []
    sizes = (usual // 2, 2 * usual, 4 * usual)
    return [{"chunk_rows": size} for size in sizes if 1 <= size < 2 * config.tokens_per_micro_batch]


def threads(config: RunConfig) -> list[Choice]:
    """Fewer and more threads than torch's own number, and each on a core of its own."""
    usual = config.threads or torch.get_num_threads()
    counts = sorted({1, usual // 2, usual - 1, 2 * usual} - {0, usual})
    bound = [{"affinity": "cores"}] if config.affinity == "none" and processor.cores() else []
    return [*bound, *({"threads": count} for count in counts)]


def compile_modes(config: RunConfig, card: bool) -> list[Choice]:
    """CUDA graphs are for cards, and for a model whose gradients and activations stay there."""
    off = {"compile": False, "compile_mode": "default"}
    modes = ["default", "max-autotune-no-cudagraphs"]
    graphs_fit = config.compile_unit == "model" and config.gradients == "float32"
    if card and graphs_fit and not config.offload_activations:
        modes.insert(1, "reduce-overhead")
    tried = [off, *({"compile": True, "compile_mode": mode} for mode in modes)]
    now = {"compile": config.compile, "compile_mode": config.compile_mode}
    return [choice for choice in tried if choice != now and (config.compile or choice != off)]


def micro_batches(config: RunConfig, rows: int) -> list[Choice]:
    """The next smaller and larger ones that leave the total batch, and the measured step, exactly as they are."""
    total, size = config.sequences_per_step, config.batch_size
    exact = [n for n in range(1, rows + 1) if total % n == 0 and rows % n == 0]
    near = [n for n in exact if n < size][-_NEAR:] + [n for n in exact if n > size][:_NEAR]
    return [{"batch_size": n, "gradient_accumulation_steps": total // n} for n in near]


def measured_rows(config: RunConfig) -> int:
    """Sequences of a measured step: four micro-batches, or the whole step where that is less."""
    total, rows = config.sequences_per_step, config.batch_size
    most = min(total, 4 * rows, max(LARGEST_ROWS, rows))
    while 2 * rows <= most and total % (2 * rows) == 0:
        rows *= 2
    return rows


def measured(config: RunConfig, rows: int) -> RunConfig:
    """The config with a step of so many sequences: every choice does the same work."""
    size = min(config.batch_size, rows)
    return config.replace(batch_size=size, gradient_accumulation_steps=max(1, rows // size))


def words(changes: Choice) -> str:
    """A choice as it stands in a config file."""
    return spelt(changes) or "as it is"
