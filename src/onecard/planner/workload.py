"""Workload: one training step as a card meets it. What the FLOP counts and the step time are computed from.

A RunConfig says what a person chose; other people's runs (fit/, bench/) also have grouped heads, gated MLPs, weights
kept in bf16, sharded optimizers. Both become a Workload, so one model predicts both.

>>> w = Workload.of(RunConfig(n_embd=384, batch_size=16, gradient_accumulation_steps=32), "bfloat16")
>>> w.tokens, w.accumulation, w.head_width
(16384, 32.0, 32)
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from onecard.config import ModelShape, RunConfig
from onecard.config.model_rules import slice_rows
from onecard.facts.builds import support_of
from onecard.facts.gpus import Device
from onecard.facts.links import Links

Recompute = Literal["none", "cheap", "block"]


@dataclass(frozen=True)
class Workload:
    """What one step computes, for the speed and memory models."""

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    block_size: int
    batch_size: int  # sequences in a micro-batch on one card
    accumulation: float  # micro-batches a card does in one step
    stack: str = "onecard"  # whose code runs it (planner/stacks.py)
    on_card: bool = True  # and not on a CPU
    dtype: str = "bfloat16"  # of the matmuls: bfloat16, float16, tf32, float32
    gpus: int = 1
    n_kv_head: int | None = None  # None: as many as n_head
    head_dim: int | None = None  # None: n_embd / n_head
    d_ff: int | None = None  # None: 4 × n_embd
    gated: bool = False  # SwiGLU: three MLP matrices
    tied: bool = True
    modern: bool = False  # model/modern.py's blocks, or their like in other projects
    rotary: bool | None = None  # None: where the model is modern
    head_norms: bool = False  # other people's queries and keys are normed by themselves
    norms: int = 2  # in a layer, of the stream
    norm_kernel: bool = False  # other people's RMSNorm is one kernel even where nothing is compiled
    bias: bool = False
    dropout: float = 0.0
    compiled: bool = True
    flash: bool = True
    window: float = 1.0  # attention FLOPs against full causal attention: sliding windows
    chunked_loss: bool = False
    chunk_rows: int | None = None  # None: config/model_rules.py's
    recompute: Recompute = "none"
    optimizer: str = "adamw"
    half_weights: bool = False  # matrices and tables in bf16 without a copy
    half_gradients: bool = False  # and their gradients added up in bf16
    by_block: bool = False  # compiled layer by layer
    # moments, and fp32 copies of bf16 weights, in the computer's memory
    host_optimizer: bool = False
    host_inputs: bool = False  # and the layers' inputs
    in_backward: bool = False  # each parameter is updated when its gradient is complete
    state_bits: int = 32  # of a number in the optimizer's moments
    fused_optimizer: bool = True
    optimizer_loop: bool = False  # a textbook's update: tensor by tensor, operation by operation
    graphs: bool = False  # CUDA graphs: the host launches one for a micro-batch's kernels
    fp8: bool = False  # layers' matmuls in 8 bits
    pure: bool = False  # weights, gradients and moments in the matmul's dtype, without fp32 copies
    shard: Literal["none", "grads", "full"] = "none"  # our own trainer's FSDP2, and
    shard_cards: int = 1  # the cards that have one copy of the model together
    nodes: int = 1  # machines
    link_bytes: float | None = None  # a second between cards; None: what the card is made for
    network_bytes: float = 0.0  # a second in and out of a machine, where there are several
    # other people's FSDP: weights gathered from the other cards for every micro-batch
    sharded: bool = False
    nvlink: bool = True  # between the cards, where there are several
    # gradients are summed after the last backward pass, not during it as DDP does
    waits_for_exchange: bool = False
    mask_documents: bool = False
    full_precision_updates: bool = False  # Muon computes in fp32: on CPUs, Apple's and old cards
    spare_logits: bool = True  # the compiled model returns logits beside the loss: their gradient is a table of zeros
    # the loop has a name for the logits, so they live through the backward pass
    keeps_logits: bool = False
    loss_outside: bool = False  # the compiled model gives logits, and an eager loss follows
    # whose layers: some keep more for the backward pass
    modules: Literal["own", "transformers", "scratch"] = "own"
    buckets: bool = False  # DistributedDataParallel keeps a second copy of the gradients
    # embeddings and residual stream in the matmul's dtype, all other weights in fp32
    half_stream: bool = False
    # more embeddings, added to the values of as many layers (nanochat, modded-nanogpt)
    value_tables: int = 0
    # fp8 matmuls: their inputs are kept for the backward pass in one byte
    kept_half_bytes: bool = False
    split_optimizer: bool = False  # each card keeps and updates its share of the weights (ZeRO)
    # learned scales on what a layer adds to the stream (parameter-golf): both are kept
    scaled_branches: bool = False
    # the compiled model hands them back; else their gradient takes their place
    returns_logits: bool = True
    # queries and keys once more, in the order of an attention kernel that asks for it
    turned_copies: bool = False

    @classmethod
    def of(
        cls,
        config: RunConfig,
        dtype: str,
        gpus: int = 1,
        nodes: int = 1,
        compiles: bool = True,
        **of_device: Any,
    ) -> "Workload":
        """A RunConfig's step on so many cards in all; its accumulation is the total over them, as in nanoGPT."""
        shape = config.shape
        shard = config.shard if gpus > 1 else "none"
        # the cards of a machine have one copy together, or all where there is one in each (train/run/sharding.py)
        each = gpus // nodes if gpus > nodes else gpus
        return cls(
            n_layer=shape.n_layer,
            n_head=shape.n_head,
            n_embd=shape.n_embd,
            vocab_size=shape.vocab_size,
            block_size=shape.block_size,
            batch_size=config.batch_size,
            accumulation=config.gradient_accumulation_steps / gpus,
            dtype="tf32"
            if dtype == "float32"
            else dtype,  # the trainer allows TF32, as nanoGPT does
            gpus=gpus,
            tied=shape.tied,
            modern=shape.modern,
            bias=shape.bias,
            dropout=config.dropout,
            compiled=config.compile and compiles,
            flash=config.attention != "math",
            chunked_loss=config.chunked_loss,
            chunk_rows=config.chunk_rows,
            returns_logits=not shape.modern,  # model/modern.py
            recompute=config.recompute,
            optimizer="muon" if config.optimizer == "muon" else "adamw",
            half_weights=config.weights == "bfloat16",
            half_gradients=config.gradients == "bfloat16",
            by_block=config.compile_unit == "block" or shard != "none",
            host_optimizer=config.offload_optimizer,
            host_inputs=config.offload_activations,
            in_backward=config.update_in_backward,
            state_bits=config.state_bits,
            fused_optimizer=config.fused_optimizer,
            fp8=config.fp8,
            kept_half_bytes=config.fp8,
            mask_documents=config.mask_documents,
            waits_for_exchange=gpus > 1,  # train/run/workers.py
            shard=shard,
            shard_cards=each if shard != "none" else 1,
            nodes=nodes,
            **of_device,
        )

    @classmethod
    def on(
        cls,
        device: Device,
        config: RunConfig,
        dtype: str,
        gpus: int = 1,
        nodes: int = 1,
        link: Links | None = None,
    ) -> "Workload":
        """The same as this device runs it: uncompiled where torch.compile has nothing for it."""
        link = link or Links()
        return cls.of(
            config,
            dtype,
            gpus,
            nodes,
            support_of(device).compiles,
            on_card=device.kind != "cpu",
            graphs=device.kind == "cuda" and config.compile_mode == "reduce-overhead",
            # as fast_low_dtype in model/machine.py: half precision where a matrix unit computes in it; that of a CPU is
            # not planned with, for which of them have one is not in the table of devices
            full_precision_updates=device.kind != "cuda"
            or device.architecture in ("Maxwell", "Pascal"),
            nvlink=link.nvlink is not False,
            link_bytes=link.cards,
            network_bytes=link.network if nodes > 1 else 0.0,
        )

    @classmethod
    def of_shape(cls, shape: ModelShape) -> "Workload":
        """One sequence through a model: for counts per token."""
        return cls(
            shape.n_layer,
            shape.n_head,
            shape.n_embd,
            shape.vocab_size,
            shape.block_size,
            1,
            1,
            tied=shape.tied,
            modern=shape.modern,
            bias=shape.bias,
        )

    @property
    def rotates(self) -> bool:
        """Whether positions are rotations of queries and keys."""
        return self.modern if self.rotary is None else self.rotary

    @property
    def one_graph(self) -> bool:
        """Whether the model is compiled as a whole, which hands its gradients over at the end."""
        return self.compiled and not self.by_block

    @property
    def sliced_update(self) -> bool:
        """Whether the update is train/optim/sliced.py's."""
        lower = self.state_bits < 32 or self.half_weights or self.half_gradients
        return lower or self.host_optimizer or (self.in_backward and self.stack == "onecard")

    @property
    def loss_rows(self) -> int:
        """Tokens of a slice of the chunked loss; of other people's, as a CPU has them here."""
        own = self.on_card and self.stack == "onecard"
        return min(self.tokens, self.chunk_rows or slice_rows(self.vocab_size, own))

    @property
    def loss_slices(self) -> int:
        return -(
            -self.tokens // max(1, self.loss_rows)
        )  # no tokens: what does not depend on them is counted so

    @property
    def loss_slices_compiled(self) -> bool:
        """Whether what is done with each slice's logits is compiled: model/chunked_loss.py's weigh_at_once."""
        return self.chunked_loss and self.compiled and self.on_card and self.stack == "onecard"

    @property
    def gradients_freed_at_once(self) -> bool:
        """Whether a gradient is freed as soon as it is made: added to the sum of earlier ones, or applied."""
        return self.accumulation > 1 or self.in_backward

    @property
    def optimizer_cards(self) -> int:
        """How many cards share the optimizer's state and updates out among them."""
        return self.gpus if self.sharded or self.split_optimizer else self.shard_cards

    @property
    def moment_bits(self) -> int:
        """Of other people's runs the optimizer's name says it."""
        return 8 if self.optimizer == "adamw8bit" else self.state_bits

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one card."""
        return self.batch_size * self.block_size

    @property
    def head_width(self) -> int:
        return self.head_dim or self.n_embd // self.n_head

    @property
    def kv_width(self) -> int:
        return self.head_width * (self.n_kv_head or self.n_head)

    @property
    def ff_width(self) -> int:
        return self.d_ff or 4 * self.n_embd

    @cached_property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each weight matrix that a token is multiplied with in one layer."""
        width, ff = self.n_embd, self.ff_width
        inner = self.head_width * self.n_head if self.head_dim else width
        up = ((width, ff),) * (2 if self.gated else 1)
        return ((width, inner + 2 * self.kv_width), (inner, width), *up, (ff, width))

    @cached_property
    def layer_params(self) -> int:
        return sum(inputs * outputs for inputs, outputs in self.layer_matrices)

    @property
    def matmul_params(self) -> int:
        """Parameters that every token is multiplied with: the layers' matrices and the head."""
        return self.n_layer * self.layer_params + self.vocab_size * self.n_embd

    @property
    def positions(self) -> int:
        """Parameters of the position embedding."""
        return 0 if self.modern else self.block_size * self.n_embd

    @property
    def params(self) -> int:
        """All parameters that the optimizer updates, near enough for its time (norms and biases left out)."""
        return (
            self.matmul_params
            + self.positions
            + (0 if self.tied else self.vocab_size * self.n_embd)
        )
