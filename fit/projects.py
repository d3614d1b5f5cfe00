"""Whose code ran: what each project's modules and loops do that changes memory or time, read in their sources.

>>> compiles("nanogpt"), compiles("hf transformers")
(True, False)
>>> stack_of("hf transformers run_clm"), stack_of("nanogpt (mar 2023, torch 2.0 nightly)")
('hf', 'nanogpt, 2023')
"""

import re
from typing import Any

from fit.words import HUGGING_FACE, is_negative
from onecard.facts.gpus import Device
from onecard.planner.stacks import habits


def tied(given: str, text: str) -> bool:
    """As given; else as GPT-2, but for the projects that never tie."""
    if given:
        return not is_negative(given)
    return not re.search(r"nanochat|autoresearch|modded|pythia|tinyllama|untied", text)


# Project by project, in this order: the first whose words stand in a row's framework is whose code ran.
_PROJECTS = (
    ("llm.c", r"llm\.kittens|llmq|^llm\.c(?! *train_gpt2\.py| *\(?pytorch)"),
    ("hf", rf"{HUGGING_FACE}|\bhf\b|llama-?factory|\btrl\b|axolotl|unsloth|oumi|run_clm"),
    ("sharded", r"llm-foundry|composer|torchtitan|megatron|deepspeed|neox|olmo"),
    ("litgpt", r"lit-?gpt|tinyllama"),
    ("textbook", r"from[- ]scratch|cs ?336|gpjt|raschka|textbook"),
    ("modded", r"parameter.?golf|modded|modula\b"),
    ("nanochat", r"nanochat|autoresearch"),
    ("nanogpt", r"nano.?gpt|llm\.c|train_gpt2"),
)
_EARLY = r"\b(jan|feb|mar|apr)[a-z]* 2023|torch (1\.|2\.0)"  # before FlashAttention-2 and its like


def stack_of(framework: str, source: str = "", optimizer: str = "") -> str:
    """Whose code ran, as the fit groups it: the stacks of planner/stacks.py and a few that only tables have. What
    modded-nanogpt was before it had Muon is nanoGPT's code."""
    for name, words in _PROJECTS:
        if re.search(words, framework):
            if name == "modded" and "adam" in optimizer and "muon" not in optimizer:
                return "nanogpt"
            return f"{name}, 2023" if name == "nanogpt" and _early(framework, source) else name
    return "plain-pytorch"


def _early(framework: str, source: str) -> bool:
    """Of 2023, by its own words or by the number of nanoGPT's issue (436 was opened in January 2024)."""
    issue = re.search(r"nanogpt/(?:issues|pull)/(\d+)", source)
    return bool(re.search(_EARLY, framework)) or (issue is not None and int(issue[1]) < 436)


def habits_of(
    row_stack: str,
    framework: str,
    text: str,
    by_hand: bool,
    modern: bool,
    layers: int,
    gpus: int,
    values: bool,
) -> dict[str, Any]:
    """planner/stacks.py's habits, and what a row's words say beyond them."""
    stack = row_stack.split(",")[0]
    if stack == "textbook":
        # the book replaces its own LayerNorm and GELU along the way
        own = by_hand and "pytorch ln" not in text
        return {"modules": "scratch" if own else "own", "loss_outside": True, "spare_logits": False}
    if stack == "plain-pytorch":
        return {"spare_logits": False}
    if "golf" in framework:  # a bf16 model whose matrices are fp32, with learned scales and mixes
        return {
            "spare_logits": False,
            "returns_logits": False,
            "half_stream": True,
            "scaled_branches": True,
        }
    if "train_gpt2" in framework or ("modded" in framework and stack == "nanogpt"):
        # llm.c's PyTorch twin hands back the loss alone; modded-nanogpt before Muon was a copy of it
        return {"spare_logits": False, "returns_logits": False}
    return habits(stack, layers, gpus, modern, values)


def has_values(text: str) -> bool:
    """Whether nanochat's value embeddings are there: named, or implied by what came with them in January 2026."""
    if re.search(r"(no|without) (value|ve\b)|oct(ober)?[- ]2025", text):
        return False
    return bool(re.search(r"value.?emb|\bve\b|s+sl\b|sliding|window|autoresearch|2026", text))


def turned_copies(stack: str, values: bool, device: Device) -> bool:
    """Before 2026 nanochat's attention went through torch's dispatcher, which takes cuDNN's kernel on Hopper."""
    return stack == "nanochat" and not values and device.architecture == "Hopper"


def compiles(framework: str) -> bool:
    """Where a row does not say so; build-nanogpt's script has it switched off."""
    if "build-nano" in framework:
        return False
    return (
        any(word in framework for word in ("nanogpt", "modded", "nanochat", "litgpt", "torchtitan"))
        or not framework
    )


def fuses(framework: str) -> bool:
    return any(
        word in framework
        for word in ("nanogpt", "modded", "nanochat", "litgpt", "lit-gpt", "torchtitan", "foundry")
    )
