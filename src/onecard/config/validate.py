"""Whether the values of a RunConfig can be meant: types and choices, bounds from the keys' facts, and keys together."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from onecard.config.key_facts import KeyFacts, facts_of
from onecard.errors import UserError, nearest
from onecard.untrusted import is_unicode

if TYPE_CHECKING:
    from onecard.config.run import RunConfig

# What people call the dtypes elsewhere; too far from their names in letters for `nearest`.
_SHORT_DTYPES = {
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "f32": "float32",
    "single": "float32",
}


def typed(name: str, value: Any, hint: Any, default: Any) -> bool | int | float | str | None:
    """`value` as the key's type wants it: an int serves for a float, 3.0 for an int; anything else is a mistake."""
    if get_origin(hint) is Literal:
        return _chosen(name, value, get_args(hint))
    allowed = get_args(hint) or (hint,)
    if value is None and type(None) in allowed:
        return None
    if isinstance(value, bool):
        if bool in allowed:
            return value
        raise _wrong_type(name, value, allowed, default)
    if int in allowed and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if int in allowed and isinstance(value, int):
        return value
    if float in allowed and isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise UserError(f"{name} must be a finite number", hint=f"for example {name} = 0.1")
        return number
    if str in allowed and isinstance(value, str):
        return value
    raise _wrong_type(name, value, allowed, default)


def _chosen(name: str, value: Any, options: tuple[str, ...]) -> str:
    if value is None and "none" in options:  # --recompute=none, which reads as Python's None
        value = "none"
    if value not in options or isinstance(value, bool):
        raise UserError(
            f"{name} must be {' or '.join(map(str, options))}, not {value!r}",
            hint=_meant(name, str(value), options),
        )
    return str(value)


def _meant(name: str, value: str, options: tuple[str, ...]) -> str:
    short = _SHORT_DTYPES.get(value.lower().removeprefix("torch."), "")
    if name == "dtype" and short:
        return f"did you mean {short}?"
    return nearest(value, options) or f"for example {name} = {options[0]!r}"


def _wrong_type(name: str, value: Any, allowed: tuple[Any, ...], default: Any) -> UserError:
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    wanted = next(names[t] for t in (bool, int, float, str) if t in allowed)
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return UserError(f"{name} must be {wanted}, not {shown}", hint=f"its default is {default!r}")


def check(config: "RunConfig") -> None:
    """Every bound, then what keys say together."""
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            _in_bounds(field.name, value, facts_of(field), field.default)
        elif isinstance(value, str):
            _a_name(field.name, value, field.default)
    _heads(config)
    _schedule(config)
    _weights(config)
    _offload(config)
    _update(config)
    _shard(config)
    _graphs(config)
    _fp8(config)
    check_device(config.device)
    if not -(2**63) <= config.seed < 2**63:
        raise UserError("seed must fit in 64 bits", hint="for example seed = 1337")


def _in_bounds(name: str, value: float, facts: KeyFacts, default: Any) -> None:
    usual = 1 if default is None else default
    hint = f"for example {name} = {facts.example or usual}"
    if facts.least is not None and value < facts.least:
        raise UserError(f"{name} must be at least {facts.least:g}, not {value}", hint=hint)
    if facts.above is not None and value <= facts.above:
        raise UserError(f"{name} must be above {facts.above:g}, not {value}", hint=hint)
    if facts.below is not None and value >= facts.below:
        raise UserError(f"{name} must be below {facts.below:g}, not {value}", hint=hint)
    if facts.most is not None and value > facts.most:
        raise UserError(
            f"{name} = {value} is beyond anything that can be trained",
            hint=f"the largest accepted is {facts.most:,.10g}",
        )


def _a_name(name: str, value: str, default: Any) -> None:
    if name in ("out_dir", "dataset", "init_from", "device") and (
        not value or "\0" in value or len(value) > 4096
    ):
        raise UserError(f"{name} must be a name or a path", hint=f"its default is {default!r}")
    if not is_unicode(value):
        # bytes that are not UTF-8, as Python passes them on; no config file could hold them
        raise UserError(f"{name} is not UTF-8", hint="rename it, or choose another name")


def _heads(config: "RunConfig") -> None:
    if config.n_embd % config.n_head == 0:
        return
    heads = min(
        (h for h in range(1, config.n_embd + 1) if config.n_embd % h == 0),
        key=lambda h: abs(h - config.n_head),
    )
    width = max(round(config.n_embd / config.n_head), 1) * config.n_head
    raise UserError(
        f"n_embd = {config.n_embd} is not divisible by n_head = {config.n_head}",
        hint=f"n_head = {heads} would do, or n_embd = {width}",
    )


def _weights(config: "RunConfig") -> None:
    if config.weights == "bfloat16" and config.dtype not in ("auto", "bfloat16"):
        raise UserError(
            f"weights = 'bfloat16' cannot be multiplied in dtype = {config.dtype!r}",
            hint="dtype = 'auto' or 'bfloat16'",
        )


def _offload(config: "RunConfig") -> None:
    if config.offload_activations and config.recompute != "block":
        raise UserError(
            f"offload_activations keeps layer inputs on the host, and recompute = {config.recompute!r} keeps more",
            hint="recompute = 'block'",
        )


def _update(config: "RunConfig") -> None:
    if config.update_in_backward and config.grad_clip:
        raise UserError(
            "update_in_backward applies gradients before the norm of all of them is known, "
            f"and grad_clip = {config.grad_clip:g} needs it",
            hint="grad_clip = 0, or update_in_backward = False",
        )
    if config.update_in_backward and config.dtype == "float16":
        raise UserError(
            "update_in_backward cannot be undone where a gradient exceeds float16's range",
            hint="dtype = 'bfloat16'",
        )


def _shard(config: "RunConfig") -> None:
    for name in ("weights", "gradients"):
        if config.shard != "none" and getattr(config, name) == "bfloat16":
            raise UserError(
                f"shard = {config.shard!r} keeps {name} in float32, a part on each card; {name} = 'bfloat16' cannot be sharded",
                hint=f"{name} = 'float32', or shard = 'none'",
            )


def _graphs(config: "RunConfig") -> None:
    """A CUDA graph writes its outputs to the same memory again and again: nothing may take them over."""
    if config.compile_mode != "reduce-overhead":
        return
    others = {"compile_unit": "model", "gradients": "float32", "offload_activations": False}
    others |= {"update_in_backward": False, "shard": "none"}
    for name, wanted in others.items():
        if getattr(config, name) != wanted:
            raise UserError(
                f"compile_mode = 'reduce-overhead' and {name} = {getattr(config, name)!r} exclude each other",
                hint=f"{name} = {wanted!r}, or compile_mode = 'default'",
            )


def _fp8(config: "RunConfig") -> None:
    if not config.fp8:
        return
    if config.dtype not in ("auto", "bfloat16"):
        raise UserError(
            f"fp8 = True goes with bfloat16, not with dtype = {config.dtype!r}",
            hint="dtype = 'auto' or 'bfloat16'",
        )
    for name in ("n_embd", "block_size"):
        if getattr(config, name) % 16:
            raise UserError(
                f"fp8 = True needs {name} in multiples of 16, not {getattr(config, name)}",
                hint=f"{name} = {-(-getattr(config, name) // 16) * 16}, or fp8 = False",
            )


def check_device(name: str) -> None:
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (number and not number.isdecimal()):
        raise UserError(
            f"device = {name!r} is not one that onecard trains on",
            hint="auto, cpu, cuda, cuda:1 or mps; ROCm's cards are cuda too, Intel's cannot be used",
        )


def _schedule(config: "RunConfig") -> None:
    if config.min_lr > config.learning_rate:
        raise UserError(
            f"min_lr = {config.min_lr} is above learning_rate = {config.learning_rate}",
            hint=f"a tenth of it is usual: min_lr = {config.learning_rate / 10:g}",
        )
    if config.decay_lr and config.warmup_iters > config.max_iters:
        raise UserError(
            f"warmup_iters = {config.warmup_iters} is longer than the run of "
            f"max_iters = {config.max_iters}",
            hint=f"warmup_iters = {max(1, config.max_iters // 50)} would suit it",
        )
