"""Evaluation on fixed validation windows, so that every evaluation of every run on a data set is comparable.

The first eval_iters · batch_size windows of the validation split (all of them when there are fewer), whatever the
micro-batch or the number of processes. Nothing random is drawn, so the training run is the same with or without.
"""

import math
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from onecard.model.machine import Precision, autocast, synchronize
from onecard.train.io.loader import Tokens, read_windows, windows_of
from onecard.train.run.workers import Workers


@dataclass(frozen=True)
class Evaluation:
    loss: float  # nats per token
    tokens: int
    seconds: float
    bytes_per_token: float | None

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        return self.loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None

    def fields(self) -> dict[str, float | int | None]:
        """As the log holds them."""
        return {
            "val_loss": self.loss,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
            "eval_tokens": self.tokens,
            "eval_seconds": self.seconds,
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
    mask_token: int | None = None,
) -> Evaluation:
    """The mean loss over the first `windows` windows of the split."""
    began = time.perf_counter()
    windows = min(windows, windows_of(split, block_size, "validation"))
    part = np.arange(
        workers.rank * windows // workers.processes,
        (workers.rank + 1) * windows // workers.processes,
    )
    total = torch.zeros((), dtype=torch.float64 if workers.device.type != "mps" else torch.float32)
    total = total.to(workers.device)
    was_training = model.training
    model.eval()
    with torch.no_grad(), autocast(workers.device, precision):
        for start in range(0, len(part), micro_batch):
            rows = read_windows(split, block_size, part[start : start + micro_batch]).to(
                workers.device
            )
            _, loss = model(rows[:, :-1], rows[:, 1:], documents(rows[:, :-1], mask_token))
            total += loss * len(rows)
    model.train(was_training)
    loss = workers.add(total).item() / windows
    synchronize(workers.device)
    return Evaluation(loss, windows * block_size, time.perf_counter() - began, bytes_per_token)


def documents(inputs: torch.Tensor, mask_token: int | None) -> torch.Tensor | None:
    """Each position's document number in its row, for mask_documents; the end-of-text token opens the next document."""
    return None if mask_token is None else (inputs == mask_token).cumsum(dim=1)
