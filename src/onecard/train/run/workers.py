"""The processes of one run under torchrun; a single process is the same thing with one worker.

Gradients are added up over the processes once a step, after the last micro-batch, in a few flat buffers. (Not torch's
DistributedDataParallel: its exchange is tied to the backward pass, and a worker that runs out of memory in the middle
would leave the others waiting. Here each worker first says how its part went.)
"""

import contextlib
import ctypes
import datetime
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onecard.errors import UserError

_BUFFER_ELEMENTS = 16 * 2**20  # 64 MiB of fp32 at a time
_TIMEOUT = datetime.timedelta(minutes=10)


class WorkerLostError(Exception):
    """Another process of the run is gone."""


class Workers:
    """rank, processes, and the exchanges a run needs. Use as a context manager."""

    def __init__(self, backend: str, device: torch.device):
        self.rank = int(os.environ.get("RANK", 0))
        self.processes = int(os.environ.get("WORLD_SIZE", 1))
        self.device = device
        self._pids: list[tuple[str, int]] = []
        if self.processes > 1:
            if backend == "auto":
                backend = "nccl" if device.type == "cuda" else "gloo"
            if backend == "nccl" and device.type != "cuda":
                raise UserError(
                    "backend = 'nccl' needs CUDA cards", hint="backend = 'gloo' works on the CPU"
                )
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group(backend, timeout=_TIMEOUT)
            self._pids = [("", 0)] * self.processes
            dist.all_gather_object(self._pids, (socket.gethostname(), os.getpid()))

    @staticmethod
    def local_rank() -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    @property
    def first(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self.processes > 1 and dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # a peer that is gone cannot say good-bye
                dist.destroy_process_group()

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.processes > 1:
            with _lost():
                dist.all_reduce(tensor)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """Each flag, true if it is true in any process."""
        if self.processes == 1:
            return list(flags)
        return self.add(torch.tensor(flags, dtype=torch.int32, device=self.device)).bool().tolist()

    def from_first(self, value: float) -> float:
        """The first process's value, for decisions that hang on its clock."""
        if self.processes == 1:
            return value
        tensor = torch.tensor(
            [value], dtype=torch.float64, device=self.device if self.device.type != "mps" else "cpu"
        )
        with _lost():
            dist.broadcast(tensor, 0)
        return tensor.item()

    def add_gradients(self, model: nn.Module) -> None:
        if self.processes == 1:
            return
        waiting: list[Tensor] = []
        for parameter in model.parameters():
            if parameter.grad is None:  # a process without rows still takes part
                parameter.grad = torch.zeros_like(parameter)
            waiting.append(parameter.grad)
            if sum(grad.numel() for grad in waiting) >= _BUFFER_ELEMENTS:
                self._add_flat(waiting)
                waiting = []
        if waiting:
            self._add_flat(waiting)

    def _add_flat(self, grads: list[Tensor]) -> None:
        flat = self.add(torch.cat([grad.reshape(-1) for grad in grads]))
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def lowest_alive(self) -> int:
        """The rank that speaks and saves when a worker is lost: the lowest whose process still runs on this host."""
        time.sleep(0.5)  # torchrun takes a moment to notice and reap the dead
        here = socket.gethostname()
        for rank, (host, pid) in enumerate(self._pids):
            if rank == self.rank or (host == here and _runs(pid)):
                return rank
        return self.rank


@contextlib.contextmanager
def _lost():
    try:
        yield
    except RuntimeError as error:  # gloo and nccl both say that a connection broke this way
        raise WorkerLostError(str(error).splitlines()[0]) from None


if sys.platform == "win32":

    def _runs(pid: int) -> bool:
        """os.kill would end it: signal 0 is CTRL_C there."""
        kernel = ctypes.WinDLL("kernel32")
        handle = kernel.OpenProcess(0x00100000, False, pid)  # SYNCHRONIZE
        if not handle:
            return False
        still_running = kernel.WaitForSingleObject(handle, 0) == 0x102  # WAIT_TIMEOUT
        kernel.CloseHandle(handle)
        return bool(still_running)

else:

    def _runs(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
