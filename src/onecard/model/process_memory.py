"""The peak of this process's own memory, and where the system allows it, its beginning again."""

import contextlib
import ctypes
import re
import sys
from pathlib import Path


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
