"""One optimizer step: gradients over all micro-batches, added up over the processes, clipped, applied.

The loss is the mean over the whole step. Running out of memory halves the micro-batch and does the step again: the
same rows, the same total batch, in twice as many micro-batches.

Every step that produced gradients ends in `apply`, or in `discard` (then `skip` if the step is given up): both reset
float16's loss scaler.
"""

import contextlib
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import RunFailure
from onecard.model.chunked_loss import IGNORED
from onecard.model.machine import Precision, autocast
from onecard.model.out_of_memory import free_cached_memory, is_out_of_memory
from onecard.train.optim import set_step_size
from onecard.train.run.backward_updates import BackwardUpdates
from onecard.train.run.faults import Faults
from onecard.train.run.gradient_sums import GradientSums
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.sharding import Sharding, within_memory
from onecard.train.run.workers import WorkerLostError, Workers

# float16: an overflow at this scale is not caused by the scale
_SMALLEST_SCALE = 1.0


@dataclass
class Stepper:
    """The parts of a step. They stay the same except for `micro_batch`, which shrinks when memory runs out, and
    `weights_step`, which follows the weights."""

    config: RunConfig
    model: nn.Module  # its parameters, or what this process keeps of them
    forward: nn.Module  # the model, compiled or not
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    precision: Precision
    workers: Workers
    micro_batch: int
    marks: RowMarks
    faults: Faults
    shrunk: Callable[[int, int], None]  # called with the rows before and now
    sums: GradientSums | None = None  # where autograd does not sum the gradients
    updates: BackwardUpdates | None = None  # where parameters are updated in the backward pass
    sharding: Sharding | None = None  # where the model is sharded over the processes
    weights_step: int = 0  # steps in the weights, counting one whose update has begun

    def gradients(self, rows: Tensor, step: int, seed: int, lr: float = 0.0) -> tuple[float, float]:
        """Leave the step's mean gradient, clipped, in the parameters; the mean loss and the norm before clipping.

        With update_in_backward it is applied already, at the rate `lr`."""
        if self.updates is not None:
            set_step_size(self.optimizer, lr, step)
        scale: float | None = None  # float16's before the step, once it had to be changed
        while True:
            loss = self._accumulate_within_memory(rows, step, seed)
            if self.sharding is None:
                self.workers.add_gradients(self.model.parameters())
            else:
                self.sharding.add_gradients()
            self.workers.add(loss)
            if self.scaler.is_enabled():
                self._unscale()
            norm = self._clipped()
            # the only device synchronisation of a step
            loss_now, norm_now = self.workers.read(torch.stack([loss, norm]))
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

    def _unscale(self) -> None:
        """Overflows count in all processes, whichever holds the number: one scale for all."""
        self.scaler.unscale_(self.optimizer)
        if self.sharding is not None:
            infinite = self.scaler._per_optimizer_states[id(self.optimizer)]["found_inf_per_device"]
            for overflowed in infinite.values():
                self.workers.add(overflowed)

    def apply(self, lr: float, step: int) -> bool:
        """The update; False where memory ran out in the middle of it, in any process: half of it may be done."""
        self.weights_step = step + 1
        self.faults.kill("kill_in_update", step)
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
        # if another process is gone, this one's update is still complete; the next exchange reports the lost process
        with contextlib.suppress(WorkerLostError):
            (ran_out,) = self.workers.any(ran_out)
        return not ran_out

    def skip(self, step: int) -> None:
        """In place of `apply` for a step that is given up: the weights stay as they are."""
        self.weights_step = step + 1

    def discard(self) -> None:
        """Forget the gradients of a step that is not applied; the weights and the loss scale are as before it."""
        self._forget_gradients()
        if self.scaler.is_enabled():
            self.scaler.update(self.scaler.get_scale())

    def _forget_gradients(self) -> None:
        self.optimizer.zero_grad()
        if self.sharding is not None:
            self.sharding.reset()

    def _accumulate_within_memory(self, rows: Tensor, step: int, seed: int) -> Tensor:
        while True:
            work = partial(self._accumulate, rows, step, seed)
            if (loss := within_memory(work, self.workers, self.sharding)) is not None:
                return loss
            self._shrink()
            if self.weights_step > step:  # some of the updates were made: a bad step
                return torch.tensor(math.nan, device=rows.device)

    def no_rows(self, error: Exception) -> NoReturn:
        """In place of `gradients` where this process could not read its rows: the error ends the run in all processes, and the
        weights stay those of the step before."""
        if self.sharding is not None:
            if self.marks.answers is not None:
                self.workers.add(torch.zeros(()))  # as _shares
            passes = self.sharding.passes_of(self.config.sequences_per_step, self.micro_batch)
            with contextlib.suppress(type(error)), self.sharding.passes(passes):
                raise error
            self.workers.any(True, True)
            self.sharding.fail_together(True, error)
        raise error

    def _accumulate(self, rows: Tensor, step: int, seed: int) -> Tensor:
        self._forget_gradients()
        if self.sums is not None:
            self.sums.begin(step)
        if self.config.dropout:  # nothing else in a step draws; seeding all devices takes 0.4 ms
            torch.manual_seed(seed)
        share = self._shares(rows)
        total = torch.zeros((), device=rows.device)
        parts = list(rows.split(self.micro_batch))
        passes = (
            len(parts)
            if self.sharding is None
            else self.sharding.passes_of(self.config.sequences_per_step, self.micro_batch)
        )
        with nullcontext() if self.sharding is None else self.sharding.passes(passes):
            for number in range(passes):
                # where others have more rows: a pass that counts nothing
                extra = number >= len(parts)
                part = parts[0] if extra else parts[number]
                with autocast(rows.device, self.precision):
                    inputs = part[:, :-1]
                    # the loss alone: a name for the logits would keep them alive through the backward pass
                    targets, documents = self.marks.targets(part), self.marks.documents(inputs)
                    loss = self.forward(inputs, targets, documents)[1]
                loss = self.faults.disturb(loss, step) * (0.0 if extra else share(part))
                if self.updates is not None and number == passes - 1:
                    self._begin_updates(step)
                self.scaler.scale(loss).backward()
                total += loss.detach()
        if self.sums is not None:
            self.sums.hand_over()
        return total

    def _begin_updates(self, step: int) -> None:
        assert self.updates is not None
        self.weights_step = step + 1
        self.updates.begin()
        if self.sums is not None:
            self.sums.last = True

    def _clipped(self) -> Tensor:
        """The norm of the gradients, which are clipped; those that were applied already are not."""
        if self.updates is not None:
            return self.updates.end()
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = None if self.sharding is None else self.sharding.norm()
        return clip(grads, self.config.grad_clip, norm)

    def _shares(self, rows: Tensor) -> Callable[[Tensor], float | Tensor]:
        """What part of the step's mean loss each micro-batch is: by its rows, or by its tokens that count."""
        if self.marks.answers is None:
            return lambda part: len(part) / self.config.sequences_per_step
        counted = (self.marks.targets(rows) != IGNORED).sum(dim=1).float()
        whole = self.workers.add(counted.sum()).clamp_min(1)  # a step may have nothing that counts
        by_part = iter(counted.split(self.micro_batch))
        return lambda part: next(by_part).sum() / whole

    def _shrink(self) -> None:
        self._forget_gradients()
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


def gradient_sums(config: RunConfig, model: nn.Module, forward: nn.Module) -> GradientSums | None:
    """What adds up the gradients of a run, compiled where its model is; None: autograd does."""
    if config.gradients == "float32":
        return None
    return GradientSums(model, config.seed, compiled=forward is not model)


def clip(grads: list[Tensor], most: float, norm: Tensor | None = None) -> Tensor:
    """The norm of all gradients together, which are then scaled down to `most` (0: never) if it is above.

    `norm`: known already, where the gradients are a part of all.

    torch.nn.utils.clip_grad_norm_ to the last bit, for tensors of one device: it takes twice as long to sort them by device.
    """
    exact = None if all(grad.dtype == torch.float32 for grad in grads) else torch.float32
    if norm is None:
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, dtype=exact)))
    if most:
        torch._foreach_mul_(grads, torch.clamp(most / (norm + 1e-6), max=1.0))
    return norm
