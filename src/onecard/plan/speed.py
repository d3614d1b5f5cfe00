"""Seconds of one step: matmul FLOPs over what the card reaches, plus bytes moved over its bandwidth, plus overheads.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(batch_size=8, gradient_accumulation_steps=64)
>>> time = step_time(run, find_gpu("RTX 4070"), "bfloat16")
>>> time.seconds.low < 9.34 < time.seconds.high  # a real log's figure
True

Bytes are counted kernel by kernel below; what the card reaches of its specification (facts/speed_fit.json) is fitted by
fit/speed.py from public runs. Everything grows strictly with layers, width, batch and vocabulary.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from onecard.config import RunConfig
from onecard.facts.gpus import Device
from onecard.facts.table import fact_file
from onecard.plan.calibration import Calibration
from onecard.plan.flops import attention_flops
from onecard.plan.result import Range
from onecard.plan.workload import Workload

Fit = dict[str, Any]
_TILE = 128 * 128  # outputs that one SM computes at a time in a large matmul
_DTYPE_BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2, "float8": 2}


@dataclass(frozen=True)
class StepTime:
    seconds: Range
    parts: dict[str, float]  # seconds of one step; they sum to seconds.mid
    basis: str  # "measured": a probe of this very card; "fitted": kin of its architecture; "class": a wider guess
    compile_seconds: float


def step_time(
    config: RunConfig, device: Device, dtype: str, gpus: int = 1, calibration: Calibration | None = None
) -> StepTime:
    """One optimizer step of `config` on `gpus` cards, with an 80 % range."""
    return workload_time(Workload.of(config, dtype, gpus), device, calibration)


def workload_time(
    w: Workload, device: Device, calibration: Calibration | None = None, fit: Fit | None = None
) -> StepTime:
    """The same for any Workload; `fit` lets the cross-validation pass constants that never saw the run."""
    fit = fit or speed_fit()
    parts = step_parts(w, device, fit)
    basis = "fitted" if device.rate_class in fit["classes"] else "class"
    middle, spread = sum(parts.values()), fit["spread"][basis]
    return StepTime(Range(middle / spread, middle, middle * spread), parts, basis, compile_seconds(w))


@cache
def speed_fit() -> Fit:
    """The fitted constants that ship with onecard."""
    fit: Fit = json.loads(fact_file("speed_fit.json"))
    return fit


def compile_seconds(w: Workload) -> float:
    """torch.compile before the first step: about 15 s and 1.5 s a layer on a desktop's CPU. A rough guess."""
    return 15 + 1.5 * w.n_layer if w.compiled else 0.0


def step_parts(w: Workload, device: Device, fit: Fit) -> dict[str, float]:
    """Seconds of one step by what they are spent on."""
    rate = device.peak_flops(w.dtype) * ceiling(device, fit) * fit["matmul"]
    bandwidth = device.bandwidth * fit["bandwidth"]
    matmul = matmul_work(w, device.units, fit) / rate
    memory = micro_bytes(w, fit) / bandwidth
    update = optimizer_bytes(w) / bandwidth + optimizer_flops(w) / rate
    kernels = micro_kernels(w)
    busy = matmul + memory + kernels * fit["kernel_seconds"]
    launch = kernels * fit["kernel_seconds"] + _waiting(busy, kernels * fit["host_seconds"])
    return {
        "matmul": matmul * w.accumulation,
        "memory": memory * w.accumulation,
        "optimizer": update,
        "launch": launch * w.accumulation,
        "data": 0.0,  # the loader reads ahead while the card works
        "exchange": exchange_seconds(w, device, busy * w.accumulation, fit),
    }


def ceiling(device: Device, fit: Fit) -> float:
    """Share of its specified rate that the card's largest matmuls reach."""
    share: float = fit["cards"].get(device.name) or fit["classes"].get(device.rate_class, fit["default_class"])
    return share


def _waiting(busy: float, host: float) -> float:
    """Seconds that the card waits for the host to launch kernels: none when it is busy, all when it is idle; smooth."""
    return float((busy**4 + host**4) ** 0.25 - busy)


def matmul_work(w: Workload, units: int, fit: Fit) -> float:
    """FLOPs of one micro-batch, each matmul with the half wave of tiles that its last round leaves idle."""
    tokens = w.tokens
    wave = 0.5 * units * _TILE
    layer = 0.0
    for inputs, outputs in w.layer_matrices:
        forward = 2 * inputs * (tokens * outputs + wave) + 2 * outputs * (
            tokens * inputs + wave
        )  # y = x·W and dx = dy·Wᵀ
        layer += forward + 2 * tokens * inputs * outputs  # dW = xᵀ·dy: split along the tokens, so always full
        if w.recompute == "block":
            layer += 2 * inputs * (tokens * outputs + wave)
    head = 6 * tokens * w.n_embd * w.vocab_size
    if w.vocab_size % 8 and w.dtype not in ("float32", "tf32"):
        head *= fit["odd_vocab"]  # rows that tensor cores cannot load aligned
    # Flash attention computes the scores again going backward: 2 + 5 matmuls instead of 2 + 4. Math attention does both halves.
    passes = 3.5 + (w.recompute == "block") if w.flash else 2 * (3 + (w.recompute == "block"))
    attention = attention_flops(w) * tokens * passes / fit["attention"]
    return w.n_layer * layer + head + attention


def micro_bytes(w: Workload, fit: Fit) -> float:
    """Bytes that one micro-batch moves outside the matmuls, and the share of the matmuls' own that is not hidden."""
    e = _DTYPE_BYTES[w.dtype]  # bytes of an activation
    r = 2 if w.pure else 4  # bytes of the residual stream
    width, ff, kv = w.n_embd, w.ff_width, w.kv_width
    gate = 2 if w.gated else 1
    qkv = width + 2 * kv
    if w.compiled:
        # two fused residual-add + norm forward, each reading stream and branch, writing stream and norm; and backward
        norms = 2 * width * (2 * r + 2 * e) + 2 * width * (3 * r + 2 * e)
        activation = ff * (gate + 1) * e + ff * (2 * gate + 1) * e
        rotary = 4 * (width + kv) * e if w.modern else 0
    else:
        # each op by itself: norm, cast, add; and backward the same with the gradient's own add
        cast = 0 if w.pure or e == 4 else r + e
        norms = 2 * width * (2 * r + cast + 2 * r + e) + 2 * width * (3 * r + cast + 3 * r)
        activation = ff * (2 * gate + (gate > 1)) * e + ff * (3 * gate + 2 * (gate > 1)) * e
        rotary = 16 * (width + kv) * e if w.modern else 0
        activation += (w.bias * 2) * (ff + qkv + 2 * width) * e / 2
    if w.dropout:
        norms += 2 * width * (0 if w.compiled else 5 * e) + 2 * width
    attention = 2 * (qkv + width) * e + 2 * (qkv + width) * e + 2 * qkv * e + 8 * width
    if not w.flash:
        passes = 10 if w.compiled else 22  # scores written and read: scale, mask, softmax, cast, and all that backward
        attention += passes * w.n_head * w.block_size * e
    layer = norms + activation + rotary + attention
    if w.recompute == "block":
        layer *= 1.35
    elif w.recompute == "cheap":
        layer += norms / 3 + activation / 3
    operands = 3 * sum(inputs + outputs for inputs, outputs in w.layer_matrices) * e
    logits = 8 * w.vocab_size if w.compiled else (24 if w.pure else 36) * w.vocab_size
    operands_head = 3 * e * (w.vocab_size + width)
    per_token = w.n_layer * (layer + fit["matmul_bytes"] * operands) + logits + fit["matmul_bytes"] * operands_head
    # weights read in fp32 and cast, read three times, gradients written and added up
    weights = (0 if w.pure or e == 4 else 4 + e) + 3 * e * fit["matmul_bytes"] + (e if w.pure else e + 8)
    return w.tokens * per_token + weights * w.params


def optimizer_bytes(w: Workload) -> float:
    """Bytes of the update: gradient norm and clip, weights, gradients and moments read and written."""
    e = _DTYPE_BYTES[w.dtype] if w.pure else 4
    clip = 3 * e
    update = 7 * e if w.fused_optimizer else 24 * e
    if w.optimizer == "adamw8bit":
        update = 3 * e + 4
    elif w.optimizer == "muon":
        update = 5 * e + 16
    share = 1 / w.gpus if w.sharded else 1.0
    return (clip + update) * w.params * share


def optimizer_flops(w: Workload) -> float:
    """Muon's five Newton-Schulz rounds on every layer matrix: 4·short²·long + 2·short³ each."""
    if w.optimizer != "muon":
        return 0.0
    shapes = ((w.n_embd, w.n_embd),) * 4 + w.layer_matrices[2:]
    rounds = sum(4 * min(s) ** 2 * max(s) + 2 * min(s) ** 3 for s in shapes)
    return 5.0 * w.n_layer * rounds


def micro_kernels(w: Workload) -> float:
    """Kernels launched in one micro-batch, forward and backward."""
    if w.compiled:
        return 12 + 24 * w.n_layer
    return 30 + (62 + 30 * w.modern + 12 * (not w.flash) + 25 * (w.recompute == "block")) * w.n_layer


def exchange_seconds(w: Workload, device: Device, busy: float, fit: Fit) -> float:
    """Gradients summed over the cards once a step (or weights gathered every micro-batch), less what hides behind work."""
    if w.gpus == 1:
        return 0.0
    link = link_bandwidth(device, w.nvlink)
    share = 2 * (w.gpus - 1) / w.gpus
    volume = share * w.params * (2 if w.pure else 4)
    hidden = busy / max(w.accumulation, 1) * fit["overlap"]  # the backward pass of the last micro-batch
    if w.sharded:
        volume, hidden = 1.5 * share * w.params * 2 * w.accumulation, busy * fit["overlap"]
    seconds = volume / link
    return float((seconds**4 + hidden**4) ** 0.25 - hidden) + 0.1 * seconds


def link_bandwidth(device: Device, nvlink: bool) -> float:
    """Bytes per second each way between cards: NVLink on data-centre boards, else PCIe 4.0 through the host."""
    if nvlink and device.rate_class in ("ga100", "hopper", "bw_dc", "volta") and "PCIe" not in device.name:
        return {"volta": 110e9, "ga100": 230e9, "hopper": 340e9, "bw_dc": 650e9}[device.rate_class]
    return 12e9
