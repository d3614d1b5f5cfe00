"""How likely a model finds continuations of contexts: the one measurement that multiple-choice tasks are made of.

    scores = score_all(model, [Question(context=[15496], endings=[[995], [318, 257]])], precision)
    scores[0][1].log_probability, scores[0][1].greedy

A context that several endings share is computed once: one row holds the context and all its endings, and a mask lets
each ending see the context and itself alone. Rows are sorted by length and cut into batches of a number of tokens.
The modern blocks' short convolutions look at neighbours in the row, so there is one row for each ending.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecard.model.gpt2 import GPT
from onecard.model.likelihoods import likelihoods
from onecard.model.machine import Precision, autocast

# tokens in a batch, padding included: on a CPU as many as keep the layers' values in its cache
_ROW_TOKENS = {"cpu": 1024}
_ROW_TOKENS_OF_A_CARD = 8192


@dataclass(frozen=True)
class Question:
    """A context and the endings to be scored, as token ids; neither is empty."""

    context: Sequence[int]
    endings: Sequence[Sequence[int]]


@dataclass(frozen=True)
class Score:
    log_probability: float  # of the whole ending, in nats
    greedy: bool  # whether every token of it is the likeliest


@dataclass
class _Row:
    """One row of a batch: its input, and for each ending where its tokens are predicted."""

    question: int
    ids: list[int]
    positions: list[int]
    group: list[int]  # 0 the context, 1, 2 … the endings
    asked: list[tuple[int, list[int], Sequence[int]]] = field(default_factory=list)


def score_all(
    model: GPT,
    questions: Sequence[Question],
    precision: Precision,
    progress: Callable[[int], None] = lambda done: None,
    row_tokens: int | None = None,
) -> list[list[Score]]:
    """A score for each ending of each question, in their order. What does not fit is cut off on the left."""
    device = model.lm_head.weight.device
    row_tokens = row_tokens or _ROW_TOKENS.get(device.type, _ROW_TOKENS_OF_A_CARD)
    results: list[list[Score | None]] = [[None] * len(q.endings) for q in questions]
    rows = [row for number, q in enumerate(questions) for row in _rows(number, q, model)]
    rows.sort(key=lambda row: len(row.ids), reverse=True)
    done = 0
    with torch.inference_mode():
        for batch in _batches(rows, row_tokens):
            with autocast(device, precision):
                scores = _scores(model, _hidden(model, batch, device), batch)
            endings = [(row.question, ending) for row in batch for ending, _, _ in row.asked]
            for (question, ending), score in zip(endings, scores, strict=True):
                results[question][ending] = score
            done += len(endings)
            progress(done)
    return [[score for score in scores if score is not None] for scores in results]


def truncated(question: Question, block_size: int) -> bool:
    """Whether some ending leaves no room for the whole context."""
    longest = max(len(ending) for ending in question.endings)
    return len(question.context) + longest - 1 > block_size


def _rows(number: int, question: Question, model: GPT) -> list[_Row]:
    room = model.config.block_size
    total = len(question.context) + sum(len(ending) - 1 for ending in question.endings)
    alone = model.config.shape.modern or truncated(question, room) or total > 4 * room
    if not alone:
        return [_shared_row(number, question)]
    return [
        _shared_row(number, _cut(Question(question.context, [ending]), room), first=index)
        for index, ending in enumerate(question.endings)
    ]


def _cut(question: Question, room: int) -> Question:
    """The last `room` + 1 tokens of context and ending, as lm-evaluation-harness cuts them."""
    (ending,) = question.endings
    whole = [*question.context, *ending][-room - 1 :]
    context = max(len(whole) - len(ending), 1)  # of an ending that is longer, its own beginning
    return Question(whole[:context], [whole[context:]])


def _shared_row(number: int, question: Question, first: int = 0) -> _Row:
    context = list(question.context)
    row = _Row(number, [*context], list(range(len(context))), [0] * len(context))
    for index, ending in enumerate(question.endings):
        start = len(row.ids)
        seen = list(ending[:-1])  # the last token is predicted, never read
        places = [len(context) - 1, *range(start, start + len(seen))]
        row.ids.extend(seen)
        row.positions.extend(range(len(context), len(context) + len(seen)))
        row.group.extend([index + 1] * len(seen))
        row.asked.append((first + index, places, ending))
    return row


def _batches(rows: list[_Row], row_tokens: int) -> Iterator[list[_Row]]:
    """Rows of about one length, up to `row_tokens`; a quarter of them is enough for a batch where rows get shorter fast."""
    batch: list[_Row] = []
    for row in rows:  # longest first, so the first row's length is the batch's
        length = len(batch[0].ids) if batch else 0
        full = length * (len(batch) + 1) > row_tokens
        uneven = len(row.ids) < 0.9 * length and length * len(batch) > row_tokens / 4
        if batch and (full or uneven):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _hidden(model: GPT, batch: list[_Row], device: torch.device) -> Tensor:
    """The last hidden states, (rows, length, width); padding stands on the right and is looked at by nobody."""
    length = len(batch[0].ids)

    def padded(lists: list[list[int]], value: int) -> Tensor:
        return torch.tensor([one + [value] * (length - len(one)) for one in lists], device=device)

    ids = padded([row.ids for row in batch], 0)
    if all(max(row.group) <= 1 and len(row.asked) == 1 for row in batch):
        return model.hidden(ids)
    group = padded([row.group for row in batch], -1)
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    own = (group[:, :, None] == group[:, None, :]) | (group[:, None, :] == 0)
    positions = padded([row.positions for row in batch], 0)
    return model.packed_hidden(ids, positions, (own & causal)[:, None])


def _scores(model: GPT, hidden: Tensor, batch: list[_Row]) -> list[Score]:
    """The endings' scores in order; the head is applied to the positions that predict a token of an ending, and no others."""
    asked = [(number, *one) for number, row in enumerate(batch) for one in row.asked]
    rows = [number for number, _, places, _ in asked for _ in places]
    places = [place for _, _, places, _ in asked for place in places]
    tokens = [token for *_, tokens in asked for token in tokens]
    device = hidden.device
    states = hidden[torch.tensor(rows, device=device), torch.tensor(places, device=device)]
    chances, greedy = likelihoods(model, states, torch.tensor(tokens, device=device))
    likely, best = iter(chances.tolist()), iter(greedy.tolist())  # one wait for the card a batch
    scores = []
    for *_, ending in asked:
        count = len(ending)
        total = math.fsum(itertools.islice(likely, count))
        scores.append(Score(total, all(list(itertools.islice(best, count)))))
    return scores
