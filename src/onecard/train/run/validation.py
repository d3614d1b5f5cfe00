"""Evaluation on fixed validation windows, so that every evaluation of every run on a data set is comparable.

eval_iters · batch_size windows at equal distances over the validation split (all of them when there are fewer), whatever
the micro-batch or the number of processes: the first ones alone may all lie in one document. Nothing random is drawn, so
the training run is the same with or without.
"""

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from onecard.data.read.token_sources import Sources
from onecard.errors import RunFailure
from onecard.model.chunked_loss import IGNORED
from onecard.model.machine import Precision, autocast, synchronize
from onecard.model.out_of_memory import free_cached_memory
from onecard.train.io.loader import Tokens, read_windows, to_device, windows_of
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.sharding import Sharding, within_memory
from onecard.train.run.workers import Workers

BASE = "base"  # a split with validation text of the model that is tuned
PLAIN = RowMarks()  # every token counts, and attention reaches over the whole window


@dataclass(frozen=True)
class Evaluation:
    loss: float  # nats per token
    tokens: int
    seconds: float
    bytes_per_token: float | None
    micro_batch: int  # sequences at a time that fitted into memory
    # of a mix: the loss of each source, every token booked to the source it comes from
    sources: Mapping[str, float] = field(default_factory=dict)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        return self.loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None

    def fields(self) -> dict[str, Any]:
        """As the log holds them."""
        losses = {
            name: loss if math.isfinite(loss) else None for name, loss in self.sources.items()
        }
        return {
            "val_loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "eval_tokens": self.tokens,
            "eval_seconds": self.seconds,
            **({"sources": losses} if losses else {}),
        }


def evaluate(
    model: nn.Module,
    split: Tokens,
    block_size: int,
    windows: int,
    micro_batch: int,
    workers: Workers,
    precision: Precision,
    bytes_per_token: float | None = None,
    marks: RowMarks = PLAIN,
    sources: Sources | None = None,
    sharding: Sharding | None = None,
) -> Evaluation:
    """The mean loss over so many windows, spread over the split; with `sources`, also that of each source."""
    began = time.perf_counter()
    there = windows_of(split, block_size, "validation")
    windows = min(windows, there)
    mine = range(
        workers.rank * windows // workers.processes,
        (workers.rank + 1) * windows // workers.processes,
    )
    part = np.array([number * there // windows for number in mine], dtype=np.int64)
    was_training = model.training
    model.eval()
    of_part = partial(_summed_loss, model, split, block_size, part, workers, precision, marks)
    try:
        while True:
            work = partial(of_part, sources, sharding, windows, micro_batch)
            if (total := within_memory(work, workers, sharding)) is not None:
                break
            free_cached_memory()
            if micro_batch == 1:
                raise RunFailure(
                    "out of memory in the evaluation with one sequence at a time",
                    hint="chunked_loss=True saves memory; so does a smaller block_size or model",
                )
            micro_batch //= 2
    finally:
        model.train(was_training)
    total = _over_processes(total, workers)
    loss = (total[0] / (windows if marks.answers is None else total[1])).item()
    synchronize(workers.device)
    seconds = time.perf_counter() - began
    by_source = {} if sources is None else _by_source(total, sources)
    tokens = windows * block_size
    return Evaluation(loss, tokens, seconds, bytes_per_token, micro_batch, by_source)


def _by_source(total: torch.Tensor, sources: Sources) -> dict[str, float]:
    """Nats per token of each source that has any here, from the sums that follow the whole's."""
    losses, counts = total[2:].view(2, -1).tolist()
    return {
        name: one / count
        for name, one, count in zip(sources.names, losses, counts, strict=True)
        if count
    }


def _over_processes(total: torch.Tensor, workers: Workers) -> torch.Tensor:
    """The sum over the processes, between CPUs: a card would wait for ever for a process that is gone."""
    return workers.add(total.cpu())


def _summed_loss(
    model: nn.Module,
    split: Tokens,
    block_size: int,
    part: NDArray[np.int64],
    workers: Workers,
    precision: Precision,
    marks: RowMarks,
    sources: Sources | None,
    sharding: Sharding | None,
    windows: int,
    micro_batch: int,
) -> torch.Tensor:
    """The sum of this process's windows' losses and the weight they have: their number, or that of the tokens that count.
    Then each source's summed loss and tokens. Every batch has one shape, or a compiled model would be compiled again."""
    kinds = 0 if sources is None else len(sources.names)
    dtype = torch.float64 if workers.device.type != "mps" else torch.float32
    total = torch.zeros(2 + 2 * kinds, dtype=dtype, device=workers.device)
    size = max(1, min(micro_batch, len(part)))
    batches, calls = -(-len(part) // micro_batch), 0
    if sharding is not None:  # as many in all processes, of one size
        batches, size = sharding.passes_of(windows, micro_batch), micro_batch
        calls = batches * (size if sources is not None and _plain(model).config.chunked_loss else 1)
    with (
        torch.no_grad(),
        autocast(workers.device, precision),
        nullcontext() if sharding is None else sharding.passes(calls, reading=True),
    ):
        for start in range(0, batches * micro_batch, micro_batch):
            batch = part[start : start + size]
            rows = read_windows(split, block_size, np.resize(batch, size))
            if workers.device.type == "cuda":
                rows = rows.pin_memory()  # or each copy would wait for the batches before it
            rows = to_device(rows, workers.device)
            inputs = rows[:, :-1]
            # the last batch is filled up with rows that do not count; a copy, for the inputs stay
            targets = marks.targets(rows if len(batch) == size else rows.clone())
            if 0 < len(batch) < size:
                targets[len(batch) :] = IGNORED
            weight = len(batch) if marks.answers is None else (targets != IGNORED).sum()
            if len(batch):
                total[1] += weight
            if sources is None:
                _, loss = model(inputs, targets, marks.documents(inputs))
                if len(batch):
                    total[0] += loss * weight
                continue
            documents = marks.documents(inputs)
            losses = token_losses(model, inputs, targets, documents, sharding is not None).to(dtype)
            if not len(batch):
                continue
            starts = [window * block_size + 1 for window in np.resize(batch, size).tolist()]
            whose = np.stack([sources.of("val", start, block_size) for start in starts])
            owners = torch.from_numpy(whose).to(workers.device).flatten()
            counted = (targets != IGNORED).to(dtype)
            total[0] += losses.sum() / (block_size if marks.answers is None else 1)
            total[2 : 2 + kinds].index_add_(0, owners, losses.flatten())
            total[2 + kinds :].index_add_(0, owners, counted.flatten())
    return total


def token_losses(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    doc: torch.Tensor | None,
    sharded: bool = False,
) -> torch.Tensor:
    """The loss of every position, (batch, length), in fp32, a row of logits at a time; 0 where the target is ignored.

    Parts of a model that is sharded cannot be called by themselves: it is called row by row.
    """
    plain = _plain(model)
    rows: Iterable[torch.Tensor]
    if not plain.config.chunked_loss:
        rows = iter(model(inputs, targets, doc)[0])
    elif sharded:
        documents = [None] * len(inputs) if doc is None else doc.split(1)
        pairs = zip(inputs.split(1), documents, strict=True)
        rows = (model(row, None, document)[0][0] for row, document in pairs)
    else:  # the model gives no logits then: its head is asked row by row
        rows = (plain.head(row[None])[0] for row in plain.hidden(inputs, doc))
    losses = [
        functional.cross_entropy(row.float(), answer, reduction="none", ignore_index=IGNORED)
        for row, answer in zip(rows, targets, strict=True)
    ]
    return torch.stack(losses)


def _plain(model: nn.Module) -> Any:
    """The model itself, without what compiles it."""
    plain = getattr(model, "module", model)
    return getattr(plain, "_orig_mod", plain)
