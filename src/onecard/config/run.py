"""RunConfig: what a run is, in nanoGPT's own keys, frozen and validated.

>>> RunConfig(n_embd=384, batch_size=16, gradient_accumulation_steps=32).tokens_per_step
524288
"""

import dataclasses
import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from onecard.errors import UserError, nearest

Value = bool | int | float | str | None

GPT2_PADDED_VOCAB = (
    50304  # 50257 padded up to a multiple of 64: nanoGPT's choice, for the tensor cores
)


@dataclass(frozen=True)
class ModelShape:
    """What the parameter, FLOP and memory counts need to know of a model."""

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    block_size: int
    bias: bool = False
    tied: bool = True
    modern: bool = False  # rotary positions and RMSNorm: no position table, no norm weights


@dataclass(frozen=True)
class RunConfig:
    """One run. The first groups are nanoGPT's train.py, key by key and default by default; the last is onecard's."""

    # output
    out_dir: str = "out"
    eval_interval: int = 2000
    log_interval: int = 1
    eval_iters: int = 200
    eval_only: bool = False
    always_save_checkpoint: bool = True
    init_from: str = "scratch"
    wandb_log: bool = False
    wandb_project: str = "owt"
    wandb_run_name: str = "gpt2"
    # data
    dataset: str = "openwebtext"
    gradient_accumulation_steps: int = 40
    batch_size: int = 12
    block_size: int = 1024
    # model
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = False
    # optimizer
    learning_rate: float = 6e-4
    max_iters: int = 600_000
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    decay_lr: bool = True
    warmup_iters: int = 2000
    lr_decay_iters: int = 600_000
    min_lr: float = 6e-5
    # system; nanoGPT's defaults for the first three ask torch what the machine has, and so does "auto"
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    compile: bool = True
    # onecard's own
    vocab_size: int | None = None  # None: the data set's, else GPT-2's 50257 padded to 50304
    recipe: Literal["gpt2", "modern"] = "gpt2"
    optimizer: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    decay_fraction: float = 0.2  # wsd: the share of the steps that the final decay takes
    weight_decay_on: Literal["matrices", "nanogpt"] = "matrices"  # nanogpt: embeddings too
    tied: bool = True
    attention: Literal["flash", "math"] = "flash"
    chunked_loss: bool = False
    recompute: Literal["none", "cheap", "block"] = "none"
    mask_documents: bool = False
    seed: int = 1337
    max_hours: float | None = None
    keep_checkpoints: int = 2
    checkpoint_interval: int | None = None  # None: at every evaluation, as nanoGPT does
    on_bad_step: Literal["retry", "skip", "stop"] = "retry"
    sample_interval: int | None = None  # None: at every evaluation
    tensorboard: bool = False
    trackio: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _typed(field.name, getattr(self, field.name)))
        _check(self)

    @classmethod
    def from_values(cls, values: dict[str, Any], where: str = "") -> "RunConfig":
        """Build from a mapping; an unknown key is a mistake, answered with the nearest names."""
        for key in values:
            if key not in KEYS:
                raise UserError(
                    f"unknown config key {key!r}{where}",
                    hint=nearest(key, KEYS) or "docs/cli.md lists the keys",
                )
        return cls(**values)

    def replace(self, **changes: Any) -> "RunConfig":
        return RunConfig.from_values({**dataclasses.asdict(self), **changes})

    def for_vocabulary(self, size: int | None) -> "RunConfig":
        """With the data's vocabulary where none was chosen; a large one is padded to 64, as nanoGPT pads GPT-2's."""
        if self.vocab_size is not None or size is None:
            return self
        return self.replace(vocab_size=size if size < 1000 else -(-size // 64) * 64)

    def changed(self) -> dict[str, Value]:
        """The keys that differ from the defaults, in the order they are declared."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            self.n_layer,
            self.n_head,
            self.n_embd,
            self.vocab_size or GPT2_PADDED_VOCAB,
            self.block_size,
            self.bias,
            self.tied,
            self.recipe == "modern",
        )

    @property
    def tokens_per_micro_batch(self) -> int:
        return self.batch_size * self.block_size

    @property
    def tokens_per_step(self) -> int:
        return self.tokens_per_micro_batch * self.gradient_accumulation_steps

    @property
    def total_tokens(self) -> int:
        return self.tokens_per_step * self.max_iters


KEYS: tuple[str, ...] = tuple(f.name for f in fields(RunConfig))
_HINTS = get_type_hints(RunConfig)


def choices(key: str) -> tuple[str, ...]:
    """The words that a key may have, where it is not free: `choices("recipe")` is ("gpt2", "modern")."""
    return get_args(_HINTS[key]) if get_origin(_HINTS[key]) is Literal else ()


def _typed(key: str, value: Any) -> Value:
    """`value` as the key's type wants it: an int serves for a float, 3.0 for an int; anything else is a mistake."""
    if options := choices(key):
        if value is None and "none" in options:  # --recompute=none, which reads as Python's None
            value = "none"
        if value not in options or isinstance(value, bool):
            raise UserError(
                f"{key} must be {' or '.join(map(str, options))}, not {value!r}",
                hint=_meant(key, str(value), options),
            )
        return str(value)
    hint = _HINTS[key]
    allowed = get_args(hint) or (hint,)
    if value is None and type(None) in allowed:
        return None
    if bool in allowed and isinstance(value, bool):
        return value
    if isinstance(value, bool):
        raise _wrong_type(key, value, allowed)
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
            raise UserError(f"{key} must be a finite number", hint=f"for example {key} = 0.1")
        return number
    if str in allowed and isinstance(value, str):
        return value
    raise _wrong_type(key, value, allowed)


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


def _meant(key: str, value: str, options: tuple[str, ...]) -> str:
    short = _SHORT_DTYPES.get(value.lower().removeprefix("torch."), "")
    if key == "dtype" and short:
        return f"did you mean {short}?"
    return nearest(value, options) or f"for example {key} = {options[0]!r}"


def _wrong_type(key: str, value: Any, allowed: tuple[Any, ...]) -> UserError:
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    wanted = next(names[t] for t in (bool, int, float, str) if t in allowed)
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return UserError(
        f"{key} must be {wanted}, not {shown}", hint=f"its default is {getattr(RunConfig, key)!r}"
    )


# Largest sizes anyone means; beyond them it is a slip of the keyboard, and the arithmetic stays finite.
_SIZE_LIMITS = {
    "n_layer": 1_000,
    "n_head": 1_000,
    "n_embd": 200_000,
    "block_size": 10_000_000,
    "batch_size": 1_000_000,
    "gradient_accumulation_steps": 1_000_000,
    "max_iters": 1_000_000_000,
    "vocab_size": 10_000_000,
    "eval_interval": 1_000_000_000,
    "eval_iters": 1_000_000_000,
    "log_interval": 1_000_000_000,
    "keep_checkpoints": 1_000_000,
    "checkpoint_interval": 1_000_000_000,
    "sample_interval": 1_000_000_000,
    "lr_decay_iters": 1_000_000_000,
}
_FRACTIONS = ("dropout", "beta1", "beta2")


def _check(c: RunConfig) -> None:
    for key, limit in _SIZE_LIMITS.items():
        value = getattr(c, key)
        if value is None:
            continue
        if value < 1:
            raise UserError(
                f"{key} must be at least 1, not {value}",
                hint=f"for example {key} = {getattr(RunConfig, key) or 1}",
            )
        if value > limit:
            raise UserError(
                f"{key} = {value} is beyond anything that can be trained",
                hint=f"the largest accepted is {limit:,}",
            )
    if c.n_embd % c.n_head:
        heads = min(
            (h for h in range(1, c.n_embd + 1) if c.n_embd % h == 0),
            key=lambda h: abs(h - c.n_head),
        )
        width = max(round(c.n_embd / c.n_head), 1) * c.n_head
        raise UserError(
            f"n_embd = {c.n_embd} is not divisible by n_head = {c.n_head}",
            hint=f"n_head = {heads} would do, or n_embd = {width}",
        )
    for key in _FRACTIONS:
        value = getattr(c, key)
        if not 0 <= value < 1:
            raise UserError(
                f"{key} must be from 0 up to but not including 1, not {value}",
                hint=f"its default is {getattr(RunConfig, key)}",
            )
    if not 0 < c.decay_fraction <= 1:
        raise UserError(
            f"decay_fraction must be above 0 and at most 1, not {c.decay_fraction}",
            hint="its default is 0.2",
        )
    if not 0 < c.learning_rate <= 100:
        raise UserError(
            f"learning_rate must be above 0 and at most 100, not {c.learning_rate}",
            hint="for example 6e-4",
        )
    if c.min_lr < 0 or c.min_lr > c.learning_rate:
        raise UserError(
            f"min_lr = {c.min_lr} must lie between 0 and learning_rate = {c.learning_rate}",
            hint=f"a tenth of it is usual: min_lr = {c.learning_rate / 10:g}",
        )
    if not 0 <= c.weight_decay <= 100:
        raise UserError(
            f"weight_decay must be from 0 to 100, not {c.weight_decay}", hint="its default is 0.1"
        )
    if not 0 <= c.grad_clip <= 1e6:
        raise UserError(
            f"grad_clip must be 0 (off) or a positive norm, not {c.grad_clip}",
            hint="its default is 1.0",
        )
    if c.warmup_iters < 0:
        raise UserError(
            f"warmup_iters must be 0 or more, not {c.warmup_iters}",
            hint="for example warmup_iters = 100",
        )
    if c.decay_lr and c.warmup_iters > c.max_iters:
        raise UserError(
            f"warmup_iters = {c.warmup_iters} is longer than the run of max_iters = {c.max_iters}",
            hint=f"a warm-up of {max(1, c.max_iters // 50)} steps would suit it",
        )
    if c.max_hours is not None and not 0 < c.max_hours <= 1e6:
        raise UserError(
            f"max_hours must be above 0, not {c.max_hours}", hint="for example max_hours = 20"
        )
    if not -(2**63) <= c.seed < 2**63:
        raise UserError("seed must fit in 64 bits", hint="for example seed = 1337")
    for key in ("out_dir", "dataset", "init_from", "device"):
        value = getattr(c, key)
        if not value or "\0" in value or len(value) > 4096:
            raise UserError(
                f"{key} must be a name or a path",
                hint=f"its default is {getattr(RunConfig, key)!r}",
            )
