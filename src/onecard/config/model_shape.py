"""What the parameter, FLOP and memory counts need to know of a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    n_layer: int
    n_head: int
    n_embd: int
    vocab_size: int
    block_size: int
    bias: bool = False
    tied: bool = True
    modern: bool = False  # rotary positions and RMSNorm: no position table, no norm weights
