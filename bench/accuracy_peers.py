"""The rows of accuracy.py by others: the rule of thumb of a single MFU, and llm-analysis where it is installed."""

import logging
from typing import Any

from fit.runs import Run

from bench.score import Answer, by_family, family_mean, score
from onecard.facts.gpus import Device
from onecard.planner.exchange import link_bandwidth
from onecard.planner.flops import model_flops
from onecard.planner.workload import Workload

PEER_INSTALL = "pip install --no-deps llm-analysis fire termcolor"  # its own pins would pull an old huggingface-hub
PEER_EFFICIENCY = (
    0.5  # "~0.5 for LLM training", llm_analysis/constant.py; its default of 1 is the card's peak
)
RULE_MFU = 0.4  # the rule of thumb: a well-fed card reaches 40 % of its peak


def rule_of_thumb(runs: list[Run]) -> list[Answer]:
    """The single-MFU rule on the same rows: model FLOPs over 40 % of the card's peak."""
    answers = []
    for run in runs:
        if run.workload is None or run.device is None or run.step_seconds is None:
            continue
        w = run.workload
        flops = model_flops(w) * w.tokens * w.accumulation
        seconds = flops / (RULE_MFU * run.device.peak_flops(w.dtype))
        answers.append(_exact(run, "time", seconds, run.step_seconds))
    return answers


def llm_analysis(runs: list[Run]) -> list[Answer] | None:
    """The same rows by llm-analysis, where it is installed; None where it is not. Given the row's shape, batch, card and
    flash attention, and the half of the peak that its own documentation expects of training; it knows no compiler."""
    try:
        logging.disable(logging.WARNING)  # it prints a page for every model
        import llm_analysis.analysis  # noqa: F401
    except ImportError:
        return None
    answers = []
    for run in runs:
        if run.workload is None or run.device is None:
            continue
        try:
            seconds, memory = _by_llm_analysis(run.workload, run.device)
        except Exception:  # a peer's own trouble with a row is not ours to mend
            continue
        if run.step_seconds is not None and not run.time_trouble:
            answers.append(_exact(run, "time", seconds, run.step_seconds))
        if run.memory_gb is not None and not run.memory_trouble:
            answers.append(_exact(run, "memory", memory / run.memory_unit, run.memory_gb))
    return answers


def _by_llm_analysis(w: Workload, d: Device) -> tuple[float, float]:
    """Seconds of a step and bytes of memory."""
    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis
    from llm_analysis.config import DtypeConfig, GPUConfig, ModelConfig, ParallelismConfig

    bits = 32 if w.dtype in ("float32", "tf32") else 16
    shape = (w.n_layer, w.n_head, w.n_embd, w.vocab_size, w.block_size, w.n_kv_head or w.n_head)
    widths = {"ffn_embed_dim": w.ff_width, "expansion_ratio": w.ff_width / w.n_embd}
    link, peak = link_bandwidth(d, w.nvlink) / 1e9, d.peak_flops(w.dtype) / 1e12
    card = GPUConfig("row", d.memory_bytes / 2**30, d.bandwidth / 1e9, link, 8e-6, peak)
    accumulation = max(1, round(w.accumulation))
    zero = DSZeRO.STAGE_1 if w.split_optimizer else DSZeRO.NONE
    recompute = ActivationRecomputation
    found = LLMAnalysis(
        ModelConfig("row", *shape, **widths),
        card,
        DtypeConfig("row", bits, bits, bits),
        ParallelismConfig(dp_size=w.gpus),
        flops_efficiency=PEER_EFFICIENCY,
    ).training(
        batch_size_per_gpu=w.batch_size,
        gradient_accumulation_steps=accumulation,
        seq_len=w.block_size,
        flash_attn=w.flash,
        softmax_dropout=w.dropout > 0,
        mlp_gated_linear_units=w.gated,
        total_num_tokens=w.tokens * accumulation * w.gpus,
        ds_zero=DSZeRO.STAGE_3 if w.sharded else zero,
        activation_recomputation=recompute.FULL if w.recompute == "block" else recompute.NONE,
    )
    memory = found["(weight+op_state+grad+act)_memory_per_gpu"]
    return float(found["latency_per_iter"]), float(memory)


def _exact(run: Run, kind: str, predicted: float, measured: float) -> Answer:
    """An answer without a range."""
    return Answer(run.id, run.family, kind, predicted, predicted, predicted, measured)


def peer_scores(answers: list[Answer]) -> dict[str, Any]:
    """As `summary`, for a peer."""
    scores: dict[str, Any] = {}
    for kind in ("memory", "time"):
        kept = [a for a in answers if a.kind == kind]
        families = by_family(kept)
        mean = family_mean(families, "median_abs_error")
        scores[kind] = {**score(kept), "mean_of_family_medians": mean, "families": families}
    return scores
