"""How a row of tokens is read: where its documents begin, and which of its tokens the loss counts.

With `learn_from = "answers"` the marks are in the tokens themselves: what follows <|assistant|> counts, up to and with
<|end|>; nothing else of a conversation does. Text without roles (base data that is mixed in) counts as in pre-training.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.data.tokenizers.special import (
    ASSISTANT,
    END,
    SYSTEM,
    USER,
    SpecialTokenizer,
    has_chat_tokens,
)
from onecard.errors import UserError
from onecard.model.chunked_loss import IGNORED


@dataclass(frozen=True)
class AnswerMarks:
    """Ids of the tokens that set a conversation's parts apart."""

    eot: int
    assistant: int
    end: int
    others: tuple[int, ...]  # the roles that are only read

    def targets(self, rows: Tensor) -> Tensor:
        """The next token of every position, IGNORED where it is not learned from."""
        inputs, targets = rows[:, :-1], rows[:, 1:]
        roles = (self.assistant, self.end, *self.others)
        marks = _one_of(inputs, (self.eot, *roles))
        at = torch.arange(inputs.shape[1], device=rows.device).expand_as(inputs)
        latest = torch.where(marks, at, -1).cummax(dim=1).values
        mark = inputs.gather(1, latest.clamp_min(0))
        text = (latest < 0) | (mark == self.eot)
        counted = ((mark == self.assistant) & (latest >= 0)) | (text & ~_one_of(targets, roles))
        return torch.where(counted, targets, IGNORED)


@dataclass(frozen=True)
class RowMarks:
    """Both readings of a run's rows; None switches one off."""

    document: int | None = None  # the token that opens a document, with mask_documents
    answers: AnswerMarks | None = None

    def documents(self, inputs: Tensor) -> Tensor | None:
        """Each position's document number in its row."""
        return None if self.document is None else (inputs == self.document).cumsum(dim=1)

    def targets(self, rows: Tensor) -> Tensor:
        return rows[:, 1:] if self.answers is None else self.answers.targets(rows)


def row_marks(config: RunConfig, data: Dataset) -> RowMarks:
    """The marks of this data set for this run."""
    document = data.eot if config.mask_documents else None
    if config.learn_from == "all":
        return RowMarks(document)
    tokenizer = data.tokenizer
    if (
        tokenizer is None
        or not isinstance(tokenizer, SpecialTokenizer)
        or not has_chat_tokens(tokenizer)
    ):
        raise UserError(
            "learn_from = 'answers' needs data with the tokens of a conversation",
            hint="`onecard tune RUN conversations.jsonl` makes it",
        )
    ids = tokenizer.special
    assert tokenizer.eot is not None
    return RowMarks(
        document,
        AnswerMarks(tokenizer.eot, ids[ASSISTANT], ids[END], (ids[SYSTEM], ids[USER])),
    )


def _one_of(tokens: Tensor, ids: tuple[int, ...]) -> Tensor:
    marks = tokens == ids[0]
    for index in ids[1:]:
        marks = marks | (tokens == index)
    return marks
