"""The sizes that tensors are declared with: bytes of a number, tokens of a micro-batch, parameters.

>>> Sizes(Workload(12, 12, 768, 50304, 1024, batch_size=8, accumulation=4)).parameters
124373760
"""

from functools import cached_property

from onecard.config.model_rules import TAPS
from onecard.planner.workload import Workload

HALF, FULL, INT64 = 2, 4, 8


class Sizes:
    """Bytes of the tensors that several declarations share; activations are those of a whole micro-batch. What ends in
    `_count` or `parameters` is numbers, to be multiplied with the bytes of one.

    matmul, exact, weight, stream: bytes of one number in matmuls; in norms, biases and moments; in matrices; in the
    residual stream. mixed: matmuls use fewer bytes than `exact`, as under autocast. casts: each matrix is copied for its
    matmul.
    """

    def __init__(self, work: Workload):
        self.work = work
        self.tokens = tokens = work.tokens
        # 8-bit matmuls still give 16-bit results
        self.matmul = FULL if work.dtype in ("float32", "tf32") else HALF
        self.exact = self.matmul if work.pure else FULL
        # whether the weights of a pass are gathered from several cards, as matmuls want them
        self.gathers = work.shard != "none"
        usual = self.matmul if self.gathers else self.exact
        self.weight = HALF if work.half_weights else usual
        self.stream = self.matmul if work.half_stream else self.exact
        self.mixed = self.matmul != self.exact
        self.casts = self.matmul != self.weight
        self.residual = self.stream * work.n_embd * tokens
        self.activation = self.matmul * work.n_embd * tokens  # of a matmul, as wide as the stream
        self.qkv = self.matmul * (work.n_embd + 2 * work.kv_width) * tokens
        self.up = self.matmul * work.ff_width * tokens
        # 8-bit matmuls keep their inputs in a byte
        kept = 2 if work.kept_half_bytes else 1
        self.normed, self.activated = self.activation // kept, self.up // kept
        self.score_count = work.n_head * work.block_size * tokens
        self.logit_count = work.vocab_size * tokens
        self.table_parameters = work.vocab_size * work.n_embd  # of the head, and of the embedding
        self.position_parameters = work.positions
        # LayerNorm keeps mean and inverse deviation of each token, RMSNorm only the latter
        self.norm_statistics = (4 if work.modern or work.compiled else 8) * tokens
        # a mask over documents becomes a table of numbers to add to the scores
        self.mask_bytes = self.matmul * work.block_size * tokens

    @cached_property
    def matrix_parameters(self) -> int:
        return self.work.layer_params

    @cached_property
    def layer_parameters(self) -> int:
        work = self.work
        biases = sum(outputs for _, outputs in work.layer_matrices) if work.bias else 0
        norms = 2 * TAPS * work.n_embd if work.modern else 2 * work.n_embd * (1 + work.bias)
        return self.matrix_parameters + biases + norms

    @cached_property
    def value_embedding_parameters(self) -> int:
        return self.work.value_tables * self.work.vocab_size * self.work.kv_width

    @cached_property
    def value_embedding_bytes(self) -> int:
        """A layer's share of the values that more embeddings were added to, and their gates (nanochat, traced)."""
        work = self.work
        each = self.matmul * (work.kv_width + (work.n_kv_head or work.n_head)) * self.tokens
        return each * work.value_tables // work.n_layer

    @cached_property
    def parameters(self) -> int:
        work = self.work
        norm = 0 if work.modern else work.n_embd * (1 + work.bias)
        tables = (
            self.table_parameters * (1 if work.tied else 2)
            + self.position_parameters
            + self.value_embedding_parameters
        )
        return work.n_layer * self.layer_parameters + tables + norm

    @cached_property
    def weight_bytes(self) -> int:
        """All weights; tables that are only looked up have the residual stream's bytes a number."""
        if self.work.half_weights:
            return self.exact * self.parameters - (self.exact - self.weight) * self.large_parameters
        lookups = self.value_embedding_parameters + (0 if self.work.tied else self.table_parameters)
        return self.weight * self.parameters - (self.weight - self.stream) * lookups

    @cached_property
    def exact_bytes(self) -> int:
        """All parameters in the bytes that their gradients and moments are usually kept in."""
        exact = self.work.half_weights or self.gathers
        return self.exact * self.parameters if exact else self.weight_bytes

    @cached_property
    def gradient_bytes(self) -> int:
        """The gradients, summed over the micro-batches of a step."""
        if self.work.half_gradients:
            return self.exact_bytes - (self.exact - HALF) * self.large_parameters
        return self.exact_bytes

    @cached_property
    def large_parameters(self) -> int:
        """In matrices and tables: what weights = "bfloat16" and moments of few bits keep in fewer bytes than `exact`."""
        tables = self.table_parameters * (1 if self.work.tied else 2) + self.position_parameters
        return self.work.n_layer * self.matrix_parameters + tables

    @cached_property
    def flash_work(self) -> int:
        """FlashAttention-2's backward pass adds up the queries' gradient in fp32 (dq_accum) and keeps one fp32 value a row
        (softmax_d); its kernels round rows up to 128 and the width of a head to 32."""
        work = self.work
        rows = work.batch_size * work.n_head * (-(-work.block_size // 128) * 128)
        return 4 * rows * (-(-work.head_width // 32) * 32) + 4 * rows

    @cached_property
    def foreign_bytes(self) -> int:
        """Other people's modules, eager: GELU and LayerNorm written out in small steps, each keeping its input.

        transformers' gelu_new in fp32 pieces: 34 bytes a channel, by tracing GPT2LMHeadModel; "LLMs from scratch"
        with its own LayerNorm and GELU: 16 numbers a channel, from their definitions.
        """
        each = {"own": 0, "transformers": 34, "scratch": 16 * self.matmul}[self.work.modules]
        return each * self.work.n_embd * self.tokens
