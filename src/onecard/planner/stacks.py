"""Whose code runs the step: what other projects' modules and loops do that changes memory or time, read in their sources.

>>> from onecard.config import RunConfig
>>> work = Workload.of(RunConfig(), "bfloat16")
>>> in_stack(work, "nanogpt").keeps_logits, in_stack(work, "hf").compiled
(True, False)

`plan --stack NAME` plans with these; fit/projects.py recognises them in tables of public runs. How much slower or faster each
project's code is than the count of its work says, is fitted (facts/speed_fit.json, "stacks").
"""

from dataclasses import replace
from typing import Any

from onecard.planner.workload import Workload

OWN = "onecard"
STACKS = (OWN, "nanogpt", "nanochat", "modded", "litgpt", "hf", "llm.c", "plain-pytorch")


def in_stack(w: Workload, stack: str) -> Workload:
    """The same model and batch as that project's code would run it."""
    if stack == OWN:
        return w
    return replace(w, stack=stack, **_loops(w, stack), **habits(stack, w.n_layer, w.gpus, w.modern))


def _loops(w: Workload, stack: str) -> dict[str, Any]:
    """What its training script does by default: compiler, optimizer, loss, architecture."""
    if stack in ("nanochat", "modded"):  # their own model, whatever the config says
        return {
            "modern": True,
            "bias": False,
            "tied": False,
            "optimizer": "muon",
            "compiled": True,
            "chunked_loss": False,
            # every fourth layer sees the whole context, the others a quarter (SSSL)
            "window": 0.4375 if stack == "nanochat" else w.window,
        }
    if stack == "llm.c":
        return {"compiled": True, "chunked_loss": True}  # its classifier never stores all logits
    if stack in ("hf", "plain-pytorch"):  # neither compiles unless asked to
        return {"compiled": False, "chunked_loss": False, "fused_optimizer": stack == "hf"}
    return {"chunked_loss": False}


def habits(
    stack: str, layers: int, gpus: int, modern: bool = False, values: bool = True
) -> dict[str, Any]:
    """Whose modules the run used, and where its loss was computed.

    nanochat's and modded-nanogpt's embeddings and stream are bf16, all else fp32; the loss alone is returned; the
    optimizer's memory is split between the cards, without DistributedDataParallel. `values`: with the value embeddings that
    nanochat has in every other layer since January 2026.
    """
    if stack == "nanogpt":
        # `logits, loss = model(X, Y)`: handed back, and named
        return {"returns_logits": True, "spare_logits": True, "keeps_logits": True}
    if stack == "hf":  # its GPT-2 writes out GELU in small steps; its Llamas do not
        modules = "own" if modern else "transformers"
        return {"modules": modules, "returns_logits": True, "spare_logits": False}
    if stack in ("litgpt", "plain-pytorch"):
        return {"loss_outside": True, "spare_logits": False}
    if stack not in ("nanochat", "modded"):
        return {"returns_logits": True, "spare_logits": False}
    tables = (layers + 1) // 2 if stack == "nanochat" else min(3, layers)
    return {
        "half_stream": True,
        "value_tables": tables if values else 0,
        "returns_logits": False,
        "spare_logits": False,
        "keeps_logits": False,
        # gradients stacked for the exchange, still held when the next step begins
        "buckets": gpus > 1,
        "split_optimizer": gpus > 1,
    }
