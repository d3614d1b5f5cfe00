"""This process's own memory: its peak, its beginning again where the system allows it, and what is kept when freed."""

import contextlib
import ctypes
import re
import sys
from pathlib import Path

import torch


def peak_bytes() -> int | None:
    """The most that was resident; None on Windows."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            status = Path("/proc/self/status").read_text()
            if found := re.search(r"(?m)^VmHWM:\s+(\d+) kB", status):
                return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak() -> None:
    """Begin the peak again from what is held now; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # what an earlier command of this process freed (a probe's) is not the run's either
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to what is held now


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU under glibc: what one step frees stays with the process, for the next one needs it again.

    Left alone, glibc gives some of it back and faults it in again, more or less of it depending on what the process did
    before; so a step's time would, too. Tensors above 32 MiB keep mappings of their own: among the others they would leave
    holes, a third more memory with GPT-2's vocabulary. Other C libraries are left as they are.
    """
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    mallopt(mmap_threshold, 32 * 2**20)
    mallopt(trim_threshold, -1)  # never
