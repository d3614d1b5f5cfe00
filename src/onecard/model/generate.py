"""Tokens from a model, one at a time for one text or several side by side; the keys and values of the old ones kept.

>>> model = open_model("out").model                                            # doctest: +SKIP
>>> for token in generate(model, [[15496]], count=20, vocab_size=50257): ...   # doctest: +SKIP

How the next one is chosen is one set of parameters for `sample`, `chat` and the server; the filters come in the order of
transformers' `generate`: repetition penalty, temperature, top_k, top_p, min_p.

>>> Sampling(temperature=0).checked().seed
1337
>>> Sampling(top_p=0).checked()
Traceback (most recent call last):
    ...
onecard.errors.UserError: top_p cannot be 0 (for example 0.9)

Learned positions have no number beyond block_size: once the window is full it slides by one token at a time, and every
key and value in it changes its position. So from there on the window is computed again for each token, which is what
nanoGPT does from the beginning and gives the same tokens.

Prompts of different lengths go side by side from their first token on: while a longer prompt is still being read, a
shorter one is already being continued. So no row holds padding, and each text is what it would be alone.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from onecard.data import Tokenizer
from onecard.errors import RunFailure, UserError
from onecard.model.gpt2 import GPT, Cache

Ended = Literal["stop", "length", "cancelled"]


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


class Generation:
    """One text being written: its prompt, how its tokens are drawn, when it ends. `ids` are those drawn so far."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling | None = None,
        most_tokens: int = 200,
        stop_tokens: Iterable[int] = (),
    ):
        assert prompt, "a model needs a token to continue from"
        self.prompt = list(prompt)
        self.most_tokens = most_tokens
        self.stop_tokens = frozenset(stop_tokens)
        self.ids: list[int] = []  # without the stop token
        self.ended: Ended | None = None if most_tokens > 0 else "length"
        self._drawer = Drawer(sampling or Sampling(), self.prompt)

    def cancel(self) -> None:
        """End it before its next token; from any thread."""
        self.ended = self.ended or "cancelled"

    def draw(self, logits: Tensor) -> int | None:
        """The next token by its logits, (vocabulary,); None where it ends the text."""
        token = self._drawer.draw(logits)
        if token in self.stop_tokens:
            self.ended = self.ended or "stop"
            return None
        self.ids.append(token)
        if len(self.ids) >= self.most_tokens:
            self.ended = self.ended or "length"
        return token


def write_together(
    model: GPT, generations: Sequence[Generation], vocab_size: int | None = None
) -> Iterator[list[int | None]]:
    """The next token of every text, until all have ended; None where a text has none in this step.

    Ids from vocab_size up are never drawn.
    """
    limit = vocab_size or model.config.shape.vocab_size
    room = model.config.block_size
    prompts = [generation.prompt[-room:] for generation in generations]
    common = min(map(len, prompts))
    rows = [prompt[:common] for prompt in prompts]  # what the model has read or is about to read
    was_training = model.training
    model.eval()
    try:
        cache = model.new_cache(len(rows))
        fresh = rows
        while not all(generation.ended for generation in generations):
            if cache.length + len(fresh[0]) > room:  # the window slides: every position changes
                cache.length = 0
                fresh = rows = [row[-room:] for row in rows]
            logits = _logits(model, fresh, cache)[:, :limit]
            drawn: list[int | None] = [None] * len(rows)
            for n, generation in enumerate(generations):
                if len(rows[n]) < len(prompts[n]):
                    rows[n].append(prompts[n][len(rows[n])])
                    continue
                if not generation.ended:
                    drawn[n] = generation.draw(logits[n])
                token = drawn[n]
                rows[n].append(rows[n][-1] if token is None else token)
            fresh = [row[-1:] for row in rows]
            yield drawn
    finally:
        model.train(was_training)


@torch.inference_mode()
def _logits(model: GPT, fresh: list[list[int]], cache: Cache) -> Tensor:
    tokens = torch.tensor(fresh, dtype=torch.long, device=model.lm_head.weight.device)
    return model.decode(tokens, cache).float().cpu()


def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling | None = None,
    *,
    vocab_size: int | None = None,
) -> Iterator[list[int]]:
    """`count` times the next token of every prompt (all of one length); row n is drawn with the seed plus n."""
    assert len(set(map(len, prompts))) == 1
    first = sampling or Sampling()
    generations = [
        Generation(prompt, replace(first, seed=first.seed + n), count)
        for n, prompt in enumerate(prompts)
    ]
    for drawn in write_together(model, generations, vocab_size):
        yield [token for token in drawn if token is not None]


@dataclass(frozen=True)
class Sampler:
    """A model with its tokeniser."""

    model: GPT
    tokenizer: Tokenizer
    step: int

    @property
    def vocab_size(self) -> int:
        return min(self.tokenizer.vocab_size, self.model.config.shape.vocab_size)

    def encode(self, prompt: str) -> list[int]:
        ids = self.tokenizer.encode(prompt) if prompt else []
        return ids or [self.tokenizer.eot if self.tokenizer.eot is not None else 0]
