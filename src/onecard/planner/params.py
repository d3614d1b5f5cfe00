"""Trainable parameters, tensor by tensor.

>>> from onecard.config import ModelShape
>>> params(ModelShape(12, 12, 768, 50257, 1024, bias=True)).total
124439808
>>> params(ModelShape(12, 12, 384, 50304, 1024)).total
40953216
"""

from onecard.config import ModelShape
from onecard.config.model_rules import TAPS
from onecard.planner.result import Params


def params(m: ModelShape) -> Params:
    """Each part of the model, its true total, and the counts that others print."""
    width, bias = m.n_embd, int(m.bias)
    norm = 0 if m.modern else width * (1 + bias)  # RMSNorm without weights in the modern recipe
    # of the short convolution before attention and before the MLP (model/short_convolution.py)
    taps = TAPS * width if m.modern else 0
    token = m.vocab_size * width
    position = 0 if m.modern else m.block_size * width
    head = 0 if m.tied else token
    parts = {
        "token_embedding": token,
        "position_embedding": position,
        "attention": m.n_layer * (4 * width * width + 4 * width * bias + taps),
        "mlp": m.n_layer * (8 * width * width + 5 * width * bias + taps),
        "norms": m.n_layer * 2 * norm + norm,
        "head": head,
    }
    total = sum(parts.values())
    return Params(
        total=total,
        nanogpt=total - position,
        non_embedding=total - token - position,
        parts=parts,
    )
