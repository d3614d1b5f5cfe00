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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from onecard.config import RunConfig
from onecard.errors import UserError, first_line
from onecard.model.build import gradient_dtype
from onecard.model.out_of_memory import is_out_of_memory
from onecard.torchrun import local_rank, process_count, process_rank

_NAME_BYTES = 256  # more than any file system allows
_BUFFER_ELEMENTS = 16 * 2**20  # 64 MiB of fp32 at a time
_TIMEOUT = datetime.timedelta(minutes=10)
_PREPARATION = datetime.timedelta(days=1)
_LOOK, _PATIENCE = 1e-4, 2.0  # seconds: how often the card is asked, and then the other processes


class WorkerLostError(Exception):
    """Another process of the run is gone."""


class OthersFailedError(Exception):
    """Another process met an error that ends the run, and reports it; its weights are whole."""


class Workers:
    """rank, processes, and the exchanges a run needs. Use as a context manager."""

    def __init__(self, backend: str, device: torch.device):
        self.rank = process_rank()
        self.processes = process_count()
        self.device = device
        self._pids: list[tuple[str, int]] = []
        self._on_card = False
        self._waits = 0  # for the first process, so far
        if device.type == "cuda":
            # or cuda:1 would leave a context and allocations on cuda:0
            torch.cuda.set_device(device)
        if self.processes > 1:
            backends = exchange_backends(backend, device.type)
            self._on_card = "nccl" in backends
            store = _agents_store("processes", _TIMEOUT)
            known = store is not None  # else the environment says it
            size, rank = (self.processes, self.rank) if known else (-1, -1)
            dist.init_process_group(
                backends, timeout=_TIMEOUT, store=store, world_size=size, rank=rank
            )
            self._pids = [("", 0)] * self.processes
            dist.all_gather_object(self._pids, (socket.gethostname(), os.getpid()))

    @staticmethod
    def local_rank() -> int:
        return local_rank()

    @property
    def first(self) -> bool:
        """The one that writes files and prints."""
        return self.rank == 0

    def shards(self, config: RunConfig) -> bool:
        """Whether each process keeps a part of the model; else each has all of it."""
        return config.shard != "none" and self.processes > 1

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self.processes > 1 and dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # a peer that is gone does not answer
                dist.destroy_process_group()

    @property
    def on_card(self) -> bool:
        """Whether tensors of the card are exchanged there, by NCCL; else through the host, by gloo."""
        return self._on_card

    def add(self, tensor: Tensor, group: "dist.ProcessGroup | None" = None) -> Tensor:
        """The sum over the processes (of a group), in place."""
        if self.processes > 1:
            staged = tensor.device.type != "cpu" and not self._on_card
            there = tensor.cpu() if staged else tensor
            with guarded():
                dist.all_reduce(there, group=group)
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
        with guarded():
            dist.broadcast(tensor, 0)
        return tensor.item()

    def name_from_first(self, name: str) -> str:
        """The first process's, of a file for instance."""
        if self.processes == 1:
            return name
        content = name.encode().ljust(_NAME_BYTES, b"\0")
        tensor = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        with guarded():
            dist.broadcast(tensor, 0)
        return bytes(tensor.tolist()).rstrip(b"\0").decode()

    def wait_for_first(self) -> None:
        """For what the first process does alone and which may take longer than any exchange waits. All must call it."""
        if self.processes == 1:
            return
        self._waits += 1
        store, done = dist.distributed_c10d._get_default_store(), f"onecard/done/{self._waits}"
        with guarded():
            if self.first:
                store.set(done, "")
            while not store.check([done]):
                time.sleep(_PATIENCE / 10)
                self._check_others()

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

    def add_gradients(
        self, parameters: Iterable[nn.Parameter], group: "dist.ProcessGroup | None" = None
    ) -> None:
        if self.processes == 1:
            return
        waiting: list[Tensor] = []
        for parameter in parameters:
            if parameter.grad is None:  # a process without rows still takes part
                parameter.grad = torch.zeros_like(parameter, dtype=gradient_dtype(parameter))
            waiting.append(parameter.grad)
            if sum(grad.numel() for grad in waiting) >= _BUFFER_ELEMENTS:
                self._add_flat(waiting, group)
                waiting = []
        if waiting:
            self._add_flat(waiting, group)

    def _add_flat(self, grads: list[Tensor], group: "dist.ProcessGroup | None") -> None:
        flat = self.add(torch.cat([grad.reshape(-1).float() for grad in grads]), group)
        for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(part.view_as(grad))

    def lowest_alive(self) -> int:
        """The rank that prints and saves when a worker is lost: the lowest whose process still runs on this host."""
        time.sleep(0.5)  # torchrun takes a moment to notice and reap the dead
        here = socket.gethostname()
        for rank, (host, pid) in enumerate(self._pids):
            if rank == self.rank or (host == here and _runs(pid)):
                return rank
        return self.rank


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Around an exchange: that another process is gone is reported as such."""
    try:
        yield
    except RuntimeError as error:  # how gloo and NCCL report a broken connection
        if is_out_of_memory(error):  # NCCL takes its buffers at its first exchange
            raise
        raise WorkerLostError(first_line(error)) from None


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
    try:  # a process that ended and was not yet waited for still has its number
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):  # not Linux
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


def _agents_store(purpose: str, timeout: datetime.timedelta) -> Any:
    """torchrun's own store, apart for each of its restarts: else processes would look for those of the attempt before. None
    where torchrun did not start them."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    there = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=timeout
    )
    return dist.PrefixStore(f"onecard/{purpose}/{attempt}", there)  # type: ignore[attr-defined]


def made_by_first(make: Callable[[], str]) -> str | None:
    """What the first process makes before the run begins, in every process; None where it failed.

    Through torchrun's own store, not through an exchange: making it may take longer than any exchange waits.
    """
    if process_count() == 1:
        return make()
    store = _agents_store("made", _PREPARATION)
    if store is None:
        raise UserError(
            "several processes that torchrun did not start cannot begin this together",
            hint="start them with torchrun",
        )
    if process_rank():
        return store.get("made").decode() or None
    made = ""
    try:
        made = make()
    finally:
        store.set("made", made)
    return made
