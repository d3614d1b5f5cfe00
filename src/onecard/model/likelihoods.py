"""How likely given tokens are after hidden states, without the table of logits.

>>> from onecard.config import RunConfig
>>> model = GPT(RunConfig(n_layer=1, n_head=1, n_embd=8, block_size=4, vocab_size=65))
>>> chances, likeliest = likelihoods(model, torch.zeros(2, 8), torch.tensor([3, 64]))
>>> chances.exp().mul(65).round().tolist()
[1.0, 1.0]
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from onecard.model.chunked_loss import capped
from onecard.model.gpt2 import GPT

_BLOCK = 4096  # rows of the vocabulary


def likelihoods(model: GPT, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The log-probability of a token after each state, and whether it is the likeliest one; both (states,).

    The vocabulary is processed in blocks whose logits stay in the cache: on a CPU that takes two thirds of the time
    of whole rows, and the memory of a twelfth.
    """
    weight = model.lm_head.weight
    top = torch.full_like(tokens, -math.inf, dtype=torch.float32)
    total, wanted, best = torch.zeros_like(top), torch.zeros_like(top), torch.zeros_like(tokens)
    for start in range(0, weight.shape[0], _BLOCK):
        block = weight[start : start + _BLOCK]
        logits = capped(F.linear(states, block).float(), model.soft_cap)
        own = logits.gather(1, (tokens - start).clamp(0, len(block) - 1)[:, None])[:, 0]
        wanted = torch.where((tokens >= start) & (tokens < start + len(block)), own, wanted)
        highest, place = logits.max(1)
        best = torch.where(highest > top, place + start, best)
        higher = torch.maximum(highest, top)
        total = total * (top - higher).exp() + logits.sub_(higher[:, None]).exp_().sum(1)
        top = higher
    return wanted - top - total.log(), best == tokens
