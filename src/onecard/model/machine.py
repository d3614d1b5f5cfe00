"""What the run runs on: device, precision, peak arithmetic, memory, watts.

>>> choose_precision("auto", "cuda", capability=(7, 5))
Precision(dtype='float16', scaled=True, why='float16 with a loss scaler: this card has no bf16 arithmetic')
"""

import contextlib
import ctypes
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from onecard.errors import UserError
from onecard.facts.here import seen_cards


@dataclass(frozen=True)
class Precision:
    dtype: str  # of the matmuls; parameters and optimizer stay in float32
    scaled: bool  # float16's small range needs the loss scaled up
    why: str


def choose_device(asked: str, local_rank: int = 0) -> torch.device:
    """`device` of the config; "auto" is the card if there is one."""
    if asked == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise UserError(
            f"device = {asked!r} is not known", hint="use auto, cpu, cuda, cuda:1 or mps"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device = 'cuda', but torch finds no CUDA card",
            hint="device = 'cpu', or install a CUDA build of torch and the driver",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            "device = 'mps', but this is not a Mac with a GPU that torch can use",
            hint="device = 'cpu'",
        )
    if asked == "cuda":
        return torch.device("cuda", local_rank)
    return device


def unseen_card(device: torch.device, asked: str) -> str | None:
    """A sentence when the run would fall to the CPU although the driver shows a card: torch's build cannot use it."""
    if device.type != "cpu" or asked == "cpu":
        return None
    cards = seen_cards()
    if not cards:
        return None
    return (
        f"card: the driver shows a {cards[0].name}, but this torch ({torch.__version__}) cannot see it, so the CPU trains; "
        "install torch 2.13.0 by pytorch.org's instructions for your system"
    )


def choose_precision(
    asked: str, device_type: str, capability: tuple[int, int] | None = None
) -> Precision:
    """bf16 where the hardware has it (compute capability 8 and up), fp16 with a scaler on older cards, else fp32."""
    if asked != "auto":
        return Precision(asked, asked == "float16", f"{asked}, as the config asks")
    if device_type == "cuda" and capability is not None:
        if capability >= (8, 0):
            return Precision("bfloat16", False, "bfloat16: this card has it in hardware")
        return Precision(
            "float16", True, "float16 with a loss scaler: this card has no bf16 arithmetic"
        )
    return Precision("float32", False, f"float32: the safe choice on {device_type}")


def precision_of(asked: str, device: torch.device) -> Precision:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return choose_precision(asked, device.type, capability)


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager:
    if precision.dtype == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision.dtype))


def keep_freed_memory(device: torch.device) -> None:
    """On a CPU under glibc: what one step frees stays with the process, for the next one needs it again.

    Left alone, glibc gives some of it back and faults it in anew, more or less of it depending on what the process did
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


def synchronize(device: torch.device) -> None:
    """Wait for the card, so that a clock read next means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@cache
def measured_peak_flops(device: torch.device, dtype: str) -> float:
    """The best of a few large matmuls: what "peak" means on a machine whose data sheet is not at hand."""
    if device.type == "cpu" and dtype != "float32":
        # a CPU without arithmetic for it computes in float32 instead: its peak is the faster of the two
        return max(_matmul_flops(device, dtype), _matmul_flops(device, "float32"))
    return _matmul_flops(device, dtype)


def _matmul_flops(device: torch.device, dtype: str) -> float:
    size = 1024 if device.type == "cpu" else 4096
    with torch.no_grad():
        a, b = (
            torch.ones(size, size, device=device, dtype=getattr(torch, dtype)) for _ in range(2)
        )
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            a @ b
            synchronize(device)
            seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[1:])


def peak_memory_bytes(device: torch.device) -> int | None:
    """The most the run has held on the card so far; on the CPU, the process's peak."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def forget_peak_memory(device: torch.device) -> None:
    """Begin the peak again, where the device can: what a trial took before the run is not the run's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def watt_meter(device: torch.device) -> Callable[[], float | None]:
    """A function that reads the card's draw in watts; it answers None where nothing can be read."""
    if device.type != "cuda":
        return lambda: None
    try:
        torch.cuda.power_draw(device)
    except Exception:  # no NVML bindings, or a card that does not tell
        return lambda: None
    return lambda: torch.cuda.power_draw(device) / 1000  # milliwatts
