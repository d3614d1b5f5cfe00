"""Before the run: is the data there, is there room for checkpoints, does it compile, does it fit. Says what it changed.

Each check gives a sentence; what cannot be mended raises UserError before anything is written.
"""

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onecard.config import RunConfig
from onecard.config.model_rules import GPT2_VOCAB
from onecard.data import Dataset
from onecard.errors import UserError
from onecard.model.machine import Precision, autocast
from onecard.train.io.loader import windows_of
from onecard.train.run.step import is_out_of_memory
from onecard.units import show_bytes, show_count


@dataclass
class Preflight:
    """What was found and changed; `lines` are shown to the user and kept in the log."""

    lines: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)


def resolve_vocab(config: RunConfig, data: Dataset) -> RunConfig:
    """vocab_size None becomes the data's, padded as the planner pads it; GPT-2's where the data does not say."""
    known = data.vocab_size
    if config.vocab_size is None:
        return config.for_vocabulary(known or GPT2_VOCAB)
    if known is not None and config.vocab_size < known:
        raise UserError(
            f"vocab_size = {config.vocab_size} is smaller than the data set's {known}",
            hint="leave vocab_size out and the data's is used",
        )
    return config


def check_data(config: RunConfig, data: Dataset, flight: Preflight) -> None:
    """Both splits there and long enough; the first and last window read, so that a missing shard shows now."""
    for name in ("train", "val"):
        split = data.splits.get(name)
        if split is None:
            raise UserError(
                f"the data set {config.dataset!r} has no {name} split",
                hint=f"`onecard data {config.dataset}` prepares both",
            )
        windows = windows_of(
            split, config.block_size, {"train": "training", "val": "validation"}[name]
        )
        for start in (0, (windows - 1) * config.block_size):
            split.read(start, config.block_size + 1)
    if config.mask_documents and data.eot is None:
        raise UserError(
            "mask_documents needs an end-of-text token, and this data set has none",
            hint="leave mask_documents at False",
        )
    train, steps = data.splits["train"].tokens, config.max_iters
    flight.say(
        f"data: {show_count(train)} training tokens, {config.tokens_per_step * steps / train:.2f} epochs"
    )


def check_disk(config: RunConfig, parameters: int, folder: Path, flight: Preflight) -> None:
    """Room for the checkpoints that are kept and the one being written: weights and two moments in fp32."""
    one = 12 * parameters
    needed = one * (config.keep_checkpoints + 2)
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if free < one:
        raise UserError(
            f"{show_bytes(free)} free on the disk of {folder}, and one checkpoint takes {show_bytes(one)}",
            hint="free some space or name another out_dir",
        )
    if free < needed:
        flight.say(
            f"disk: {show_bytes(free)} free, {show_bytes(needed)} needed for {config.keep_checkpoints} "
            "checkpoints and the best: it may run full, and the run would go on without new ones"
        )


def compiled_forward(
    model: nn.Module,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    flight: Preflight,
) -> nn.Module:
    """The model compiled and tried on one micro-batch, or as it is with the reason why."""
    if not config.compile:
        return model
    why = _cannot_compile(device)
    if why is None:
        try:
            options = compile_options(config, precision)
            compiled: nn.Module = torch.compile(model, options=options)  # type: ignore[assignment]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of its own insides
                trial(compiled, model, config, device, precision, config.batch_size)
            return compiled
        except Exception as error:  # a compiler fails in as many ways as there are machines
            if is_out_of_memory(error):
                return compiled  # the step itself finds the micro-batch that fits
            torch._dynamo.reset()
            first = next(
                (line for line in str(error).splitlines() if line.strip()), type(error).__name__
            )
            why = first.strip()[:160]
    flight.say(f"compile: off, the run is eager ({why})")
    return model


def compile_options(config: RunConfig, precision: Precision) -> dict[str, Any]:
    """Inductor joins kernels that read the same data, were it a mask that every layer reads: layers to be computed again
    one by one come to be computed together, with up to half as much memory again. Let it be an activation at least."""
    if config.recompute == "none":
        return {}
    number = 4 if precision.dtype == "float32" else 2
    activation = number * config.n_embd * config.block_size * config.batch_size
    mask = (
        config.block_size**2 if config.attention == "math" else 0
    )  # in bytes, the same for every layer
    return {"score_fusion_memory_threshold": max(activation // 2, 2 * mask)}


def fitting_micro_batch(
    forward: nn.Module,
    model: nn.Module,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    flight: Preflight,
) -> int:
    """batch_size, or the half, quarter, … of it that fits on the card; the step's total batch stays what it is."""
    rows = config.batch_size
    while device.type == "cuda" and rows > 1:
        try:
            trial(forward, model, config, device, precision, rows)
            break
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        rows //= 2
    if rows < config.batch_size:
        flight.say(
            f"memory: batch_size {config.batch_size} does not fit, micro-batches of {rows} do; "
            "accumulation is raised to match, so the run is the same"
        )
    return rows


def _cannot_compile(device: torch.device) -> str | None:
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        return "no C++ compiler was found"
    if device.type == "cuda":
        try:
            import triton  # type: ignore[import-not-found,import-untyped,unused-ignore] # noqa: F401
        except ImportError:
            return "triton is not installed"
        if torch.cuda.get_device_capability(device) < (7, 0):
            return "triton needs compute capability 7.0 or newer"
    return None


def trial(
    forward: nn.Module,
    model: nn.Module,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    micro_batch: int,
) -> None:
    """One micro-batch of zeros forward and backward; the gradients are thrown away."""
    rows = torch.zeros(micro_batch, config.block_size + 1, dtype=torch.long, device=device)
    documents = rows[:, :-1] if config.mask_documents else None
    with autocast(device, precision):
        _, loss = forward(rows[:, :-1], rows[:, 1:], documents)
    loss.backward()
    model.zero_grad(set_to_none=True)
