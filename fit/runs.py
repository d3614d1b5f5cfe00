"""A table of measured training runs (the layout of data/public_runs.csv) read row by row into Workload and Device.

>>> runs = read_runs(DATA / "public_runs.csv")
>>> runs[0].id, runs[0].device.name, runs[0].workload.tokens, round(runs[0].step_seconds, 3)
('r001', 'B200', 65536, 0.667)

Nothing here raises on a bad row: what cannot be read becomes `Run.trouble`, one sentence.
"""

import csv
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu
from onecard.plan.workload import Workload

DATA = Path(__file__).parent / "data"
FOREIGN = (
    "llm.c",
    "llm.kittens",
    "llmq",
    "jax",
    "maxtext",
    "flax",
    "tpu",
    "mlx",
    "tinygrad",
    "ggml",
    "c++/cuda",
    "rust",
)
_NANOGPT = re.compile(r"nano.?gpt")
# A name that several boards carry, where the row does not say which: the one people rent most.
USUAL = {
    "A100": "A100 SXM 40GB", "A100 40GB": "A100 SXM 40GB", "A100 80GB": "A100 SXM 80GB", "H100": "H100 SXM",
    "V100": "V100 SXM2 16GB", "V100 32GB": "V100 SXM2 32GB", "V100 16GB": "V100 SXM2 16GB",
    "RTX PRO 6000 Blackwell": "RTX PRO 6000 Blackwell WS", "H200": "H200 SXM", "RTX 3080": "RTX 3080 10GB",
    "RTX 3060": "RTX 3060 12GB", "P100": "P100 PCIe 16GB", "RTX 4060 Ti": "RTX 4060 Ti 16GB", "GH200": "GH200 96GB",
    "RTX 5060 Ti": "RTX 5060 Ti 16GB",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    id: str
    family: str
    row: dict[str, str]
    workload: Workload | None
    device: Device | None
    step_seconds: float | None  # measured
    memory_gb: float | None  # measured, in memory_unit
    trouble: str | None  # why it cannot be predicted
    time_trouble: str | None = None  # why there is no time to compare with, where there is something odd
    memory_trouble: str | None = None
    assumed: tuple[str, ...] = ()  # what the row left open and was taken for granted
    foreign: bool = False  # not PyTorch: predicted as what PyTorch would do
    quality: str = ""

    @property
    def memory_reading(self) -> str:
        """Which memory the row's author read: "allocated", "reserved" or "process" (nvidia-smi and all that is like it)."""
        method = self.row.get("vram_method", "").lower()
        if re.search(r"reserved|cached", method):
            return "reserved"
        return "allocated" if "alloc" in method and not re.search(r"nvidia|smi|total|minus|used", method) else "process"

    @property
    def memory_unit(self) -> float:
        """Bytes of one unit of memory_gb. Scripts that print torch's reserved memory as "GB" divide by 1024³."""
        method = self.row.get("vram_method", "").lower()
        return 2**30 if "gib" in method or ("torch" in method and "reserved" in method) else 1e9


def all_runs() -> list[Run]:
    """Every public run that the constants are fitted on."""
    return read_runs(DATA / "public_runs.csv") + read_runs(DATA / "extra_runs.csv")


def read_runs(path: Path) -> list[Run]:
    """Every row of the table, readable or not; a file that is no such table is a UserError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as table:
            reader = csv.DictReader(table)
            missing = {"id", "gpu", "n_layer", "n_embd"} - set(reader.fieldnames or ())
            if missing:
                raise UserError(
                    f"{path.name} lacks the columns {', '.join(sorted(missing))}",
                    hint="give a table in the layout of fit/data/public_runs.csv",
                )
            return [_read(i, {k: (v or "").strip() for k, v in row.items() if isinstance(k, str) and not isinstance(v, list)})
                    for i, row in enumerate(reader, 1)]  # fmt: skip
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}", hint="give a CSV table of runs") from None


def _read(index: int, row: dict[str, str]) -> Run:
    id = row.get("id") or f"row {index}"
    family = row.get("source_family") or "?"
    run = Run(id, family, row, None, None, None, None, None, quality=row.get("quality", ""))
    try:
        assumed: list[str] = []
        device = find_card(row.get("gpu", ""), number_in(row, "gpu_vram_gb"), assumed)
        foreign = any(word in row.get("framework", "").lower() for word in FOREIGN)
        workload = _workload(row, device, foreign, assumed)
        seconds, time_trouble = _seconds(row, workload)
        memory, memory_trouble = _memory(row, device)
        return replace(run, workload=workload, device=device, step_seconds=seconds, memory_gb=memory, foreign=foreign,
                       time_trouble=time_trouble, memory_trouble=memory_trouble, assumed=tuple(assumed))  # fmt: skip
    except UserError as error:
        return replace(run, trouble=error.message)


def find_card(name: str, gib: float | None, assumed: list[str]) -> Device:
    """The row's card; where only the family of boards is named, the usual one, and that is noted."""
    if not name:
        raise UserError("no card given")
    if name in USUAL:
        found = find_gpu(USUAL[name] if not (name == "A100" and gib == 80) else "A100 SXM 80GB")
        assumed.append(f"{name} taken for {found.name}")
        return found
    try:
        return find_gpu(name, gib)
    except UserError as error:
        options = re.findall(r"can mean (.*)", error.message)
        if options:
            first = re.split(r", | or ", options[0])[0]
            assumed.append(f"{name} taken for {first}")
            return find_gpu(first)
        if gib is not None:  # a card named right with a memory nobody sells: the name counts
            return find_card(name, None, assumed)
        raise


def _workload(row: dict[str, str], device: Device, foreign: bool, assumed: list[str]) -> Workload:
    layers, width = _whole(row, "n_layer"), _whole(row, "n_embd")
    vocab, block = _whole(row, "vocab_size", most=1e7), _whole(row, "block_size", most=1e7)
    batch = _whole(row, "micro_batch", most=1e6)
    gpus = int(number_in(row, "n_gpus") or 1)
    if gpus < 1:
        raise UserError(f"n_gpus = {gpus} is not possible")
    heads = number_in(row, "n_head")
    if heads is None or heads < 1:
        heads = max(1, round(width / 64))
        assumed.append("heads 64 wide")
    framework, optimizer = row.get("framework", "").lower(), row.get("optimizer", "").lower()
    tied = row.get("tied_embeddings", "").lower()
    text = f"{row.get('model', '')} {row.get('notes', '')} {framework}".lower()
    d_ff = number_in(row, "d_ff")
    modern = (
        bool(re.search(r"rope|rotary|llama|qwen|nanochat|modded|rmsnorm|mistral|smollm|gemma|olmo", text))
        and "llm.c" not in framework
    )
    gated = bool(d_ff) and bool(re.search(r"llama|qwen|swiglu|geglu|gated|mistral|smollm|gemma|olmo", text))
    dtype, pure = dtype_of(row.get("dtype", ""), device, assumed)
    parallelism = row.get("parallelism", "").lower()
    accumulation = number_in(row, "grad_accum")
    tokens = number_in(row, "tokens_per_iter")
    if accumulation is None or accumulation <= 0:
        accumulation = tokens / (batch * block * gpus) if tokens and tokens > 0 else None
    if accumulation is None:
        accumulation = max(1.0, round(2**19 / (batch * block * gpus)))
        assumed.append("accumulation to half a million tokens a step")
    compiled = row.get("compile", "").lower()
    if not compiled:
        assumed.append("compiled" if _compiles(framework) else "not compiled")
    dropout = _dropout(text)
    flash = row.get("flash_sdpa", "").lower()
    early = re.search(r"\b(jan|feb)[a-z]* 2023", framework)
    if not flash and "nanogpt" in framework and "build" not in framework and (dropout or early):
        flash = "no"  # its first months had none, and until mid-2023 it was used without dropout only
        assumed.append("math attention, as nanoGPT then had")
    return Workload(
        n_layer=layers,
        n_head=int(heads),
        n_embd=width,
        vocab_size=vocab,
        block_size=block,
        batch_size=batch,
        accumulation=accumulation,
        dtype=dtype,
        gpus=gpus,
        n_kv_head=int(number_in(row, "n_kv_head") or heads),
        d_ff=int(d_ff) if d_ff else None,
        gated=gated,
        tied=tied != "no",
        modern=modern,
        bias=not modern,
        dropout=dropout,
        compiled=foreign or (compiled.startswith("yes") if compiled else _compiles(framework)),
        flash=not flash.startswith("no"),
        window=_window(row, text),
        # logits that could not have been held were not held
        chunked_loss=foreign or "chunked" in text or "liger" in text or batch * block * vocab * 4 > device.memory_bytes,
        recompute=_recompute(row.get("act_ckpt", "").lower()),
        optimizer=_optimizer(optimizer),
        fused_optimizer=foreign or "fused" in optimizer.replace("not fused", "") or ("foreach" not in optimizer and
        _fuses(framework)),
        pure=pure,
        sharded=bool(re.search(r"fsdp|full.?shard|zero.?3", parallelism)),
        nvlink="pcie" not in parallelism,
        kept_half_bytes=bool(re.search(r"fp8|float8", row.get("dtype", "").lower())) and not foreign,
        **{
            "spare_logits": _NANOGPT.search(framework) is not None,  # `logits, loss = model(X, Y)`: handed back, and named
            "keeps_logits": _NANOGPT.search(framework) is not None,
            "buckets": "ddp" in parallelism and "zero" not in parallelism,
            "split_optimizer": "zero" in parallelism,
            **_habits(framework, f"{text} {row.get('evidence', '')} {row.get('flags', '')}".lower(), flash.startswith("no")),
            **_nanochat(framework, text + row.get("flags", "").lower(), layers, gpus, device),
        },
    )  # fmt: skip


def _habits(framework: str, text: str, by_hand: bool) -> dict[str, Any]:
    """Whose modules the run used, and where its loss was computed; only memory asks."""
    if "transformers" in framework or framework.startswith("hf"):
        return {"modules": "transformers"}
    if "from-scratch" in framework or "from scratch" in framework:
        own = by_hand and "pytorch ln" not in text  # the book replaces its own LayerNorm and GELU along the way
        return {"modules": "scratch" if own else "own", "loss_outside": True}
    return {}


def _window(row: dict[str, str], text: str) -> float:
    """Attention's share of what full causal attention would do; a pattern like SSSL has quarter windows at its S."""
    given = number_in(row, "attn_window_factor")
    if given is not None and given > 0:
        return min(1.0, given)
    pattern = re.search(r"\bs+l\b", f"{text} {row.get('flash_sdpa', '').lower()}")
    return (0.25 * (len(pattern[0]) - 1) + 1) / len(pattern[0]) if pattern else 1.0


def _nanochat(framework: str, text: str, layers: int, gpus: int, device: Device) -> dict[str, Any]:
    """What nanochat's and modded-nanogpt's modules do that nanoGPT's do not, read in their sources.

    Embeddings and the stream are bf16, all else fp32; the loss alone is returned; the optimizer's memory is split between
    the cards, without DistributedDataParallel. Since January 2026 every other layer of nanochat has value embeddings;
    before, its attention went through torch's dispatcher, which takes cuDNN's kernel on Hopper.
    """
    if not re.search(r"nanochat|autoresearch|modded", framework):
        return {}
    values = re.search(r"value.?emb|\bve\b|sssl|sliding|window|autoresearch|2026", f"{framework} {text}")
    tables = 0
    if values:
        tables = (layers + 1) // 2 if "modded" not in framework else min(3, layers)
    return {
        "half_stream": True,
        "value_tables": tables,
        "returns_logits": False,
        "spare_logits": False,
        "keeps_logits": False,
        "buckets": gpus > 1,  # gradients stacked for the exchange, still held when the next step begins
        "split_optimizer": gpus > 1,
        "turned_copies": not values and "modded" not in framework and device.architecture == "Hopper",
    }


def _dropout(text: str) -> float:
    said = re.search(r"dropout (0?\.\d+)", text)
    if said:
        return float(said[1])
    # nanoGPT's config for it has 0.2; the book's GPT_CONFIG_124M has 0.1
    # and so do Hugging Face's GPT-2 configs, in training mode
    if "shakespeare_char" in text:
        return 0.2
    return 0.1 if re.search(r"llms?-from-scratch|gpjt|gpt2lmhead|transformers", text) and "qwen" not in text else 0.0


def _compiles(framework: str) -> bool:
    return any(word in framework for word in ("nanogpt", "modded", "nanochat", "litgpt", "torchtitan")) or not framework


def _fuses(framework: str) -> bool:
    return any(
        word in framework for word in ("nanogpt", "modded", "nanochat", "litgpt", "lit-gpt", "torchtitan", "foundry")
    )


def _optimizer(text: str) -> str:
    if re.search(r"muon|soap|shampoo", text):
        return "muon"
    if re.search(r"8.?bit", text):
        return "adamw8bit"
    if "adam" in text:
        return "adamw"
    for name in ("adafactor", "lion"):
        if name in text:
            return name
    return ("momentum" if "moment" in text or "nesterov" in text else "sgd") if "sgd" in text else "adamw"


def _recompute(text: str) -> str:
    if re.match(r"yes|full|true", text) or "block" in text:
        return "block"
    if "recompute" in text:
        return "block" if "att" in text or "qkv" in text else "cheap"
    return "none"


def dtype_of(text: str, device: Device, assumed: list[str]) -> tuple[str, bool]:
    """The matmuls' dtype, and whether the weights are kept in it too."""
    text = text.lower()
    pure = "pure" in text or "bf16 params" in text or "bf16 param" in text or "no master" in text
    if "bf16" in text or "bfloat16" in text:
        return "bfloat16", pure
    if "fp16" in text or "float16" in text or text in ("amp", "mixed"):
        return "float16", pure
    if "fp8" in text or "float8" in text:
        assumed.append("fp8 predicted as bf16")
        return "bfloat16", pure
    if "tf32" in text:
        return "tf32", False
    if "fp32" in text or "float32" in text:
        return "float32", False
    dtype = device.training_dtype
    assumed.append(f"{dtype}, since the row names no dtype")
    return ("tf32" if dtype == "float32" else dtype), False


def _seconds(row: dict[str, str], w: Workload) -> tuple[float | None, str | None]:
    """Measured seconds of a step, from milliseconds or tokens per second; they must agree where both are given."""
    per_step = w.tokens * w.accumulation * w.gpus
    milliseconds, rate = number_in(row, "ms_per_iter"), number_in(row, "tokens_per_s")
    if milliseconds is not None and milliseconds <= 0:
        return None, f"ms_per_iter = {milliseconds:g} is not possible"
    if rate is not None and rate <= 0:
        return None, f"tokens_per_s = {rate:g} is not possible"
    if milliseconds is None and rate is None:
        return None, None
    tokens = number_in(row, "tokens_per_iter")
    if milliseconds is not None:
        if tokens and not 0.97 < tokens / per_step < 1.03:  # the rate is the safer of the two readings then
            return (per_step / rate, None) if rate else (milliseconds / 1e3 * per_step / tokens, None)
        return milliseconds / 1e3, None
    assert rate is not None
    return per_step / rate, None


def _memory(row: dict[str, str], device: Device) -> tuple[float | None, str | None]:
    value = number_in(row, "peak_vram_gb")
    if value is None:
        return None, None
    if value <= 0:
        return None, f"peak_vram_gb = {value:g} is not possible"
    if value * 1e9 > 1.2 * device.memory_bytes and device.kind == "cuda":
        return None, f"peak_vram_gb = {value:g} is more than the {device.name} has"
    return value, None


def number_in(row: dict[str, str], key: str) -> float | None:
    text = row.get(key, "").replace(",", "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise UserError(f"{key} = {text!r} is not a number") from None
    if not math.isfinite(number):
        raise UserError(f"{key} = {text} is not finite")
    return number


def _whole(row: dict[str, str], key: str, most: float = 2e5) -> int:
    number = number_in(row, key)
    if number is None:
        raise UserError(f"no {key} given")
    if not 1 <= number <= most or number != int(number):
        raise UserError(f"{key} = {number:g} is not possible")
    return int(number)
