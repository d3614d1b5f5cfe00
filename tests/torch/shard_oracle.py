"""The oracle for a model that is sharded: one process's step, traced without data and without the others.

torch's "fake" process group stands in for them: its exchanges give tensors of the right size. FSDP2 empties and fills the
storages of gathered weights, which `Gathered` counts beside those that are born and die.
"""

import contextlib
import os
import warnings
import weakref
from unittest import mock

import torch
import torch.distributed as dist
from memory_oracle import ROUNDING, Live, Traced, _as_on_cuda
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
from torch.testing._internal.distributed.fake_pg import FakeStore

from onecard.config import RunConfig
from onecard.model.build import make_model
from onecard.model.machine import Precision
from onecard.train.optim import make_optimizer
from onecard.train.run.faults import Faults
from onecard.train.run.row_marks import RowMarks
from onecard.train.run.sharding import Sharding, mesh_of
from onecard.train.run.step import Stepper, clip
from onecard.train.run.workers import Workers


class Gathered(Live):
    """Storages that are resized are counted with the size they have."""

    def resized(self, tensor: torch.Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        if storage.size() == size:
            return
        before = -(-storage.size() // self.rounding) * self.rounding
        after = -(-size // self.rounding) * self.rounding
        storage.resize_(size)
        self._seen.setdefault(id(storage), weakref.ref(storage))  # counted here, not as a new one
        name = f"gathered {id(storage)}"
        self._alive.pop(name, None)
        if after:
            self._alive[name] = after, f"gathered weights {tuple(tensor.shape)}"
        self.live += after - before
        self.mark(self.live, "gathered weights")


@contextlib.contextmanager
def one_of(processes: int, machines: int = 1):
    """The first of so many processes, whose others are not there."""
    place = {"RANK": "0", "WORLD_SIZE": "1"}
    with mock.patch.dict(os.environ, place):
        workers = Workers("gloo", torch.device("cpu"))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    workers.processes = processes
    try:
        local = {"LOCAL_WORLD_SIZE": str(processes // machines)}
        with (
            mock.patch.dict(os.environ, local),
            # its own sum over the processes is not to be had
            mock.patch.object(Workers, "add", lambda self, t, group=None: t * processes),
        ):
            mesh = mesh_of(workers)
        yield workers, mesh
    finally:
        dist.destroy_process_group()


def traced(config: RunConfig, dtype: str, processes: int, machines: int = 1) -> Traced:
    """The peak of the second step in one process of a run that shares its model out; three micro-batches stand for more."""
    micro = min(3, max(1, config.gradient_accumulation_steps // processes))
    live = Gathered(ROUNDING)
    with contextlib.ExitStack() as stack:
        workers, mesh = stack.enter_context(one_of(processes, machines))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_as_on_cuda(dtype != "float32"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        sharding = Sharding(make_model(config), config, Precision(dtype, False, ""), workers, mesh)
        for parameter in sharding.local.parameters():
            live.take(parameter)
        for module in (_fsdp_param, _fsdp_param_group):
            stack.enter_context(
                mock.patch.object(
                    module,
                    "alloc_storage",
                    lambda tensor: live.resized(tensor, tensor.numel() * tensor.itemsize),
                )
            )
        stack.enter_context(
            mock.patch.object(_fsdp_param, "free_storage", lambda tensor: live.resized(tensor, 0))
        )
        stack.enter_context(live)
        step = Stepper(
            config,
            sharding.local,
            sharding.model,
            make_optimizer(config, sharding.local, sharding.slices),
            torch.amp.GradScaler("cpu", enabled=False),
            Precision(dtype, False, ""),
            workers,
            config.batch_size,
            RowMarks(None),
            Faults(),
            lambda before, now: None,
            sharding=sharding,
        )
        for number in range(2):
            # the first step only makes the optimizer's memory: one micro-batch has all gradients
            passes = 1 if number == 0 else micro
            rows = torch.zeros(passes * config.batch_size, config.block_size + 1, dtype=torch.long)
            live.moment, live.peak = "loss", 0
            # as many passes as there are rows here
            with mock.patch.object(Sharding, "passes_of", return_value=passes):
                step._accumulate(rows, number, seed=1)
            live.moment = "optimizer"
            sharding.add_gradients()
            grads = [p.grad for p in sharding.local.parameters()]
            clip(grads, config.grad_clip, sharding.norm())
            del grads
            step.optimizer.step()
    return Traced(live.peak, live.at, dict(live.moments), live.at_peak)
