"""Faults on demand, for the tests of what a run survives: out of memory, not-a-number, overflow, an error and a kill at a step, each once.

>>> faults = Faults.parse("oom@3,nan@5")
>>> faults.strikes("nan", 4), faults.strikes("nan", 5), faults.strikes("nan", 5)
(False, True, False)
"""

import os
import signal

import torch
from torch import Tensor


class Faults:
    def __init__(self, planned: list[tuple[str, int]] | None = None):
        self.planned = list(planned or [])

    @classmethod
    def parse(cls, text: str, rank: int = 0) -> "Faults":
        """kind@step, or kind@step:rank for one process alone; by commas."""
        planned = []
        for word in filter(None, text.split(",")):
            kind, _, at = word.partition("@")
            step, _, only = at.partition(":")
            if not only or int(only) == rank:
                planned.append((kind, int(step)))
        return cls(planned)

    def strikes(self, kind: str, step: int) -> bool:
        if (kind, step) not in self.planned:
            return False
        self.planned.remove((kind, step))
        return True

    def disturb(self, loss: Tensor, step: int) -> Tensor:
        """The loss of a micro-batch as this step's faults leave it."""
        if not self.planned:
            return loss
        if self.strikes("oom", step):
            raise torch.OutOfMemoryError("out of memory (ordered by the fault suite)")
        if self.strikes("error", step):
            raise RuntimeError("ordered by the fault suite")
        self.kill("kill", step)
        if self.strikes("overflow", step):
            return loss + (loss - loss.detach()) * 1e38  # the same loss, gradients beyond any range
        return loss * float("nan") if self.strikes("nan", step) else loss

    def kill(self, kind: str, step: int) -> None:
        if self.strikes(kind, step):
            os.kill(os.getpid(), signal.SIGKILL)
