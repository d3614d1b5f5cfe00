"""How training runs a layer: everything kept, computed again in the backward pass, or compiled by itself.

Compiled as a whole, a model hands over all its gradients at the end of the backward pass, beside those added up so far.
Compiled layer by layer (`compile_unit = "block"`) each layer's are handed over when they are made. All layers share one
graph: a layer's parameters are inputs of it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from onecard.config import RunConfig
from onecard.model.host import saved_on_host

Runner = Callable[..., Any]  # (block, its inputs) → its output

# What "cheap" keeps: the outputs of matmuls and attention. Norms, GELU, dropout and sums are done again in the
# backward pass; they are bound by memory, not arithmetic.
_COSTLY = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def plainly(block: Runner, *inputs: Any) -> Any:
    return block(*inputs)


def block_runner(config: RunConfig, compiled: Callable[[Runner], Runner] | None = None) -> Runner:
    """Runs a block as the config says; `compiled` compiles what it is given."""
    run = compiled or _as_it_is
    if config.recompute == "cheap":
        return run(_cheaply)
    if config.recompute == "none":
        return run(plainly)
    if compiled is None and not config.offload_activations:
        return partial(checkpoint, use_reentrant=False)
    # around the compiled layer, not inside: the first pass is then compiled without anything kept for a second
    again = partial(checkpoint, run(plainly), use_reentrant=True)
    return partial(_input_on_host, again) if config.offload_activations else again


def forward_runner(config: RunConfig, compiled: Callable[[Runner], Runner]) -> Runner:
    """What a block computes, compiled, for a block whose call is hooked: recompute="block" is around the call."""

    def forward(block: Any, *inputs: Any) -> Any:
        return type(block).forward(block, *inputs)

    def cheaply(block: Any, *inputs: Any) -> Any:
        return _cheaply(partial(forward, block), *inputs)

    return compiled(cheaply if config.recompute == "cheap" else forward)


def _input_on_host(run: Runner, *inputs: Any) -> Any:
    """The layer's input is all that is kept for the backward pass, and that on the host."""
    with saved_on_host():
        return run(*inputs)


def _cheaply(block: Runner, *inputs: Any) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, _keep_costly)
    return checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)


def _as_it_is(run: Runner) -> Runner:
    return run


def _keep_costly(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in _COSTLY else CheckpointPolicy.PREFER_RECOMPUTE
