"""Model shapes worth trying: widths in 64-wide heads, depths in the proportions that public runs have.

>>> [(s.n_layer, s.n_embd) for s in shapes() if s.n_embd == 768]
[(12, 768), (14, 768), (18, 768)]
"""

import math
from dataclasses import dataclass
from functools import cache

from onecard.config import GPT2_PADDED_VOCAB, ModelShape
from onecard.planner.params import params
from onecard.planner.workload import Workload

HEAD = 64  # as in all GPT-2s; attention kernels are at their best with 64 or 128
# Width over depth. GPT-2's four sizes, which the public losses are made of, go from 64 (124M) to 33 (1.5B); the loss law
# has no term for proportions, so nothing wider is tried, however fast it would be.
PROPORTIONS = (64, 53, 43)
WIDTHS = range(256, 2049, HEAD)


@dataclass(frozen=True)
class Shape:
    n_layer: int
    n_embd: int

    @property
    def n_head(self) -> int:
        return self.n_embd // HEAD


@cache
def shapes() -> tuple[Shape, ...]:
    """All of them, from small to large."""
    by_size = {
        Shape(max(2, round(width / ratio)), width) for width in WIDTHS for ratio in PROPORTIONS
    }
    return tuple(
        sorted(
            by_size,
            key=lambda shape: (
                shape.n_embd**2 * shape.n_layer * 12 + GPT2_PADDED_VOCAB * shape.n_embd,
                shape.n_layer,
            ),
        )
    )


def total_params(shape: ModelShape) -> int:
    return params(shape).total


def matmul_params(shape: ModelShape) -> int:
    """The size that the loss law counts: blocks and head."""
    return Workload.of_shape(shape).matmul_params


def usual_batch(size: float, block_size: int = 1024) -> int:
    """Sequences in all that a step of a model of `size` parameters wants: 30 or 45 × 2^k, which many micro-batches divide.

    480 of 1024 tokens from 100M to 900M parameters, nanoGPT's own 0.5M tokens (GPT-3's table 2.1, llm.c and
    modded-nanogpt have as much at 124M); twice that above 1.2B (the same table), half below 60M, as Cerebras-GPT's
    smallest (246k tokens for 111M) and the smaller critical batch of a higher loss (Kaplan et al. 2020) have it; what
    lies between has a batch between.

    >>> [usual_batch(size) for size in (30e6, 80e6, 124e6, 1e9, 1.5e9)], usual_batch(124e6, block_size=2048)
    ([240, 360, 480, 720, 960], 240)
    """
    steps = ((60e6, 240), (100e6, 360), (900e6, 480), (1.2e9, 720), (math.inf, 960))
    sequences = next(batch for limit, batch in steps if size < limit) * 1024 / block_size
    ladder = [base << k for k in range(16) for base in (30, 45)]
    return min(ladder, key=lambda batch: abs(math.log(batch / sequences)))


def shape_of(count: float) -> Shape:
    """A shape of about so many parameters in the usual proportions, of any size.

    >>> shape_of(1.4e9)
    Shape(n_layer=34, n_embd=1792)
    """

    def parameters(width: int, depth: int) -> int:
        return 12 * depth * width * width + GPT2_PADDED_VOCAB * width

    best = Shape(2, HEAD)
    for width in range(HEAD, 32_769, HEAD):
        depth = max(
            2, min(round(width / 43), round((count / width - GPT2_PADDED_VOCAB) / 12 / width))
        )
        if depth < width / PROPORTIONS[0] * 0.9:
            continue  # wider than any
        if abs(math.log(parameters(width, depth) / count)) < abs(
            math.log(parameters(best.n_embd, best.n_layer) / count)
        ):
            best = Shape(depth, width)
    return best
