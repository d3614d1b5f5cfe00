"""The model's and the loop's own rules that planner and trainer share, each written once.

>>> padded_vocab(50257), padded_vocab(5001), padded_vocab(65)
(50304, 5056, 65)
>>> from onecard.config.run import RunConfig
>>> evaluations(RunConfig(max_iters=2000, lr_decay_iters=2000, eval_interval=500))
4
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.config.run import RunConfig

GPT2_VOCAB = 50257
PAD_TO = 64  # tensor cores want rows in multiples of 8; nanoGPT chose 64
SMALLEST_PADDED = 1000  # the head of a character-level model is small: its true size costs nothing

LANES = 3  # streams of an optimizer on the host: one fetches, one computes, one brings back
HELD_BYTES = 2**27  # gradients that wait for them: about two layers of GPT-2 XL's

STATE_BLOCK = {8: 256, 4: 128}  # moments of so many bits that share a scale
UPDATED_NUMBERS = 2**21  # of a tensor that train/optim/sliced.py updates at once; whole blocks

LONG_MATRIX = 1.5  # sides' ratio from which Muon, in full precision, works on the Gram matrix
# Numbers in the matrices that Muon makes orthogonal at a time; for a moment each takes up to 14 bytes in half precision, 20 in fp32
STACKED_NUMBERS = 2**24
TAPS = 4  # positions that a short convolution of the modern recipe looks at, its own included

# Of fp32 logits at a time in the chunked loss. A CPU's caches want few: 166 rows of GPT-2's. Each slice is one more pass over the
# head's gradient, which no card's cache holds: 1,024 rows there, eight passes for 8 × 1,024 tokens.
SLICE_BYTES, CARD_SLICE_BYTES = 32 * 2**20, 256 * 2**20
FEWEST_SLICE_ROWS = 16

# of a training micro-batch's work: forward only, where backward is twice that
EVALUATION_SHARE = 1 / 3


@dataclass(frozen=True)
class ModelShape:
    """What the counts of parameters, FLOPs and memory need to know of a model."""

    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    block_size: int
    bias: bool = False
    tied: bool = True
    modern: bool = False  # rotary positions and RMSNorm: no position table, no norm weights


def padded_vocab(size: int) -> int:
    """Rows of the embedding for a tokeniser of `size` ids: a multiple of 64 from 1,000 ids on. The rest is never used."""
    return size if size < SMALLEST_PADDED else -(-size // PAD_TO) * PAD_TO


GPT2_PADDED_VOCAB = padded_vocab(GPT2_VOCAB)


def stacked_matrices(rows: int, columns: int) -> int:
    """How many matrices of a shape Muon makes orthogonal at a time.

    >>> stacked_matrices(128, 512), stacked_matrices(1152, 4608), stacked_matrices(8192, 8192)
    (256, 3, 1)
    """
    return max(1, STACKED_NUMBERS // (rows * columns))


def slice_rows(vocab_size: int, on_card: bool) -> int:
    """Positions whose logits the chunked loss holds at a time; on a card a power of two, which leaves no smaller slice at the
    end of a micro-batch to be compiled for itself.

    >>> slice_rows(50304, on_card=True), slice_rows(50304, on_card=False)
    (1024, 166)
    """
    if on_card:
        most = CARD_SLICE_BYTES // (4 * vocab_size)
        return max(FEWEST_SLICE_ROWS, 1 << most.bit_length() - 1)
    return max(FEWEST_SLICE_ROWS, SLICE_BYTES // (4 * vocab_size))


def evaluation_due(config: "RunConfig", step: int) -> bool:
    """Whether the loop evaluates after this many steps: at every eval_interval and at the end."""
    return step % config.eval_interval == 0 or step >= config.max_iters


def evaluations(config: "RunConfig") -> int:
    """How often a whole run evaluates: see evaluation_due."""
    return -(-config.max_iters // config.eval_interval)


def evaluation_steps(config: "RunConfig") -> float:
    """All evaluations of a run as so many training steps of the same work."""
    micro_batches = evaluations(config) * config.eval_iters
    return micro_batches / config.gradient_accumulation_steps * EVALUATION_SHARE


def decay_steps(config: "RunConfig") -> float:
    """The length of a flat schedule's decay, never longer than what the warm-up leaves."""
    span = config.lr_decay_iters - config.warmup_iters
    return min(span, config.decay_fraction * config.lr_decay_iters)


def decay_start(config: "RunConfig") -> int | None:
    """The step at which a flat schedule begins to decay; None where there is no flat part."""
    if not config.decay_lr or config.schedule != "wsd":
        return None
    start = math.ceil(config.lr_decay_iters - decay_steps(config) - 1e-9)
    return start if config.warmup_iters < start < config.lr_decay_iters else None
