"""A step as a sum of a few kinds of work, each of which has its own cost on a device.

Everything grows with layers, width, batch and vocabulary.

>>> from onecard.config import RunConfig
>>> small = Workload.of(RunConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=256, compile=False), "float32")
>>> wide = Workload.of(RunConfig(n_layer=2, n_head=2, n_embd=128, vocab_size=256, compile=False), "float32")
>>> work(wide)["blocks"] / work(small)["blocks"], work(wide)["head"] / work(small)["head"]
(4.0, 2.0)
"""

import dataclasses
from collections.abc import Mapping

from onecard.planner.card_rate import speed_fit
from onecard.planner.flops import attention_flops
from onecard.planner.step_counts import (
    attention_passes,
    fresh_bytes,
    micro_bytes,
    micro_kernels,
    optimizer_bytes,
    optimizer_flops,
    unaligned_head,
    waiting,
)
from onecard.planner.workload import Workload

Costs = dict[str, float]  # seconds a unit of work: a FLOP, a byte, a kernel, a step
# Which part of the step (plan.time.parts) each kind of work belongs to.
PART_OF = {
    "blocks": "matmul",  # FLOPs of the layers' matrices
    "head": "matmul",  # FLOPs of the vocabulary's matrix
    "attention": "matmul",  # FLOPs between the tokens of a sequence
    "layers": "memory",  # bytes of activations
    "logits": "memory",  # bytes of scores over the vocabulary: far larger tensors, out of any cache
    "fresh": "memory",  # bytes of tensors so large that the system hands out fresh pages every time
    "weights": "memory",  # bytes of weights and gradients, once a micro-batch
    "kernels": "launch",  # kernels or operations started
    "update": "optimizer",  # bytes of weights, gradients and moments, once a step
    "step": "launch",  # what every step costs whatever its size
}


def mode(w: Workload) -> str:
    return "compiled" if w.compiled else "eager"


def work(w: Workload) -> dict[str, float]:
    """How much of each kind of work one step is: FLOPs, bytes, kernels."""
    fit = speed_fit()
    again = w.recompute == "block"
    everything = w.tokens * w.accumulation
    # micro_bytes is a sum over layers, logits and weights: without layers, and without tokens, the others are left
    bare, empty = dataclasses.replace(w, n_layer=0), dataclasses.replace(w, batch_size=0)
    logits = micro_bytes(bare, fit) - micro_bytes(dataclasses.replace(bare, batch_size=0), fit)
    weights = micro_bytes(empty, fit)
    layers = micro_bytes(w, fit) - weights - logits
    amounts = {
        "blocks": (6.0 + 2 * again) * everything * w.n_layer * w.layer_params,
        "head": 6.0 * everything * w.vocab_size * w.n_embd * unaligned_head(w, fit),
        "attention": attention_flops(w) * everything * attention_passes(w),
        "layers": layers * w.accumulation,
        "logits": logits * w.accumulation,
        "fresh": fresh_bytes(w) * w.accumulation,
        "weights": weights * w.accumulation,
        "kernels": micro_kernels(w) * w.accumulation,
    }
    if w.dropout:
        amounts = {kind: amount * fit["dropout"] for kind, amount in amounts.items()}
    amounts["blocks"] += optimizer_flops(w)
    return {**amounts, "update": optimizer_bytes(w), "step": 1.0}


def predicted(w: Workload, costs: Mapping[str, float], host_seconds: float = 0.0) -> float:
    """Seconds of one step on one device."""
    busy = sum(costs[kind] * amount for kind, amount in work(w).items())
    return busy + waiting(busy, micro_kernels(w) * w.accumulation * host_seconds)
