"""Seconds of one step: matmul FLOPs over what the card reaches, plus bytes moved over its bandwidth, plus overheads.

>>> from onecard.facts.gpus import find_gpu
>>> run = RunConfig(batch_size=8, gradient_accumulation_steps=64)
>>> time = step_time(run, find_gpu("RTX 4070"), "bfloat16")
>>> time.seconds.low < 9.34 < time.seconds.high  # a real log's figure
True

`step_counts` counts the bytes kernel by kernel; what the card reaches of its specification (facts/speed_fit.json) is fitted by
fit/speed.py from public runs. Everything grows strictly with layers, width, batch and vocabulary.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from onecard.config import RunConfig
from onecard.config.model_rules import padded_vocab
from onecard.facts.gpus import Device
from onecard.facts.links import Links
from onecard.planner.card_rate import ceiling, speed_fit
from onecard.planner.exchange import exchange_seconds
from onecard.planner.flops import attention_flops
from onecard.planner.memory.step import host_bytes
from onecard.planner.result import Range
from onecard.planner.stacks import OWN, in_stack
from onecard.planner.step_counts import (
    DTYPE_BYTES,
    UNFUSED,
    Fit,
    attention_passes,
    fresh_bytes,
    layer_bytes,
    micro_bytes,
    micro_kernels,
    operand_bytes,
    optimizer_bytes,
    optimizer_flops,
    optimizer_kernels,
    unaligned_head,
    waiting,
)
from onecard.planner.workload import Workload

if TYPE_CHECKING:
    from onecard.planner.calibration import (
        Calibration,  # which counts work by this file's functions
    )

_USUAL_HEAD = 64  # numbers in a head of GPT-2: what attention_rate is fitted for
_TILE = 128 * 128  # outputs that one SM computes at a time in a large matmul
OLD_ATTENTION = ("Maxwell", "Pascal", "Volta", "Turing")  # FlashAttention-2 needs Ampere or newer
# Their attention is a guess: logs of a V100 and a TITAN Xp took 1.3 and 1.9 times the prediction.
_OLD_ATTENTION_HIGH = 2.0
# pages new to a process, faulted in by one or two cores: `onecard probe` measures 1 to 3 GB/s on x86 machines
FRESH_BYTES_PER_SECOND = 2e9
RANGES = ("own", "other", "odd", "eager")
LIKE_OWN = (OWN, "nanogpt", "nanochat", "modded")  # compiled PyTorch of nanoGPT's descent
LOOSE = ("plain-pytorch", "hf", "litgpt")  # written in many ways
SLOW_HOST = ("textbook",)  # Python between the kernels of code written to be read
_SMALL = 2**21  # tokens × width of a micro-batch below which launches and idle units decide
COMPILE_SECONDS_PER_LAYER = 2.75
EVALUATION_COMPILES = 0.5  # of that
COMPILE_RANGE = (0.5, 2.0)  # half to double
FP8_RATE = 2.0  # of the bf16 rate, with fp32 accumulation: NVIDIA's data sheets, Ada, Hopper and Blackwell alike


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, by part."""

    seconds: Range
    parts: dict[str, float]  # seconds of one step; they sum to seconds.mid
    basis: str  # "measured": a probe of this very card; "fitted": cards of its architecture; "class": a wider estimate
    compile_seconds: float


def step_time(
    config: RunConfig,
    device: Device,
    dtype: str,
    gpus: int = 1,
    calibration: "Calibration | None" = None,
    stack: str = OWN,
    nodes: int = 1,
    link: Links | None = None,
) -> StepTime:
    """One optimizer step of `config` on `gpus` cards, with an 80 % range; a calibration is of our own code alone."""
    work = in_stack(Workload.on(device, config, dtype, gpus, nodes, link), stack)
    return workload_time(work, device, calibration if stack == OWN else None)


def workload_time(
    w: Workload, device: Device, calibration: "Calibration | None" = None, fit: Fit | None = None
) -> StepTime:
    """The same for any Workload; `fit` lets the cross-validation pass constants that never saw the run."""
    if calibration is not None and calibration.covers(w):
        parts, (low, high) = calibration.parts(w, device), calibration.range_of(w)
        middle = sum(parts.values())
        return StepTime(
            Range(middle * low, middle, middle * high), parts, "measured", compile_seconds(w)
        )
    fit = fit or speed_fit()
    parts = step_parts(w, device, fit)
    basis = "fitted" if device.rate_class in fit["classes"] else "class"
    low, high = fit["spread"]["class" if basis == "class" else range_group(w, device)]
    if device.architecture in OLD_ATTENTION:
        high = max(high, _OLD_ATTENTION_HIGH)
    middle = sum(parts.values())
    return StepTime(Range(middle * low, middle, middle * high), parts, basis, compile_seconds(w))


def range_group(w: Workload, device: Device) -> str:
    """Which of the ranges holds: "eager" for code of no known project, or of Hugging Face's, that is not compiled: what lies between
    its kernels is not in any table. "own" for our trainer and code like it as it is meant to run, "odd" for what is timed by
    launches, by attention without Flash, by fp8, CUDA graphs, by code that is not compiled or by a laptop, "other" for the rest."""
    if not w.compiled and w.stack in LOOSE:
        return "eager"
    if not w.compiled or not w.flash or w.fp8 or w.graphs or w.stack in SLOW_HOST:
        return "odd"
    if device.architecture in OLD_ATTENTION or w.tokens * w.n_embd < _SMALL:
        return "odd"
    if "Laptop" in device.name:
        return "odd"  # its watts are its maker's choice
    return "own" if w.gpus == 1 and not w.dropout and w.stack in LIKE_OWN else "other"


def padding_gain(config: RunConfig, device: Device, dtype: str) -> float:
    """The share of a step's time that a vocabulary padded to a multiple of 64 saves."""
    size = config.shape.vocab_size
    if padded_vocab(size) == size:
        return 0.0
    padded = replace(Workload.on(device, config, dtype), vocab_size=padded_vocab(size))
    return (
        1 - workload_time(padded, device).seconds.mid / step_time(config, device, dtype).seconds.mid
    )


def compile_seconds(w: Workload) -> float:
    """torch.compile before the first step: a few seconds a layer on one core of a desktop's CPU. Half to double is usual.

    Logged for nanoGPT: 32 s for 12 layers beside an RTX 4070, 7 s for 4 narrow ones (karpathy/nanoGPT pull 392: a first
    step of 8.0 s, 1.2 s of it without the compiler), "a ~minute" in its own train.py. A second run finds a cache.
    The evaluation has no gradients, so it is compiled by itself, in about half the time: 0.53 and 0.64 of the step's on
    a CPU, 4 layers of 128 of either recipe.
    """
    return (1 + EVALUATION_COMPILES) * COMPILE_SECONDS_PER_LAYER * w.n_layer if w.compiled else 0.0


def step_parts(w: Workload, device: Device, fit: Fit) -> dict[str, float]:
    """Seconds of one step by what they are spent on."""
    rate = device.peak_flops(w.dtype) * ceiling(device, w.dtype, fit)
    bandwidth = device.bandwidth * fit["bandwidth"] * fit["caches"].get(device.architecture, 1.0)
    # a matmul loads its operands while it computes: the longer of the two counts, the shorter shows a little
    matmul = float(
        (matmul_seconds(w, device, rate, fit) ** 3 + (operand_bytes(w) / bandwidth) ** 3) ** (1 / 3)
    )
    memory = (micro_bytes(w, fit) - cached_bytes(w, device, fit)) / bandwidth
    if device.kind == "cpu":
        memory += fresh_bytes(w) / FRESH_BYTES_PER_SECOND
    if w.dropout:
        memory *= fit["dropout"]
        matmul *= 1.0 if fuses_masks(w) else fit["dropout"]
    update = (optimizer_bytes(w) - update_found(w, device)) / bandwidth
    update += optimizer_flops(w) / rate
    update += waiting(update, optimizer_kernels(w) * fit["host_seconds"])
    slow = w.stack in SLOW_HOST and not w.compiled
    host = fit["host_seconds"] * (fit["textbook_host"] if slow else 1.0)
    host *= 1.0 if w.compiled else fit["eager_host"]
    host *= not w.graphs  # the card replays the kernels by itself
    kernels = micro_kernels(w)
    busy = matmul + memory + kernels * fit["kernel_seconds"]
    launch = kernels * fit["kernel_seconds"] + waiting(busy, kernels * host)
    beside = (matmul + memory + launch) * w.accumulation  # what is sent meanwhile is hidden
    parts = {
        "matmul": matmul * w.accumulation,
        "memory": memory * w.accumulation,
        "optimizer": update,
        "launch": launch * w.accumulation,
        "data": 0.0,  # the loader reads ahead while the card works
        "exchange": exchange_seconds(w, device, beside, fit) if w.gpus > 1 else 0.0,
    }
    slower = stack_factor(code_of(w), fit) / fit["cards"].get(device.name, 1.0)
    slower *= single_step(w, fit)
    scaled = {part: seconds * slower for part, seconds in parts.items()}
    # the link's, not the card's nor the code's
    return {**scaled, "exchange": parts["exchange"], **host_part(w, device, busy * slower)}


def fuses_masks(w: Workload) -> bool:
    """Whether dropout's masks are drawn inside kernels that are there anyway: compiled, with Flash. Hugging Face's and textbook
    code is slower with them all the same."""
    return w.compiled and w.flash and w.stack not in (*SLOW_HOST, "hf")


def cached_bytes(w: Workload, device: Device, fit: Fit) -> float:
    """Of the bytes between kernels, those that the next kernel still finds in the chip's last cache: most where a layer's
    stream fits in it."""
    stream = 6.0 * w.tokens * w.n_embd
    share = device.cache_bytes / (device.cache_bytes + stream)
    return float(fit["cache_hits"] * share * layer_bytes(w, fit))


def update_found(w: Workload, device: Device) -> float:
    """Of an update's bytes, tensor by tensor, what the next operation still finds in the chip's last cache: weight,
    gradient and both moments of one matrix."""
    if not w.optimizer_loop or w.fused_optimizer:
        return 0.0
    tensors = 4 * DTYPE_BYTES["float32"] * w.layer_params / (2 + len(w.layer_matrices))
    share = device.cache_bytes / (device.cache_bytes + tensors)
    return (UNFUSED - 7) * DTYPE_BYTES["float32"] * w.params * share


def code_of(w: Workload) -> str:
    """Whose code runs, as the fit groups it: that of no known project is another one where it is not compiled."""
    return f"{w.stack}, eager" if w.stack == "plain-pytorch" and not w.compiled else w.stack


def stack_factor(stack: str, fit: Fit) -> float:
    """How much longer that project's code takes than the count of its work says."""
    known: dict[str, float] = fit["stacks"]
    return known.get(stack, known.get("plain-pytorch", 1.0))


def single_step(w: Workload, fit: Fit) -> float:
    """How much longer other people's code that is not compiled takes where every micro-batch is a step, less the more of them one
    step has: it reads the loss, fetches a batch and prints once a step, and the card waits."""
    if w.compiled or w.stack == OWN:
        return 1.0
    return float(fit["single_step"] ** (1 / w.accumulation))


def matmul_seconds(w: Workload, device: Device, rate: float, fit: Fit) -> float:
    """One micro-batch's matmuls, tile by tile: each tile's FLOPs, what it takes to start and end a tile, and what
    the last wave of tiles leaves idle. Fast units (H100, B200) lose most to starting and ending."""
    unit_rate = rate / device.units
    start = fit["tile_seconds"]
    faster = FP8_RATE if w.fp8 else 1.0

    def product(rows: int, columns: int, depth: float) -> float:
        tiles = rows * columns / _TILE / device.units + fit["wave"]
        return float(tiles * (2 * _TILE * depth / unit_rate + start))

    tokens, layer = w.tokens, 0.0
    forwards = 2 if w.recompute == "block" else 1
    for inputs, outputs in w.layer_matrices:
        layer += forwards * product(tokens, outputs, inputs / faster)
        layer += product(tokens, inputs, outputs / faster)
        # xᵀ·dy is cut along the tokens, so its waves are full
        layer += 2 * tokens * inputs * outputs / rate / faster
    head = product(tokens, w.vocab_size, w.n_embd) + product(tokens, w.n_embd, w.vocab_size)
    head += 2 * tokens * w.n_embd * w.vocab_size / rate
    head *= unaligned_head(w, fit)
    return w.n_layer * layer + head + attention_work(w, device, fit) / rate


def attention_work(w: Workload, device: Device, fit: Fit) -> float:
    """Attention's FLOPs of one micro-batch, stretched to matmul FLOPs that take as long.

    The exponentials between the matmuls, one a score whatever the head's width, cost the same on every unit, so fast units and
    narrow heads reach less (FlashAttention-3, Shah et al. 2024: at width 128 they take half of a Hopper's cycles).
    """
    per_flop = _USUAL_HEAD / max(1, w.head_width)  # exponentials, against those of a usual head
    slower = 1 + device.peak_flops(w.dtype) / device.units / fit["attention_rate"] * per_flop
    if device.architecture in OLD_ATTENTION:
        slower *= fit["old_attention"]  # torch falls back to its memory-efficient kernel
    return float(attention_flops(w) * w.tokens * attention_passes(w) * slower)


def host_part(w: Workload, device: Device, busy: float) -> dict[str, float]:
    """Copies to and from the computer's memory: the optimizer's once each way a step, layer inputs once each way a
    micro-batch of `busy` seconds; one way after the other, for what both at once would take was not measured. With
    update_in_backward the optimizer's hide behind the last backward pass, two thirds of a micro-batch."""
    if device.kind != "cuda" or not (w.host_optimizer or w.host_inputs):
        return {}
    optimizer = 2 * host_bytes(replace(w, host_inputs=False)) / device.host_bandwidth
    if w.in_backward:
        optimizer = max(0.0, optimizer - busy * 2 / 3)
    inputs = 2 * host_bytes(replace(w, host_optimizer=False)) / device.host_bandwidth
    return {"host": optimizer + inputs * w.accumulation}
