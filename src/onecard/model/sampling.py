"""How the next token is chosen: one set of parameters for `sample`, `chat` and the server.

>>> Sampling(temperature=0).checked().seed
1337
>>> Sampling(top_p=0).checked()
Traceback (most recent call last):
    ...
onecard.errors.UserError: top_p cannot be 0 (for example 0.9)

The filters come in the order of transformers' `generate`: repetition penalty, temperature, top_k, top_p, min_p.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecard.errors import RunFailure, UserError


@dataclass(frozen=True)
class Sampling:
    """What is drawn from; None switches a filter off."""

    temperature: float = 0.8  # 0: the likeliest token
    top_k: int | None = None  # among the k likeliest
    top_p: float | None = None  # among the likeliest that make up p together
    min_p: float | None = None  # among those at least min_p times as likely as the likeliest
    repetition_penalty: float = 1.0  # logits of tokens that were there already, made smaller by it
    seed: int = 1337

    def checked(self) -> "Sampling":
        """Itself; UserError names a value that cannot be meant."""
        for name, good, example in (
            ("temperature", 0 <= self.temperature < 1e6, "0.8"),
            ("top_k", self.top_k is None or self.top_k >= 1, "200"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "0.9"),
            ("min_p", self.min_p is None or 0 <= self.min_p < 1, "0.05"),
            ("repetition_penalty", 0 < self.repetition_penalty < 1e6, "1.1"),
            ("seed", -(2**63) <= self.seed < 2**63, "1337"),
        ):
            if not good:
                raise UserError(
                    f"{name} cannot be {getattr(self, name)}", hint=f"for example {example}"
                )
        return self


class Drawer:
    """The tokens of one text, drawn one after the other by the rules of a Sampling.

    Its random numbers are its own and come from the CPU: a seed means the same text on every machine whose logits agree,
    alone or beside others.
    """

    def __init__(self, sampling: Sampling, seen: Sequence[int] = ()):
        self.sampling = sampling.checked()
        self._generator = torch.Generator().manual_seed(sampling.seed)
        self._seen = set(seen) if sampling.repetition_penalty != 1 else None

    def draw(self, logits: Tensor) -> int:
        """The next token by its logits, (vocabulary,), float32 on the CPU."""
        if self._seen is not None:
            logits = penalised(logits, self._seen, self.sampling.repetition_penalty)
        token = int(draw(logits[None], self.sampling, self._generator))
        if self._seen is not None:
            self._seen.add(token)
        return token


def penalised(logits: Tensor, seen: set[int], penalty: float) -> Tensor:
    """CTRL's repetition penalty (Keskar et al., 2019): a positive logit divided by it, a negative one multiplied."""
    known = torch.tensor(sorted(i for i in seen if i < logits.shape[-1]), dtype=torch.long)
    before = logits[known]
    logits = logits.clone()
    logits[known] = torch.where(before < 0, before * penalty, before / penalty)
    return logits


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token a row, (rows, 1): the likeliest at temperature 0, else drawn from what the filters leave."""
    if not torch.isfinite(logits).all():
        raise RunFailure(
            "the model's output is not finite: its training diverged, or its weights are damaged",
            hint="an earlier checkpoint of the run may be good: name its folder",
        )
    if sampling.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits / sampling.temperature
    order: Tensor | None = None
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        logits, order = logits.topk(sampling.top_k, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        if order is None:
            logits, order = logits.sort(dim=-1, descending=True)
        chances = logits.softmax(dim=-1)
        # the smallest set of likeliest tokens that reaches top_p: keep one whose predecessors have not reached it
        reached = chances.cumsum(dim=-1) - chances >= sampling.top_p
        logits = logits.masked_fill(reached, -math.inf)
    if sampling.min_p:
        least = logits.amax(dim=-1, keepdim=True) + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < least, -math.inf)
    drawn = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
    return drawn if order is None else order.gather(-1, drawn)
