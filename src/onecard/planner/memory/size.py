"""The sizes that every moment of a step is made of: parameters, their casts, the numbers' widths.

>>> Sizes(Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4)).parameters
124373760
"""

from dataclasses import dataclass
from functools import cached_property

from onecard.config.model_rules import TAPS
from onecard.planner.workload import Workload

Moment = dict[str, int]
HALF, FULL = 2, 4
# Moments like the weights that other people's optimizers keep; Adafactor's rows and columns are nothing beside them.
MOMENTS = {"sgd": 0, "momentum": 1, "lion": 1, "adafactor": 0}


def total(moment: Moment) -> int:
    return sum(moment.values())


@dataclass(frozen=True)
class Sizes:
    work: Workload

    @cached_property
    def tokens(self) -> int:
        return self.work.tokens

    @cached_property
    def matmul(self) -> int:
        """Bytes of a number in matmuls; 8-bit matmuls still hand on 16-bit results."""
        return FULL if self.work.dtype in ("float32", "tf32") else HALF

    @cached_property
    def residual(self) -> int:
        """Bytes of a number in the weights."""
        return self.matmul if self.work.pure else FULL

    @cached_property
    def stream(self) -> int:
        """Bytes of a number in the residual stream: the embedding's dtype."""
        return self.matmul if self.work.half_stream else self.residual

    @property
    def mixed(self) -> bool:
        return self.matmul != self.residual

    @cached_property
    def weight_bytes(self) -> int:
        """All weights; embeddings in half precision where the residual stream is."""
        return (
            self.residual * self.parameters - (self.residual - self.stream) * self.lookup_parameters
        )

    @cached_property
    def lookup_parameters(self) -> int:
        """Of these, embeddings that nothing is multiplied with: the head's, where it is tied, is no such."""
        w = self.work
        tables = w.value_tables * w.vocab_size * w.kv_width
        return tables + (0 if w.tied else self._table)

    @property
    def norm_stats(self) -> int:
        """LayerNorm keeps mean and inverse deviation of each token, RMSNorm only the latter."""
        return 4 if self.work.modern else 8

    @cached_property
    def layer_parameters(self) -> int:
        w = self.work
        biases = sum(outputs for _, outputs in w.layer_matrices) if w.bias else 0
        norms = 2 * TAPS * w.n_embd if w.modern else 2 * w.n_embd * (2 if w.bias else 1)
        return w.layer_params + biases + norms

    @cached_property
    def parameters(self) -> int:
        w = self.work
        table = w.vocab_size * w.n_embd
        positions = 0 if w.modern else w.block_size * w.n_embd
        norm = 0 if w.modern else w.n_embd * (2 if w.bias else 1)
        values = w.value_tables * w.vocab_size * w.kv_width
        return (
            w.n_layer * self.layer_parameters
            + table * (1 if w.tied else 2)
            + positions
            + norm
            + values
        )

    @cached_property
    def cast_layers(self) -> int:
        """Half-precision copies of the layers' matrices, made by autocast and kept for the backward pass."""
        return self.work.n_layer * self.matmul * self.work.layer_params if self.mixed else 0

    @cached_property
    def cast_head(self) -> int:
        return self.matmul * self.work.vocab_size * self.work.n_embd if self.mixed else 0

    @cached_property
    def new_gradients(self) -> int:
        """Gradients that a backward pass adds to what is there: all in a step's only micro-batch, else none."""
        return 0 if self.work.accumulation > 1 else self.weight_bytes - self.stream * self._table

    @property
    def _table(self) -> int:
        return self.work.vocab_size * self.work.n_embd

    @cached_property
    def mlp_bytes(self) -> int:
        """Kept by the MLP: before and after the activation function; gated, the gate and the product too."""
        return self.matmul * self.work.ff_width * self.tokens * (4 if self.work.gated else 2)

    @cached_property
    def foreign_bytes(self) -> int:
        """Other people's modules, eager: GELU and LayerNorm written out in small steps, each keeping its input.

        transformers' gelu_new in fp32 pieces: 34 bytes a channel, by tracing GPT2LMHeadModel; "LLMs from scratch"
        with its own LayerNorm and GELU: 16 numbers a channel, from their definitions.
        """
        each = {"own": 0, "transformers": 34, "scratch": 16 * self.matmul}[self.work.modules]
        return each * self.work.n_embd * self.tokens

    @cached_property
    def bias_bytes(self) -> int:
        """A mask over documents becomes a table of numbers to add to the scores, in every layer."""
        w = self.work
        return self.matmul * w.block_size * self.tokens if w.mask_documents and w.flash else 0

    @cached_property
    def flash_work(self) -> int:
        w = self.work
        rows = w.batch_size * w.n_head * (-(-w.block_size // 128) * 128)
        return 4 * rows * (-(-w.head_width // 32) * 32) + 4 * rows

    @cached_property
    def embedding_bytes(self) -> int:
        """Copies of inputs and targets, a dropout mask, and the mask over documents where there is one."""
        w = self.work
        mask = 0
        if (
            w.mask_documents
        ):  # document numbers; the table of who sees whom, if the layers are to be computed again
            mask = (8 + (w.block_size if w.recompute != "none" else 0)) * self.tokens
        return 16 * self.tokens + mask + (w.n_embd * self.tokens if w.dropout else 0)

    def base(self, gradients: int = 0) -> Moment:
        """What is there at every moment of a steady step."""
        w = self.work
        weight = self.weight_bytes // (w.gpus if w.sharded else 1)
        return {
            "weights": weight,
            "gradients": (weight if w.accumulation > 1 else 0)
            + (weight if w.buckets else 0)
            + gradients,
            "optimizer": self.optimizer_bytes,
            "cast_weights": 0,
            "activations": round(
                8 * self.tokens * max(1, w.accumulation)
            ),  # the step's tokens, on the card at once
            "logits_and_loss": 0,
        }

    def optimizer_moment(self) -> Moment:
        """The step itself: all gradients, and what the optimizer needs for its own arithmetic."""
        w = self.work
        moment = self.base()
        weight = self.weight_bytes // (w.gpus if w.sharded else 1)
        share = w.gpus if w.split_optimizer and not w.sharded else 1
        moment["gradients"] += weight if w.accumulation <= 1 else 0
        if w.optimizer == "muon":
            # the momentum ahead, the last group's updates, then the largest group (the MLP's) stacked, orthogonal in half
            # precision beside its Gram matrices, and back in full: train/optim/muon.py
            square = w.n_layer * w.n_embd * w.n_embd
            extra = (
                self.residual * w.n_layer * w.layer_params
                + 16 * square
                + (32 + 16 + 4 + 32) * square
            )
            moment["optimizer"] += extra // share
        elif not w.fused_optimizer:
            moment["optimizer"] += (
                weight // share
            )  # torch's foreach loops keep the root of the second moment
        return moment

    @cached_property
    def optimizer_bytes(self) -> int:
        """AdamW: two moments like the weights. In 8 bits: a byte each, and a scale for every 256 of them in fp32.
        Muon: one momentum for the layers' matrices, AdamW for the rest. Others: as many moments as they keep."""
        w = self.work
        full = 2 * self.weight_bytes
        if w.optimizer == "adamw8bit":
            matrices = w.n_layer * w.layer_params + self._table * (1 if w.tied else 2)
            matrices += 0 if w.modern else w.block_size * w.n_embd
            full += -2 * self.residual * matrices + 2 * matrices + 2 * 4 * matrices // 256
        elif w.optimizer == "muon":
            full -= self.residual * w.n_layer * w.layer_params
        elif w.optimizer in MOMENTS:
            full = MOMENTS[w.optimizer] * self.weight_bytes
        return full // (w.gpus if w.split_optimizer or w.sharded else 1)
