"""Before the run: does the model compile, and which micro-batch fits on the card. Each is tried, not guessed."""

import importlib.util
import shutil
import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from onecard.config import RunConfig
from onecard.model.gpt2 import GPT
from onecard.model.machine import Precision, autocast
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.train.optim import state_tensors
from onecard.train.run.preflight import Preflight
from onecard.train.run.row_marks import RowMarks

# Every micro-batch that halving can lead to, with and without gradients, for each model of a process. Beyond torch's own
# limit of 8 it would run the rest eager without a word.
_SHAPES_COMPILED = 64


def compiled_forward(
    model: GPT,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    flight: Preflight,
) -> nn.Module:
    """The model compiled and tried on one micro-batch, or as it is with the reason why."""
    model.compile_blocks(None)
    if not config.compile:
        return model
    why = cannot_compile(device)
    if why is None:
        try:
            compiled = (
                ByBlock(model)
                if config.compile_unit == "block"
                else static_compile(model, compile_options(config, precision))
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of its own insides
                trial(compiled, model, config, device, precision, config.batch_size)
            return compiled
        except Exception as error:  # a compiler fails in as many ways as there are machines
            if is_out_of_memory(error):
                return compiled  # the step itself finds the micro-batch that fits
            torch._dynamo.reset()
            model.compile_blocks(None)
            why = first_line(error)
        finally:
            model.zero_grad(set_to_none=True)
    flight.say(f"compile: off, the run is eager ({why})")
    return model


class ByBlock(nn.Module):
    """A model whose layers are compiled, each by itself."""

    def __init__(self, model: GPT):
        super().__init__()
        self._orig_mod = model  # torch.compile's own name for it
        model.compile_blocks(partial(static_compile, options={}))

    def forward(self, *inputs: Any) -> Any:
        return self._orig_mod(*inputs)


def static_compile(model: Any, options: dict[str, Any]) -> Any:
    """Compiled for the shapes it meets, each by itself. Left to choose, torch compiles the second shape it meets for any
    shape, which is slower, and uses that from then on."""
    torch._dynamo.config.recompile_limit = max(
        torch._dynamo.config.recompile_limit, _SHAPES_COMPILED
    )
    return torch.compile(model, options=options, dynamic=False)


def first_line(error: BaseException) -> str:
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)[:160]


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
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # outside the except clause, whose traceback would keep the failed trial's tensors alive
        model.zero_grad(set_to_none=True)
        free_cached_memory()
        rows //= 2
    if rows < config.batch_size:
        flight.say(
            f"memory: batch_size {config.batch_size} does not fit, micro-batches of {rows} do; "
            "accumulation is raised to match, so the run is the same"
        )
    return rows


def cannot_compile(device: torch.device) -> str | None:
    """Why torch.compile is not even tried here; None where it is."""
    if device.type == "mps":
        return "torch's compiler for Apple's GPUs is a prototype"
    if device.type == "cpu" and not any(map(shutil.which, ("c++", "g++", "clang++", "cl"))):
        return "no C++ compiler was found"
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed"
        if not torch.version.hip and torch.cuda.get_device_capability(device) < (7, 0):
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
    """Two micro-batches of zeros forward and backward, beside as much memory as the optimizer will hold: what a step of
    the run needs at its most, in the strides and masks of its rows. The gradients are thrown away."""
    held = state_tensors(config, model) if device.type == "cuda" else []
    rows = torch.zeros(micro_batch, config.block_size + 1, dtype=torch.long, device=device)
    inputs, targets = rows[:, :-1], rows[:, 1:]
    if config.learn_from == "answers":
        targets = targets.contiguous()  # as RowMarks makes them
    for _ in range(2 if device.type == "cuda" else 1):
        with autocast(device, precision):
            loss = forward(
                inputs,
                targets,
                RowMarks(0 if config.mask_documents else None).documents(inputs),
            )[1]
        loss.backward()
    model.zero_grad(set_to_none=True)
    del held
