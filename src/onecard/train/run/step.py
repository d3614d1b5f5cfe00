"""One optimizer step: gradients over all micro-batches, added up over the processes, clipped, applied.

The loss is the mean over the whole step. Running out of memory halves the micro-batch and does the step again: the
same rows, the same total batch, in twice as many micro-batches.

Every step that produced gradients ends in `apply`, or in `discard` (then `skip` if the step is given up): both reset
float16's loss scaler.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model.chunked_loss import IGNORED
from onecard.model.machine import Precision, autocast
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.train.optim import set_step_size
from onecard.train.run.faults import Faults
from onecard.train.run.gradient_sums import GradientSums
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.workers import Workers

# float16: an overflow at this scale is not caused by the scale
_SMALLEST_SCALE = 1.0


@dataclass
class Stepper:
    """The parts of a step. They stay the same but for `micro_batch`, which shrinks when memory runs out, and
    `weights_step`, which follows the weights."""

    config: RunConfig
    model: nn.Module  # its parameters
    forward: nn.Module  # the model, compiled or not
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: Precision
    workers: Workers
    micro_batch: int
    marks: RowMarks
    faults: Faults
    shrunk: Callable[[int, int], None]  # called with the rows before and now
    sums: GradientSums | None = None  # where gradients are not added up by autograd
    weights_step: int = 0  # steps in the weights, counting one whose update has begun

    def gradients(self, rows: Tensor, step: int, seed: int) -> tuple[float, float]:
        """Leave the step's mean gradient, clipped, in the parameters; the mean loss and the norm before clipping."""
        scale: float | None = None  # float16's before the step, once it had to be changed
        while True:
            loss = self._accumulate_within_memory(rows, step, seed)
            self.workers.add_gradients(self.model)
            self.workers.add(loss)
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            norm = clip(
                [p.grad for p in self.model.parameters() if p.grad is not None],
                self.config.grad_clip,
            )
            loss_now, norm_now = self.workers.read(
                torch.stack([loss, norm])
            )  # the only device synchronisation of a step
            if (
                not self.scaler.is_enabled()
                or math.isfinite(norm_now)
                or not math.isfinite(loss_now)
            ):
                break
            scale = scale or self.scaler.get_scale()
            self.scaler.update()  # only float16's range was exceeded: a smaller scale, the same step again
            if self.scaler.get_scale() < _SMALLEST_SCALE:
                self.scaler.update(scale)  # a bad step, and no reason to continue with a tiny scale
                break
        return loss_now, norm_now

    def apply(self, lr: float, step: int) -> bool:
        """The update; False where memory ran out in the middle of it, in any process: half of it may be done."""
        self.weights_step = step + 1
        set_step_size(self.optimizer, lr, step)
        ran_out = False
        try:
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            ran_out = True
        if self.workers.processes > 1:
            (ran_out,) = self.workers.any(ran_out)
        return not ran_out

    def skip(self, step: int) -> None:
        """In place of `apply` for a step that is given up: the weights stay as they are."""
        self.weights_step = step + 1

    def discard(self) -> None:
        """Forget the gradients of a step that is not applied; the weights and the loss scale are as before it."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.is_enabled():
            self.scaler.update(self.scaler.get_scale())

    def _accumulate_within_memory(self, rows: Tensor, step: int, seed: int) -> Tensor:
        while True:
            loss = None
            try:
                loss = self._accumulate(rows, step, seed)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # outside the except clause, whose traceback would keep the failed step's tensors alive
            (ran_out,) = self.workers.any(loss is None)
            if loss is not None and not ran_out:
                return loss
            self._shrink()

    def _accumulate(self, rows: Tensor, step: int, seed: int) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        if self.sums is not None:
            self.sums.begin(step)
        if self.config.dropout:  # nothing else in a step draws; seeding all devices takes 0.4 ms
            torch.manual_seed(seed)
        share = self._shares(rows)
        total = torch.zeros((), device=rows.device)
        for part in rows.split(self.micro_batch):
            with autocast(rows.device, self.precision):
                inputs = part[:, :-1]
                # the loss alone: a name for the logits would keep them alive through the backward pass
                targets, documents = self.marks.targets(part), self.marks.documents(inputs)
                loss = self.forward(inputs, targets, documents)[1]
            loss = self.faults.disturb(loss, step) * share(part)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        if self.sums is not None:
            self.sums.hand_over()
        return total

    def _shares(self, rows: Tensor) -> Callable[[Tensor], float | Tensor]:
        """What part of the step's mean loss each micro-batch is: by its rows, or by its tokens that count."""
        if self.marks.answers is None:
            total_rows = self.config.batch_size * self.config.gradient_accumulation_steps
            return lambda part: len(part) / total_rows
        counted = (self.marks.targets(rows) != IGNORED).sum(dim=1).float()
        whole = self.workers.add(counted.sum())
        by_part = iter(counted.split(self.micro_batch))
        return lambda part: next(by_part).sum() / whole

    def _shrink(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.sums is not None:
            self.sums.begin(0)
        free_cached_memory()
        if self.micro_batch == 1:
            raise RunFailure(
                "out of memory with a micro-batch of one sequence",
                hint="recompute='block' and chunked_loss=True save memory; so does a smaller block_size or model",
            )
        before, self.micro_batch = self.micro_batch, self.micro_batch // 2
        self.shrunk(before, self.micro_batch)


def clip(grads: list[Tensor], most: float) -> Tensor:
    """The norm of all gradients together, which are then scaled down to `most` (0: never) if it is above.

    torch.nn.utils.clip_grad_norm_ to the last bit, for tensors of one device: it takes twice as long to sort them by device.
    """
    exact = None if all(grad.dtype == torch.float32 for grad in grads) else torch.float32
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, dtype=exact)))
    if most:
        torch._foreach_mul_(grads, torch.clamp(most / (norm + 1e-6), max=1.0))
    return norm
