"""Bits per byte and perplexity of a model on any text.

    measured = text_loss(sampler, documents, precision)
    measured.bits_per_byte, measured.perplexity

Bits per byte compare models with different tokenisers; a loss in nats per token does not. Windows of block_size tokens
slide by `stride`; each token is scored once, with at least block_size − stride tokens before it where the text has them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from onecard.errors import UserError
from onecard.model.generate import Sampler
from onecard.model.gpt2 import GPT
from onecard.model.likelihoods import likelihoods
from onecard.model.machine import Precision, autocast, precision_of

BATCH_TOKENS = 8192


@dataclass(frozen=True)
class TextLoss:
    nats: float  # of all tokens together
    tokens: int
    bytes: int
    stride: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes


@dataclass(frozen=True)
class _Window:
    ids: list[int]  # inputs and the token after them
    scored: int  # of the last tokens


def text_loss(
    sampler: Sampler,
    documents: Iterable[str],
    precision: Precision,
    stride: int | None = None,
    progress: Callable[[int], None] = lambda tokens: None,
) -> TextLoss:
    """Every document begins after the end-of-text token (or the first token of the vocabulary), which is not scored."""
    model, tokenizer = sampler.model, sampler.tokenizer
    room = model.config.block_size
    step = stride or max(room // 2, 1)
    if not 1 <= step <= room:
        raise UserError(f"the stride {step} is not between 1 and the context of {room} tokens")
    nats, tokens, size = 0.0, 0, 0
    batch: list[_Window] = []
    for text in documents:
        ids = tokenizer.encode(text)
        if not ids:
            continue
        if max(ids) >= model.config.shape.vocab_size:
            raise vocabulary_too_small(model.config.shape.vocab_size, max(ids))
        size += len(text.encode("utf-8", errors="surrogatepass"))
        tokens += len(ids)
        first = tokenizer.eot if tokenizer.eot is not None else 0
        for window in _windows([first, *ids], room, step):
            batch.append(window)
            if len(batch) * room >= BATCH_TOKENS:
                nats += _nats(model, batch, precision)
                progress(tokens)
                batch = []
    if batch:
        nats += _nats(model, batch, precision)
    if not tokens:
        raise UserError("the text is empty", hint="name a file with text in it")
    return TextLoss(nats, tokens, size, step)


def vocabulary_too_small(rows: int, token: int) -> UserError:
    return UserError(
        f"the model has {rows:,} tokens and the text needs number {token:,}",
        hint="the tokeniser is not the model's: name the run's data with the option `dataset`",
    )


def _windows(ids: list[int], room: int, stride: int) -> Iterator[_Window]:
    """Each token but the first is the scored end of one window."""
    scored_to = 1
    while scored_to < len(ids):
        first_window = scored_to == 1
        end = min(room + 1 if first_window else scored_to + stride, len(ids))
        start = max(end - room - 1, 0)
        yield _Window(ids[start:end], end - scored_to)
        scored_to = end


def _nats(model: GPT, batch: list[_Window], precision: Precision) -> float:
    """The summed loss of the scored tokens; windows are padded on the right, where no scored token looks."""
    device = model.lm_head.weight.device
    length = max(len(window.ids) for window in batch)
    rows = torch.zeros(len(batch), length, dtype=torch.long, device=device)
    wanted = torch.zeros(len(batch), length, dtype=torch.bool, device=device)
    for number, window in enumerate(batch):
        rows[number, : len(window.ids)] = torch.tensor(window.ids, device=device)
        wanted[number, len(window.ids) - window.scored : len(window.ids)] = True
    with torch.inference_mode(), autocast(device, precision):
        states = model.hidden(rows[:, :-1])[wanted[:, 1:]]
        chances, _ = likelihoods(model, states, rows[:, 1:][wanted[:, 1:]])
    return -float(chances.sum(dtype=torch.float64))


def text_nats(sampler: Sampler, text: str) -> float:
    """The summed loss of one text in windows that do not overlap, as lm-evaluation-harness rolls over it."""
    precision = precision_of("auto", sampler.model.lm_head.weight.device)
    room = sampler.model.config.block_size
    return text_loss(sampler, [text], precision, stride=room).nats if text else 0.0
