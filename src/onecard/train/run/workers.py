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
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onecard.errors import UserError
from onecard.model.out_of_memory import is_out_of_memory
from onecard.train.optim.half_weights import gradient_dtype

_BUFFER_ELEMENTS = 16 * 2**20  # 64 MiB of fp32 at a time
_TIMEOUT = datetime.timedelta(minutes=10)
_PREPARATION = datetime.timedelta(days=1)
_LOOK, _PATIENCE = 1e-4, 2.0  # seconds: how often the card is asked, and then the other processes


class WorkerLostError(Exception):
    """Another process of the run is gone."""


class Workers:
    """rank, processes, and the exchanges a run needs. Use as a context manager."""

    def __init__(self, backend: str, device: torch.device):
        self.rank = int(os.environ.get("RANK", 0))
        self.processes = int(os.environ.get("WORLD_SIZE", 1))
        self.device = device
        self._pids: list[tuple[str, int]] = []
        self._on_card = False  # tensors of the card are exchanged there, by NCCL
        if device.type == "cuda":
            torch.cuda.set_device(
                device
            )  # or cuda:1 would leave a context and allocations on cuda:0
        if self.processes > 1:
            backends = exchange_backends(backend, device.type)
            self._on_card = "nccl" in backends
            dist.init_process_group(backends, timeout=_TIMEOUT)
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

    def __exit__(self, *_: object) -> None:
        if self.processes > 1 and dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # a peer that is gone does not answer
                dist.destroy_process_group()

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.processes > 1:
            staged = (
                tensor.device.type != "cpu" and not self._on_card
            )  # gloo alone: through the host
            there = tensor.cpu() if staged else tensor
            with _lost():
                dist.all_reduce(there)
            if staged:
                tensor.copy_(there)
        return tensor

    def any(self, *flags: bool) -> list[bool]:
        """Each flag, true if it is true in any process. Between CPUs: the card is not waited for, and a process that is
        gone is noticed here, before anything is enqueued on the card that would wait for it for ever."""
        if self.processes == 1:
            return list(flags)
        return self.add(torch.tensor(flags, dtype=torch.int32)).bool().tolist()

    def from_first(self, value: float) -> float:
        """The first process's value, for decisions that hang on its clock."""
        if self.processes == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        with _lost():
            dist.broadcast(tensor, 0)
        return tensor.item()

    def read(self, tensor: Tensor) -> list[float]:
        """The tensor's values: the one wait for the card in a step. A process that dies while the cards exchange would
        leave this one in that wait, deaf to signals; so it is done in short looks, with a look at the others in between."""
        if self._on_card:
            done = torch.cuda.Event()
            done.record()
            look_at_others = time.monotonic() + _PATIENCE
            while not done.query():
                time.sleep(_LOOK)
                if time.monotonic() > look_at_others:
                    look_at_others = time.monotonic() + _PATIENCE
                    self._check_others()
        return tensor.tolist()

    def _check_others(self) -> None:
        here = socket.gethostname()
        gone = [
            rank for rank, (host, pid) in enumerate(self._pids) if host == here and not _runs(pid)
        ]
        if gone:
            # ends the exchange that can never end, so that the weights can be copied from the card and saved
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group()
            raise WorkerLostError(f"process {gone[0]} is gone")

    def add_gradients(self, model: nn.Module) -> None:
        if self.processes == 1:
            return
        waiting: list[Tensor] = []
        for parameter in model.parameters():
            if parameter.grad is None:  # a process without rows still takes part
                parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
            waiting.append(parameter.grad)
            if sum(grad.numel() for grad in waiting) >= _BUFFER_ELEMENTS:
                self._add_flat(waiting)
                waiting = []
        if waiting:
            self._add_flat(waiting)

    def _add_flat(self, grads: list[Tensor]) -> None:
        flat = self.add(torch.cat([grad.reshape(-1).float() for grad in grads]))
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
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # how gloo and NCCL report a broken connection
        if is_out_of_memory(error):  # NCCL takes its buffers at its first exchange
            raise
        raise WorkerLostError(str(error).splitlines()[0]) from None


def exchange_backends(asked: str, device_type: str) -> str:
    """What init_process_group gets: gloo between the CPUs always, NCCL between CUDA cards where this torch has it.

    >>> exchange_backends("auto", "cpu"), exchange_backends("gloo", "cuda")
    ('gloo', 'gloo')
    """
    if asked == "nccl" and device_type != "cuda":
        raise UserError(
            "backend = 'nccl' needs CUDA cards", hint="backend = 'gloo' works on the CPU"
        )
    if asked == "nccl" and not dist.is_nccl_available():
        raise UserError(
            "backend = 'nccl', but this torch has no NCCL (no build for Windows has)",
            hint="backend = 'gloo' exchanges through the host's memory",
        )
    if asked in ("auto", "nccl") and device_type == "cuda" and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo" if asked in ("auto", "nccl") else asked


def _runs(pid: int) -> bool:
    if sys.platform == "win32":  # os.kill would end the process there, or send it a Ctrl-C
        return _runs_on_windows(pid)
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _runs_on_windows(pid: int) -> bool:
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    synchronize, still_running = 0x100000, 0x102
    handle = kernel.OpenProcess(synchronize, False, pid)
    if not handle:
        return False
    try:
        return bool(kernel.WaitForSingleObject(handle, 0) == still_running)
    finally:
        kernel.CloseHandle(handle)


def made_by_first(make: Callable[[], str]) -> str | None:
    """What the first process makes before the run begins, in every process; None where it failed.

    Through torchrun's own store, not through an exchange: making it may take longer than any exchange waits.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return make()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise UserError(
            "several processes that torchrun did not start cannot begin this together",
            hint="start them with torchrun",
        )
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    there = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=_PREPARATION
    )
    store = dist.PrefixStore(f"onecard/{attempt}", there)  # type: ignore[attr-defined]
    if int(os.environ.get("RANK", 0)):
        return store.get("made").decode() or None
    made = ""
    try:
        made = make()
    finally:
        store.set("made", made)
    return made
