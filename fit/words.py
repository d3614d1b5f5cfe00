"""The words of a run table: numbers, yes and no, dtypes, optimizers, shapes and batches, as people write them.

>>> number_in({"tokens_per_s": "~131k"}, "tokens_per_s")
131000.0
>>> number_in({"n_layer": "n/a"}, "n_layer") is None
True
>>> is_negative("False"), is_negative("FA2"), is_negative("")
(True, False, False)

Other people fill these tables in by hand. What can be read one way only is read; what cannot is a UserError, one sentence.
"""

import math
import re
from typing import Literal

from onecard.errors import UserError
from onecard.facts.gpus import Device

_NOTHING = frozenset(
    [
        "",
        "-",
        "–",
        "—",
        "?",
        "n/a",
        "na",
        "none",
        "null",
        "unknown",
        "unstated",
        "not stated",
        "tbd",
    ]
)
_NUMBER = re.compile(  # a number, thousands or more, and words without another number in them
    r"[~≈<>]*\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?:\s*(k|m|b|g)(?![a-z]))?(?![\d.])\s*(\D*)",
    re.IGNORECASE,
)
_SPAN = re.compile(  # two numbers, or one and how far it varies
    r"[~≈]?\s*(\d+\.?\d*)\s*([km])?\s*(?:to|[-–—]|(±|\+/-))\s*(\d+\.?\d*)(\D*)", re.IGNORECASE
)
_NEAR = 1.25  # from end to end of a range whose middle is a reading
MEASURED = ("ms_per_iter", "tokens_per_s", "peak_vram_gb")
_OTHER_UNIT = re.compile(
    r"[ (]*(it|iters?|steps?|tok\w*|µs|us|ns|min\w*|h|hrs?|hours?|d|days?|[kt]i?b|%)(\b|/|$)"
)
HUGGING_FACE = r"transformers|hugging.?face|\bhf trainer|\baccelerate\b"
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_AMOUNTS = {
    "k": 1e3,
    "th": 1e3,
    "m": 1e6,
    "mi": 1e6,
    "b": 1e9,
    "bn": 1e9,
    "bi": 1e9,
    "g": 1e9,
    "t": 1e12,
    "tr": 1e12,
}
_UNITS = {  # what may follow a number, by how the column's name ends; times this it is in the column's own unit
    "_gb": {"gb": 1.0, "g": 1.0, "gib": 2**30 / 1e9, "mb": 1e-3, "mib": 2**20 / 1e9},
    "ms_per_iter": {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "milliseconds": 1.0},
}


def number_in(row: dict[str, str], key: str) -> float | None:
    """The number in a column; None where it is empty; a UserError where something else is."""
    text = row.get(key, "").strip().replace(",", "").replace("_", "")
    if text.lower() in _NOTHING:
        return None
    if text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
        raise UserError(f"{key} = {text} is not finite")
    found = _NUMBER.fullmatch(_middle(key, text) if key in MEASURED else text)
    if not found:
        raise UserError(f"{key} = {text[:40]!r} is not a number")
    scale, rest = (found[2] or "").lower(), found[3].lower()
    units = next((units for end, units in _UNITS.items() if key.endswith(end)), {})
    unit = units.get(
        re.sub(r"[^a-z].*", "", scale + rest.lstrip(" ("))
    )  # "s/iter" and "mib (peak)" begin with theirs
    if units and unit is None and _OTHER_UNIT.match(scale + rest):
        raise UserError(f"{key} = {text[:40]!r} is in no unit that is known here")
    number = float(found[1]) * (unit if unit is not None else _SCALE[scale])
    if not math.isfinite(number):
        raise UserError(f"{key} = {text[:40]} is not finite")
    return number


def _middle(key: str, text: str) -> str:
    """A reading given as "98–104" or "101 ± 3 ms" is its middle, where the ends are near each other."""
    span = _SPAN.fullmatch(text)
    if not span:
        return text
    first, scale, sign, second, rest = span.groups()
    if sign:
        return f"{first}{scale or ''}{rest}"
    ends = float(first), float(second)
    if scale and not rest.lower().startswith(scale.lower()):
        return text  # "900k–1.1M": not two readings in one unit
    if not 0 < ends[0] <= ends[1] <= _NEAR * ends[0]:
        raise UserError(f"{key} = {text[:40]!r} is a range too wide to compare with")
    return f"{sum(ends) / 2:g}{rest}"


def amount_in(row: dict[str, str], key: str, unit: float) -> float | None:
    """What a column in millions or billions says, in ones: "10" and "10B" are the same number of tokens_seen_b."""
    text = row.get(key, "")
    scale = re.search(r"\d\s*(k|m|bn?|g|t|thousand|million|billion|trillion)t?\b", text.lower())
    if not scale:
        number = number_in(row, key)
        return None if number is None else number * unit
    number = number_in({key: text[: scale.start(1)]}, key)
    return None if number is None else number * _AMOUNTS[scale[1][:2]]


def whole_in(row: dict[str, str], key: str, most: float = 2e5) -> int | None:
    """A count in a column, None where it is empty."""
    number = number_in(row, key)
    if number is None:
        return None
    if not 1 <= number <= most or number != int(number):
        raise UserError(f"{key} = {number:g} is not possible")
    return int(number)


def word_in(row: dict[str, str], key: str) -> str:
    """What a column of words says, in small letters; nothing where it says that nothing is known."""
    text = row.get(key, "").strip().lower()
    return "" if text in _NOTHING - {"none"} else text


def is_negative(text: str) -> bool:
    """`no`, `False`, `0`, `off` and the like."""
    return bool(
        re.match(
            r"(no|none|not|never|false|off|without|disabled|eager|math|manual|naive|untied|separate|n/a)\b|0$|n$",
            text.lower(),
        )
    )


def optimizer_of(text: str) -> str:
    text = text.lower()
    if re.search(r"muon|soap|shampoo", text):
        return "muon"
    if re.search(r"8.?bit", text):
        return "adamw8bit"
    if "adam" in text:
        return "adamw"
    for name in ("adafactor", "lion"):
        if name in text:
            return name
    return (
        ("momentum" if "moment" in text or "nesterov" in text else "sgd")
        if "sgd" in text
        else "adamw"
    )


def fused_of(text: str, usual: bool) -> bool:
    """Whether one kernel updates many tensors; where the row does not say, what that project does."""
    if re.search(r"(not|un|non)[- ]?fused|foreach|custom|for.?loop", text):
        return False
    return "fused" in text or usual


def head_width_of(text: str, width: int, heads: int) -> int | None:
    """A head's width where it is not the model's share, as in Qwen3."""
    found = re.search(r"head.?dim[a-z]*[ =:]*(\d{1,4})", text)
    if not found or int(found[1]) * heads == width:
        return None
    return max(1, int(found[1]))


def recompute_of(text: str) -> Literal["none", "cheap", "block"]:
    text = text.lower()
    if not text or is_negative(text):
        return "none"
    if "selective" in text or ("recompute" in text and not re.search(r"att|qkv|block|full", text)):
        return "cheap"
    return (
        "block"
        if re.search(r"yes|full|true|block|checkpoint|every|all|layer|recompute|^1$|^on$", text)
        else "none"
    )


def dtype_of(text: str, framework: str, device: Device, assumed: list[str]) -> tuple[str, bool]:
    """The matmuls' dtype, and whether the weights are kept in it too."""
    text = text.lower()
    if re.search(r"(no|without) tf32|tf32[ =:]*(off|disabled|false|no\b|0)", text):
        return "float32", False
    pure = bool(
        re.search(r"pure|bf16 param|no master|16-true|\bhalf\b|params? (in|all) (bf|fp)16", text)
    )
    if re.search(r"bf16|bfloat16|bfloat|bf-16", text):
        return "bfloat16", pure
    if re.search(r"fp8|float8|e4m3|mxfp", text):
        assumed.append("fp8 predicted as bf16")
        return "bfloat16", pure
    if re.search(r"fp16|float16|\bf16\b|16-mixed|16-true|\bhalf\b|\bamp\b|^mixed", text):
        return "float16", pure
    if "tf32" in text:
        return "tf32", False
    if re.search(r"fp32|float32|\bf32\b|32-true|\b32\b|full precision|single", text):
        if device.tf32_flops and re.search(r"(?<!build-)nano.?gpt|litgpt|lit-gpt", framework):
            assumed.append("TF32, which that project's scripts allow")
            return "tf32", False
        return "float32", False
    dtype = device.training_dtype
    assumed.append(
        f"{dtype}, since the row names no dtype"
        if not text
        else f"{dtype}, since {text[:20]!r} is no dtype"
    )
    return ("tf32" if dtype == "float32" else dtype), False


def eight_bits(dtype: str) -> bool:
    """Whether the layers' matmuls are in 8 bits, not the head's alone.

    >>> eight_bits("fp8 (torchao)"), eight_bits("bf16 (fp8 head)")
    (True, False)
    """
    return bool(re.search(r"(fp|float)8(?![^,;]{0,12}head)", dtype.lower()))


def modern(text: str) -> bool:
    """Rotary positions and RMSNorm, by the model's or the project's name."""
    return bool(
        re.search(
            r"rope|rotary|llama|qwen|nanochat|modded|rmsnorm|mistral|smollm|gemma|olmo|cs ?336|parameter.golf",
            text,
        )
    )


def norm_kernel_of(text: str) -> bool:
    """Whether a row says that its RMSNorm is a kernel of its own, and not written out.

    >>> norm_kernel_of("torch's own rmsnorm"), norm_kernel_of("rmsnorm in fp32 steps")
    (True, False)
    """
    return bool(
        re.search(
            r"torch's own rmsnorm|nn\.rmsnorm|functional\.rms_norm|rmsnorm is [^;,]{0,30}kernel",
            text,
        )
    )


def dropout_of(text: str) -> float:
    match = re.search(r"dropout(?: of|[ =:])*(0?\.\d+|0\b)", text)
    if match:
        return float(match[1])
    if re.search(r"(no|without|zero) dropout|dropout[ =:]*(off|none|disabled)", text):
        return 0.0
    # nanoGPT's config for it has 0.2; the book's GPT_CONFIG_124M has 0.1
    # and so do Hugging Face's GPT-2 configs, in training mode
    if "shakespeare_char" in text:
        return 0.2
    return (
        0.1
        if re.search(rf"llms?-from-scratch|gpjt|gpt2lmhead|{HUGGING_FACE}", text)
        and not modern(text)
        else 0.0
    )
