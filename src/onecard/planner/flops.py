"""FLOPs per token, in the three ways people count them. Always say which one a figure uses.

>>> from onecard.config import ModelShape
>>> gpt2 = ModelShape(12, 12, 768, 50304, 1024)
>>> f"{nanogpt_per_token(gpt2):.4g} {six_n_per_token(gpt2):.4g} {exact_per_token(gpt2):.4g}"
'8.548e+08 7.415e+08 7.98e+08'
"""

from onecard.config import ModelShape
from onecard.planner.params import params
from onecard.planner.result import Flops
from onecard.planner.workload import Workload


def nanogpt_per_token(shape: ModelShape) -> float:
    """nanoGPT's estimate_mfu: 6·N + 12·n_layer·n_embd·block_size (PaLM, appendix B), N without positions."""
    return 6 * params(shape).nanogpt + 12 * shape.n_layer * shape.n_embd * shape.block_size


def six_n_per_token(shape: ModelShape) -> float:
    """The rough rule: 6·N, with nanoGPT's N."""
    return 6 * params(shape).nanogpt


def exact_per_token(shape: ModelShape) -> float:
    """What is multiplied: every weight matrix and the causal half of attention, forward and twice that backward."""
    return model_flops(Workload.of_shape(shape))


def flops(shape: ModelShape, tokens: float) -> Flops:
    """All three conventions, per token and for a run of so many tokens."""
    per_token = nanogpt_per_token(shape), six_n_per_token(shape), exact_per_token(shape)
    return Flops(*per_token, *(each * tokens for each in per_token))


def attention_flops(w: Workload) -> float:
    """Scores and their product with the values, per token, all layers, one forward pass over the causal half."""
    return 2 * w.n_layer * w.n_embd * w.block_size * w.window


def model_flops(w: Workload) -> float:
    """Per token, forward and backward, without anything computed twice: what MFU counts."""
    return 6 * w.matmul_params + 3 * attention_flops(w)
