"""How a run uses the processor: torch's threads and their cores, SDPA's kernels, and how long it waits for other programs.

>>> with as_before():
...     prepare(RunConfig(threads=1, attention="math"), torch.device("cpu"))
...     torch.get_num_threads()
1
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from onecard.config import RunConfig

_TASKS = Path("/proc/self/task")
_CPUS = Path("/sys/devices/system/cpu")


def prepare(config: RunConfig, device: torch.device) -> str | None:
    """Threads, cores and attention kernel as the config asks; the sentence to show where that cannot be."""
    use_attention(config.attention)
    if device.type != "cpu":
        return None
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if config.affinity == "cores" and not bind_threads():
        return "affinity: threads cannot be bound to cores on this system"
    return None


def use_attention(kind: str) -> None:
    """Which of SDPA's fused kernels a card may use; the plain form stays for what none of them takes."""
    for name, enable in (
        ("flash", torch.backends.cuda.enable_flash_sdp),
        ("efficient", torch.backends.cuda.enable_mem_efficient_sdp),
        ("cudnn", torch.backends.cuda.enable_cudnn_sdp),
    ):
        enable(kind in ("flash", "math", name))  # flash: torch's own choice among all


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """Afterwards threads, cores and kernels are what they were."""
    threads = torch.get_num_threads()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        use_attention("flash")
        for task in _read_tasks(0):
            _place(task, allowed)


def cores() -> list[int]:
    """One hardware thread of each core that this process may use; none where the system does not say (Linux does)."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        with contextlib.suppress(OSError):
            siblings = (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
            first.setdefault(siblings, cpu)
    return sorted(first.values())


def bind_threads() -> bool:
    """Each of torch's threads on a core of its own; False where that cannot be done."""
    places, before = cores(), _read_tasks(0)
    if not places:
        return False
    numbers = torch.ones(2**20)
    for _ in range(20):
        numbers.exp_()  # threads that are busy now are torch's
    busy = {task: ran - before.get(task, 0) for task, ran in _read_tasks(0).items()}
    own = os.getpid()  # the thread that the run is in
    others = sorted((task for task in busy if task != own), key=lambda task: -busy[task])
    for place, task in enumerate((own, *others[: torch.get_num_threads() - 1])):
        _place(task, {places[place % len(places)]})
    return True


def waited_seconds() -> dict[int, float]:
    """How long each thread of this process has stood ready while other programs had the cores; empty but on Linux."""
    return {task: waited / 1e9 for task, waited in _read_tasks(1).items()}


def _read_tasks(field: int) -> dict[int, int]:
    """A field of each thread's schedstat: 0, nanoseconds that it ran; 1, that it waited for a core."""
    ticks: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_TASKS):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ticks[int(name)] = int((_TASKS / name / "schedstat").read_text().split()[field])
    return ticks


def _place(task: int, allowed: set[int]) -> None:
    with contextlib.suppress(OSError):  # it may have ended
        if allowed:
            os.sched_setaffinity(task, allowed)
