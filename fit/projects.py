"""Whose code ran: what each project's modules and loops do that changes memory or time, read in their sources.

>>> compiles("nanogpt"), compiles("hf transformers")
(True, False)
>>> habits("nanogpt", "", by_hand=False)["keeps_logits"]
True
"""

import re
from typing import Any

from fit.words import HUGGING_FACE, is_negative
from onecard.facts.gpus import Device


def tied(given: str, text: str) -> bool:
    """As given; else as GPT-2, but for the projects that never tie."""
    if given:
        return not is_negative(given)
    return not re.search(r"nanochat|autoresearch|modded|pythia|tinyllama|untied", text)


def habits(framework: str, text: str, by_hand: bool, has_rope: bool = False) -> dict[str, Any]:
    """Whose modules the run used, and where its loss was computed; only memory asks."""
    if re.search(r"nano.?gpt", framework) and "modded" not in framework:
        return {"keeps_logits": True}  # `logits, loss = model(X, Y)`: handed back, and named
    if re.search(
        rf"{HUGGING_FACE}|^hf\b", framework
    ):  # its GPT-2 writes out GELU in small steps; its Llamas do not
        return {"modules": "own" if has_rope else "transformers", "spare_logits": False}
    if "from-scratch" in framework or "from scratch" in framework:
        own = (
            by_hand and "pytorch ln" not in text
        )  # the book replaces its own LayerNorm and GELU along the way
        return {"modules": "scratch" if own else "own", "loss_outside": True, "spare_logits": False}
    return {"spare_logits": False}


def nanochat(framework: str, text: str, layers: int, gpus: int, device: Device) -> dict[str, Any]:
    """What nanochat's and modded-nanogpt's modules do that nanoGPT's do not, read in their sources.

    Embeddings and the stream are bf16, all else fp32; the loss alone is returned; the optimizer's memory is split between
    the cards, without DistributedDataParallel. Since January 2026 every other layer of nanochat has value embeddings;
    before, its attention went through torch's dispatcher, which takes cuDNN's kernel on Hopper.
    """
    if not re.search(r"nanochat|autoresearch|modded", framework):
        return {}
    values = re.search(
        r"value.?emb|\bve\b|sssl|sliding|window|autoresearch|2026", f"{framework} {text}"
    )
    tables = 0
    if values:
        tables = (layers + 1) // 2 if "modded" not in framework else min(3, layers)
    return {
        "half_stream": True,
        "value_tables": tables,
        "returns_logits": False,
        "spare_logits": False,
        "keeps_logits": False,
        "buckets": gpus
        > 1,  # gradients stacked for the exchange, still held when the next step begins
        "split_optimizer": gpus > 1,
        "turned_copies": not values
        and "modded" not in framework
        and device.architecture == "Hopper",
    }


def compiles(framework: str) -> bool:
    return (
        any(word in framework for word in ("nanogpt", "modded", "nanochat", "litgpt", "torchtitan"))
        or not framework
    )


def fuses(framework: str) -> bool:
    return any(
        word in framework
        for word in ("nanogpt", "modded", "nanochat", "litgpt", "lit-gpt", "torchtitan", "foundry")
    )
