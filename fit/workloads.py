"""What a row of a table ran, as the planner's Workload: its shape, batch, code and optimizer; what the row leaves open is taken for
granted and noted in `assumed`.

>>> from onecard.facts.gpus import find_gpu
>>> row = {"n_layer": "12", "n_embd": "768", "micro_batch": "8", "framework": "nanoGPT", "grad_accum": "4"}
>>> assumed = []
>>> workload = workload_of(row, find_gpu("RTX 4090"), assumed)
>>> workload.compiled, workload.vocab_size, assumed[:2]
(True, 50304, ['heads 64 wide', "GPT-2's vocabulary, 50304"])
"""

import re
from dataclasses import dataclass
from typing import Any

from fit.projects import compiles, fuses, habits_of, has_values, stack_of, tied, turned_copies
from fit.shapes import batch_of, hidden_width, shape_of, window_of
from fit.words import (
    amount_in,
    dropout_of,
    dtype_of,
    eight_bits,
    fused_of,
    head_width_of,
    is_negative,
    modern,
    norm_kernel_of,
    number_in,
    optimizer_of,
    recompute_of,
    whole_in,
    word_in,
)
from onecard.errors import UserError
from onecard.facts.builds import support_of
from onecard.facts.gpus import Device
from onecard.planner.workload import Workload

_FOREIGN = re.compile(
    r"\b(llm\.c|llm\.kittens|llmq|jax|maxtext|flax|tpu|mlx|tinygrad|ggml|rust|tensorflow|keras)\b|c\+\+/cuda"
)
# Training of another kind than the plan's: every weight, all on the card.
_OTHERWISE = re.compile(r"\b(q?lora|peft|adapters?|moe|mixture.of.experts|\d+ experts)\b")
# The update of each weight made as soon as its gradient is there
_IN_BACKWARD = re.compile(
    r"(optim|update|step|fused?).{0,15}(in|with|into) (the )?(backward|bwd)|in_bwd|lomo"
)


def is_foreign(row: dict[str, str]) -> bool:
    """Not PyTorch: predicted as what PyTorch would do."""
    framework = row.get("framework", "").lower()
    return bool(_FOREIGN.search(framework)) and "pytorch" not in framework


@dataclass(frozen=True)
class _Row:
    """A row's columns, those of words in lower case too, and what has been taken for granted so far."""

    columns: dict[str, str]
    device: Device
    assumed: list[str]
    framework: str
    optimizer: str
    parallelism: str
    recompute: str
    text: str  # model, notes and framework
    everything: str  # evidence and flags too

    @classmethod
    def of(cls, columns: dict[str, str], device: Device, assumed: list[str]) -> "_Row":
        lower = {key: value.lower() for key, value in columns.items()}
        framework = lower.get("framework", "")
        text = f"{lower.get('model', '')} {lower.get('notes', '')} {framework}"
        return cls(
            columns,
            device,
            assumed,
            framework,
            lower.get("optimizer", ""),
            word_in(columns, "parallelism"),
            lower.get("act_ckpt", ""),
            text,
            f"{text} {lower.get('evidence', '')} {lower.get('flags', '')}",
        )


def workload_of(columns: dict[str, str], device: Device, assumed: list[str]) -> Workload:
    row, foreign = _Row.of(columns, device, assumed), is_foreign(columns)
    layers, heads, width = shape_of(columns, assumed)
    gpus = whole_in(columns, "n_gpus") or 1
    vocab, block, batch, accumulation = batch_of(columns, gpus, assumed)
    _refuse_other_training(row)
    matrices = _matrices(row, layers, heads, width, vocab)
    dtype, pure = dtype_of(columns.get("dtype", ""), row.framework, device, assumed)
    parallelism = _parallelism(row, gpus)
    compiled = _compiled(row, foreign)
    code = _code(row, matrices["modern"], layers, width, vocab, gpus)
    return Workload(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        vocab_size=vocab,
        block_size=block,
        batch_size=batch,
        accumulation=accumulation,
        dtype=dtype,
        pure=pure,
        kept_half_bytes=eight_bits(columns.get("dtype", "")) and not foreign,
        gpus=gpus,
        sharded=bool(re.search(r"fsdp|full.?shard|zero.?3", parallelism)),
        nvlink="pcie" not in parallelism,
        compiled=compiled,
        window=window_of(columns, row.text),
        # logits that could not have been held were not held
        chunked_loss=foreign
        or bool(re.search(r"chunked|in chunks|liger", row.text))
        or batch * block * vocab * 4 > device.memory_bytes,
        recompute=recompute_of(row.recompute),
        optimizer=optimizer_of(row.optimizer),
        fused_optimizer=foreign or fused_of(row.optimizer, fuses(row.framework)),
        optimizer_loop=bool(re.search(r"custom|own|from scratch|by hand", row.optimizer)),
        in_backward=bool(_IN_BACKWARD.search(f"{row.optimizer} {row.recompute}")),
        **matrices,
        **{
            "buckets": "ddp" in parallelism and "zero" not in parallelism,
            "split_optimizer": "zero" in parallelism,
            **code,
        },
    )


def _refuse_other_training(row: _Row) -> None:
    other = _OTHERWISE.search(f"{row.text} {row.optimizer} {row.parallelism}")
    if other and not re.search(rf"(no|not|without) {re.escape(other[0])}", row.text):
        raise UserError(
            f"{other[0]} is not the training that is planned here: every weight of a dense model"
        )


def _matrices(row: _Row, layers: int, heads: int, width: int, vocab: int) -> dict[str, Any]:
    """What the blocks are made of."""
    kv_heads = whole_in(row.columns, "n_kv_head") or heads
    if kv_heads > heads:
        raise UserError(
            f"n_kv_head = {row.columns['n_kv_head']} is not possible with {heads} heads"
        )
    text = row.text
    is_tied = tied(row.columns.get("tied_embeddings", ""), text)
    qkv = width + 2 * width * kv_heads // heads
    d_ff = hidden_width(row.columns, text, layers, width, vocab, qkv, is_tied, row.assumed)
    is_modern = modern(text) and "llm.c" not in row.framework
    has_gate = re.search(r"llama|qwen|swiglu|geglu|gated|mistral|smollm|gemma|olmo", text)
    return {
        "n_kv_head": kv_heads,
        "head_dim": head_width_of(row.everything, width, heads),
        "d_ff": d_ff,
        "gated": bool(d_ff and has_gate),
        "tied": is_tied,
        "modern": is_modern,
        "rotary": False if re.search(r"learned pos|no pos", text) else None,
        "norms": 4 if re.search(r"before and after|peri.?ln|gemma.?[23]", text) else 2,
        "bias": not is_modern,
        "dropout": dropout_of(text),
    }


def _parallelism(row: _Row, gpus: int) -> str:
    parallelism = row.parallelism
    if gpus > 1 and not parallelism:
        row.assumed.append("DDP")
        return "ddp"
    if gpus > 1 and re.search(
        r"\b(tp|pp)\d*\b|tensor.?par|pipeline|dataparallel|\bdp\b", parallelism
    ):
        row.assumed.append("each card a micro-batch of its own")
    return parallelism


def _compiled(row: _Row, foreign: bool) -> bool:
    given = word_in(row.columns, "compile")
    usual = foreign or compiles(row.framework)
    if not given:
        row.assumed.append("compiled" if usual else "not compiled")
    compiled = foreign or (not is_negative(given) if given else usual)
    if compiled and not support_of(row.device).compiles:
        row.assumed.append(f"not compiled: Triton has nothing for {row.device.architecture}")
        return False
    return compiled


def _code(
    row: _Row, is_modern: bool, layers: int, width: int, vocab: int, gpus: int
) -> dict[str, Any]:
    """Whose code ran, and what that code does that changes memory or time."""
    framework, everything = row.framework, row.everything
    stack = stack_of(framework, row.columns.get("source", "").lower(), row.optimizer)
    params = amount_in(row.columns, "n_params_m", 1e6)
    values = (
        params > 1.08 * (12 * layers * width**2 + 2 * vocab * width)
        if params and stack == "nanochat"
        else has_values(f"{framework} {everything}")
        or 0 < (number_in(row.columns, "attn_window_factor") or 0) < 1
    )
    by_hand = _attention_by_hand(row)
    head_norms = stack in ("nanochat", "modded") or bool(re.search(r"qk.?norm|qwen.?3", row.text))
    return {
        "stack": stack,
        "flash": not by_hand,
        "head_norms": is_modern and head_norms,
        **habits_of(stack, framework, everything, by_hand, is_modern, layers, gpus, values),
        "turned_copies": turned_copies(stack, values, row.device),
        **({"norm_kernel": True} if norm_kernel_of(row.text) else {}),
        **({"split_optimizer": False} if "not distributed" in row.optimizer else {}),
    }


def _attention_by_hand(row: _Row) -> bool:
    """Written out as matrix products, not torch's fused kernel."""
    flash, framework = word_in(row.columns, "flash_sdpa"), row.framework
    # a mask handed to torch's attention keeps it from Flash
    mask = re.search(r"sdpa.{0,20}mask|mask.{0,20}sdpa", f"{row.everything} {flash}")
    early = re.search(r"\b(jan|feb)[a-z]* 2023", framework)
    unnamed = (
        not row.columns.get("flash_sdpa") and "nanogpt" in framework and "build" not in framework
    )
    if unnamed and (dropout_of(row.text) or early):
        # its first months had none, and until mid-2023 it was used without dropout only
        row.assumed.append("math attention, as nanoGPT then had")
        return True
    return is_negative(flash) or mask is not None
