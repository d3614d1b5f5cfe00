"""Before the run: does the model compile, and which micro-batch fits on the card. Each is tried, not guessed."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import first_line
from onecard.facts.builds import has_cxx, has_triton, why_eager
from onecard.model import lean
from onecard.model.build import gradient_dtype
from onecard.model.gpt2 import GPT
from onecard.model.machine import Precision, autocast
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.train.optim import state_tensors
from onecard.train.run.preflight import Preflight
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.sharding import Sharding

# Every micro-batch that halving can lead to, with and without gradients, for each model of a process. Beyond torch's own
# limit of 8 it would run the rest eager without a word.
_SHAPES_COMPILED = 64

# torch.compile takes a mode or options, not both: what the modes stand for (torch._inductor.list_mode_options; a test compares)
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
}


def compiled_forward(
    model: GPT,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    flight: Preflight,
    sharding: Sharding | None = None,
) -> nn.Module:
    """The model compiled and tried on one micro-batch, or as it is with the reason why; in all processes or none of those
    with a sharded model."""
    _uncompile(model)
    if not config.compile:
        return model
    why = cannot_compile(device)
    if why is None:
        error: Exception | None = None
        try:
            compiled = _compiled(model, config, precision, sharding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of its own insides
                trial(compiled, model, config, device, precision, config.batch_size, sharding)
        except Exception as failure:  # a compiler fails in as many ways as there are machines
            error = failure
        finally:
            model.zero_grad()
        # where memory ran out, the step itself finds the micro-batch that fits
        broken = error is not None and not is_out_of_memory(error)
        if not (broken if sharding is None else sharding.any(broken)):
            return compiled
        torch._dynamo.reset()
        _uncompile(model)
        why = "not in another process" if error is None else first_line(error)
    flight.say(f"compile: off, the run is eager ({why})")
    return model


def _uncompile(model: GPT) -> None:
    model.compile_blocks(None)
    model.compile_loss(None)


def _compiled(
    model: GPT, config: RunConfig, precision: Precision, sharding: Sharding | None
) -> nn.Module:
    """Layer by layer where the model is sharded: a layer's weights are gathered before it and freed after it."""
    options = compile_options(config, precision)
    if not lean.on_cpu(model.lm_head.weight):
        model.compile_loss(partial(static_compile, options={}))
    if sharding is not None:
        model.compile_inside_blocks(partial(static_compile, options=MODES[config.compile_mode]))
        return model
    if config.compile_unit == "block":
        return ByBlock(model, MODES[config.compile_mode])
    model.keep_loss_out_of_graphs()
    whole: nn.Module = static_compile(model, options)
    return Replayed(whole) if config.compile_mode == "reduce-overhead" else whole


class Replayed(nn.Module):
    """A compiled model that a card replays as CUDA graphs. A replay overwrites what the one before gave out, so that
    gradients are added to tensors of our own: autograd would keep the graph's as they are."""

    def __init__(self, compiled: nn.Module):
        super().__init__()
        model = compiled._orig_mod  # torch.compile's own name for it
        assert isinstance(model, nn.Module)
        self._orig_mod = model
        self._compiled = [compiled]  # in a list: its parameters are the model's

    def forward(self, *inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        if torch.is_grad_enabled():
            for parameter in self._orig_mod.parameters():
                if parameter.grad is None:
                    dtype = gradient_dtype(parameter)
                    parameter.grad = torch.zeros_like(parameter, dtype=dtype)
        return self._compiled[0](*inputs)


class ByBlock(nn.Module):
    """A model whose layers are compiled, each by itself."""

    def __init__(self, model: GPT, options: dict[str, Any] | None = None):
        super().__init__()
        self._orig_mod = model  # torch.compile's own name for it
        model.compile_blocks(partial(static_compile, options=options or {}))

    def forward(self, *inputs: Any) -> Any:
        return self._orig_mod(*inputs)


def static_compile(model: Any, options: dict[str, Any]) -> Any:
    """Compiled for the shapes it meets, each by itself. Left to choose, torch compiles the second shape it meets for any
    shape, which is slower, and uses that from then on."""
    torch._dynamo.config.recompile_limit = max(
        torch._dynamo.config.recompile_limit, _SHAPES_COMPILED
    )
    return torch.compile(model, options=options, dynamic=False)


def compile_options(config: RunConfig, precision: Precision) -> dict[str, Any]:
    """Inductor fuses kernels that read the same data, even a mask that every layer reads: layers that should be computed
    again one by one are then computed together, with up to half as much memory again. So kernels are fused only where
    they share as much as an activation."""
    mode = MODES[config.compile_mode]
    if config.recompute == "none":
        return dict(mode)
    number = 4 if precision.dtype == "float32" else 2
    activation = number * config.n_embd * config.block_size * config.batch_size
    # in bytes, the same for every layer
    mask = config.block_size**2 if config.attention == "math" else 0
    return {**mode, "score_fusion_memory_threshold": max(activation // 2, 2 * mask)}


def fitting_micro_batch(
    forward: nn.Module,
    model: nn.Module,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    flight: Preflight,
    sharding: Sharding | None = None,
) -> int:
    """batch_size, or the half, quarter, … of it that fits on the card; the step's total batch stays what it is."""
    rows = config.batch_size
    while device.type == "cuda" and rows > 1:
        ran_out = False
        try:
            trial(forward, model, config, device, precision, rows, sharding)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            ran_out = True
        # outside the except clause, whose traceback would keep the failed trial's tensors alive
        if not (ran_out if sharding is None else sharding.any(ran_out)):
            break
        model.zero_grad()
        free_cached_memory()
        rows //= 2
    if rows < config.batch_size:
        flight.say(
            f"memory: batch_size {config.batch_size} does not fit, micro-batches of {rows} do; "
            "accumulation is raised to match, so the run is the same"
        )
    return rows


def cannot_compile(device: torch.device) -> str | None:
    """Why torch.compile is not even tried on this machine's device; None where it is."""
    nvidia = device.type == "cuda" and not torch.version.hip
    capability = torch.cuda.get_device_capability(device) if nvidia else None
    return why_eager(device.type, capability, has_cxx(), has_triton())


def trial(
    forward: nn.Module,
    model: nn.Module,
    config: RunConfig,
    device: torch.device,
    precision: Precision,
    micro_batch: int,
    sharding: Sharding | None = None,
) -> None:
    """Two micro-batches of zeros forward and backward, beside as much memory as the optimizer will hold: what a step of
    the run needs at its most, in the strides and masks of its rows. The gradients are thrown away."""
    kept, slices = (model, None) if sharding is None else (sharding.local, sharding.slices)
    held = state_tensors(config, kept, slices) if device.type == "cuda" else []
    rows = torch.zeros(micro_batch, config.block_size + 1, dtype=torch.long, device=device)
    inputs, targets = rows[:, :-1], rows[:, 1:]
    if config.learn_from == "answers":
        targets = targets.contiguous()  # as RowMarks makes them
    passes = 2 if device.type == "cuda" else 1
    around = nullcontext() if sharding is None else sharding.passes(passes)
    with around, _gradients_as_in_a_step(model, config, micro_batch):
        for _ in range(passes):
            with autocast(device, precision):
                loss = forward(
                    inputs,
                    targets,
                    RowMarks(0 if config.mask_documents else None).documents(inputs),
                )[1]
            loss.backward()
    if sharding is not None:
        sharding.reset()
    model.zero_grad()
    del held


@contextmanager
def _gradients_as_in_a_step(
    model: nn.Module, config: RunConfig, micro_batch: int
) -> Iterator[None]:
    """Frees each gradient as it is made, where a step of one micro-batch applies it within its backward pass."""

    def let_go(parameter: Tensor) -> None:
        parameter.grad = None

    one = micro_batch == config.sequences_per_step
    applied = list(model.parameters()) if config.update_in_backward and one else []
    hooks = [parameter.register_post_accumulate_grad_hook(let_go) for parameter in applied]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
