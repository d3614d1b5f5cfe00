"""RunConfig: what a run is, in nanoGPT's own keys, frozen and validated.

>>> RunConfig(n_embd=384, batch_size=16, gradient_accumulation_steps=32).tokens_per_step
524288
>>> sorted(RunConfig.facts("batch_size").affects)
['batch', 'memory', 'speed']
"""

import dataclasses
from dataclasses import dataclass, fields
from typing import Any, Literal

from onecard.config.key_facts import MOST_STEPS, ByValues, KeyFacts, facts_of, key, steps
from onecard.config.model_rules import GPT2_PADDED_VOCAB, ModelShape, padded_vocab
from onecard.config.recipes import RECIPES, RecipeName
from onecard.config.validate import check, typed
from onecard.errors import UserError, nearest

Value = bool | int | float | str | None


STATE_BITS = {"float32": 32, "8bit": 8, "4bit": 4}  # of a number in the moments


@dataclass(frozen=True, repr=False, eq=False)
class RunConfig(ByValues):
    """One run. The first groups are nanoGPT's train.py, key by key and default by default; the last is onecard's."""

    # output
    out_dir: str = key("out", "output", "folder the run is written to")
    eval_interval: int = steps(2000, "output", "time between evaluations, each with a checkpoint")
    log_interval: int = steps(1, "output", "time between logs")
    eval_iters: int = key(
        200, "output", "length of one evaluation", unit="micro-batches", least=1, most=MOST_STEPS
    )
    eval_only: bool = key(False, "output", "evaluate once and stop")
    always_save_checkpoint: bool = key(
        True, "output", "a checkpoint at every evaluation, or only at a better loss"
    )
    init_from: str = key(
        "scratch",
        "learning",
        "where the weights come from: scratch, resume, gpt2 … gpt2-xl, or a run's folder",
    )
    wandb_log: bool = key(False, "output", "send the log to Weights & Biases")
    wandb_project: str = key("owt", "output", "its project there")
    wandb_run_name: str = key("gpt2", "output", "its name there")
    # data
    dataset: str = key("openwebtext", "data", "name or folder of the prepared data")
    gradient_accumulation_steps: int = key(
        40,
        "batch speed memory",
        "micro-batches a step, the total over all cards",
        least=1,
        most=1_000_000,
    )
    batch_size: int = key(
        12, "batch speed memory", "size of a micro-batch", unit="sequences", least=1, most=1_000_000
    )
    block_size: int = key(
        1024, "shape batch memory", "context", unit="tokens", least=1, most=10_000_000
    )
    # model
    n_layer: int = key(12, "shape memory", "layers", least=1, most=1_000)
    n_head: int = key(12, "shape memory", "attention heads", least=1, most=1_000)
    n_embd: int = key(768, "shape memory", "width", least=1, most=200_000)
    dropout: float = key(
        0.0, "learning memory", "share of activations dropped; 0 for pre-training", least=0, below=1
    )
    bias: bool = key(False, "shape memory", "biases in linear layers and norms, as GPT-2 has")
    # optimizer
    learning_rate: float = key(
        6e-4, "learning", "peak learning rate", above=0, most=100, example="6e-4"
    )
    max_iters: int = steps(600_000, "learning", "length")
    weight_decay: float = key(0.1, "learning", "decay of the weights", least=0, most=100)
    beta1: float = key(0.9, "learning", "AdamW's first moment", least=0, below=1)
    beta2: float = key(0.95, "learning", "AdamW's second moment", least=0, below=1)
    grad_clip: float = key(
        1.0, "learning", "largest norm of the gradient; 0: no clipping", least=0, most=1e6
    )
    decay_lr: bool = key(True, "learning", "warm up and decay, or a constant rate")
    warmup_iters: int = key(
        2000, "learning", "linear warm-up", unit="steps", least=0, example="100"
    )
    lr_decay_iters: int = steps(600_000, "learning", "where the decay ends")
    min_lr: float = key(6e-5, "learning", "learning rate at the end of the decay", least=0)
    # system; nanoGPT's defaults for the first three ask torch what the machine has, and so does "auto"
    backend: Literal["auto", "nccl", "gloo"] = key("auto", "machine", "how gradients are exchanged")
    device: str = key("auto", "machine", "where it runs: auto, cpu, cuda, cuda:1, mps")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = key(
        "auto", "speed memory", "number format of the matmuls; auto: bfloat16 where the card has it"
    )
    compile: bool = key(True, "speed memory", "torch.compile, where the card supports it")
    # onecard's own
    compile_mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = key(
        "default", "speed", "torch.compile's mode; reduce-overhead: CUDA graphs"
    )
    vocab_size: int | None = key(
        None,
        "shape memory",
        "None: the data set's, padded to a multiple of 64 from 1,000 on (GPT-2's 50257: 50304)",
        least=1,
        most=10_000_000,
    )
    recipe: RecipeName = key(
        "gpt2", "shape learning speed memory", "architecture, with the optimizer that suits it"
    )
    optimizer: Literal["adamw", "adamw8bit", "muon"] = key(
        "adamw", "learning speed memory", "update rule; adamw8bit: adamw with optimizer_state 8bit"
    )
    optimizer_state: Literal["float32", "8bit", "4bit"] = key(
        "float32", "learning speed memory", "format of the moments; 8bit, 4bit: in blocks"
    )
    fused_optimizer: bool = key(True, "speed memory", "AdamW: the update in one kernel")
    fp8: bool = key(False, "learning speed memory", "layers' matmuls in 8 bits: RTX 40 or newer")
    weights: Literal["float32", "bfloat16"] = key(
        "float32", "learning speed memory", "format of matrices and tables; bfloat16: no fp32 copy"
    )
    gradients: Literal["float32", "bfloat16"] = key(
        "float32", "learning speed memory", "format that their gradients are added up in"
    )
    compile_unit: Literal["model", "block"] = key(
        "model", "speed memory", "what is compiled at once; block: layer by layer"
    )
    offload_optimizer: bool = key(
        False, "learning speed memory", "moments, and fp32 weights of bf16 ones, in host memory"
    )
    offload_activations: bool = key(False, "speed memory", "recompute=block: inputs in host memory")
    update_in_backward: bool = key(False, "learning speed memory", "apply each gradient at once")
    shard: Literal["none", "grads", "full"] = key(
        "none", "speed memory", "what several cards share out; grads: all but the weights in use"
    )
    schedule: Literal["cosine", "linear", "wsd"] = key(
        "cosine", "learning", "how the rate decays; wsd: constant, then decay at the end"
    )
    decay_fraction: float = key(0.2, "learning", "wsd: decaying part (modern 0.6)", above=0, most=1)
    weight_decay_on: Literal["matrices", "nanogpt"] = key(
        "matrices", "learning", "what decays; nanogpt: embeddings too"
    )
    tied: bool = key(True, "shape memory", "the head shares the token embedding's weights")
    attention: Literal["flash", "efficient", "cudnn", "math"] = key(
        "flash", "speed memory", "kernel; flash: torch's choice of them; math: the plain form"
    )
    chunked_loss: bool = key(False, "speed memory", "never hold all logits at once")
    chunk_rows: int | None = key(
        None,
        "speed memory",
        "chunked_loss: tokens at a time; None: 32 MiB of logits, 256 on a card",
        least=1,
    )
    threads: int | None = key(None, "speed", "of a CPU; None: torch's choice", least=1, most=1024)
    affinity: Literal["none", "cores"] = key("none", "speed", "cores: a core for each CPU thread")
    recompute: Literal["none", "cheap", "block"] = key(
        "none", "speed memory", "activations computed again in the backward pass, not kept"
    )
    mask_documents: bool = key(False, "learning speed memory", "attention within documents alone")
    learn_from: Literal["all", "answers"] = key(
        "all",
        "learning",
        "which tokens the loss counts; answers: an assistant's alone, positions from 0 in each conversation",
    )
    seed: int = key(1337, "learning data", "random seed of the weights and the data order")
    max_hours: float | None = key(
        None,
        "output",
        "stop after so long, with the decay fitted in",
        unit="hours",
        above=0,
        most=1e6,
        example="20",
    )
    keep_checkpoints: int = key(2, "output", "checkpoints kept", least=1, most=1_000_000)
    keep_predecay: bool = key(
        True, "output", "wsd: keep the checkpoint before the decay, for --extend to branch from"
    )
    checkpoint_interval: int | None = steps(
        None, "output", "time between checkpoints; None: at every evaluation"
    )
    on_bad_step: Literal["retry", "skip", "stop"] = key(
        "retry", "output", "what to do when the loss is NaN or far off"
    )
    sample_interval: int | None = steps(
        None, "output", "time between text samples; None: at every evaluation"
    )
    eval_tasks: str | None = key(
        None,
        "output",
        "benchmarks during training: hellaswag, lambada; NAME=FILE names the items, NAME:1000 their number",
        example="hellaswag:1000",
    )
    eval_tasks_interval: int | None = steps(
        None, "output", "time between benchmarks; None: at the end alone"
    )
    tensorboard: bool = key(False, "output", "write TensorBoard events")
    trackio: bool = key(False, "output", "send the log to Trackio")
    record_diff: bool = key(False, "output", "keep `git diff` in environment.json; it runs git")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = typed(field.name, getattr(self, field.name), HINTS[field.name], field.default)
            object.__setattr__(self, field.name, value)
        check(self)

    @classmethod
    def from_values(cls, values: dict[str, Any], where: str = "") -> "RunConfig":
        """Build from a mapping; an unknown key is a mistake, answered with the nearest names."""
        for name in values:
            if name not in KEYS:
                raise UserError(
                    f"unknown config key {name!r}{where}",
                    hint=nearest(name, KEYS) or "docs/cli.md lists the keys",
                )
        return cls(**values)

    @classmethod
    def facts(cls, name: str) -> KeyFacts:
        """What is known of a key: what it affects, its unit, bounds and help."""
        return _FACTS[name]

    def replace(self, **changes: Any) -> "RunConfig":
        return RunConfig.from_values({**dataclasses.asdict(self), **changes})

    def for_vocabulary(self, size: int | None) -> "RunConfig":
        """With the data's vocabulary, padded, where none was chosen."""
        if self.vocab_size is not None or size is None:
            return self
        return self.replace(vocab_size=padded_vocab(size))

    def changed(self, since: "RunConfig | None" = None) -> dict[str, Value]:
        """The keys that differ from the defaults, or from another config, in the order they are declared."""
        before = since or RunConfig
        return {
            key: getattr(self, key) for key in KEYS if getattr(self, key) != getattr(before, key)
        }

    @property
    def shape(self) -> ModelShape:
        modern = RECIPES[self.recipe].blocks == "modern"
        vocabulary = self.vocab_size or GPT2_PADDED_VOCAB
        sizes = self.n_layer, self.n_head, self.n_embd, vocabulary, self.block_size
        return ModelShape(*sizes, self.bias, self.tied, modern)

    @property
    def state_bits(self) -> int:
        """Bits of a number in the optimizer's moments."""
        if self.optimizer == "adamw8bit" and self.optimizer_state == "float32":
            return 8
        return STATE_BITS[self.optimizer_state]

    @property
    def matmul_dtype(self) -> str:
        """`dtype`, where the weights do not say it."""
        return "bfloat16" if self.dtype == "auto" and self.weights == "bfloat16" else self.dtype

    @property
    def tokens_per_micro_batch(self) -> int:
        return self.batch_size * self.block_size

    @property
    def sequences_per_step(self) -> int:
        """Over all micro-batches and processes."""
        return self.batch_size * self.gradient_accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        return self.sequences_per_step * self.block_size

    @property
    def total_tokens(self) -> int:
        return self.tokens_per_step * self.max_iters


KEYS: tuple[str, ...] = tuple(f.name for f in fields(RunConfig))
_FACTS = {f.name: facts_of(f) for f in fields(RunConfig)}
HINTS: dict[str, Any] = RunConfig.__annotations__
