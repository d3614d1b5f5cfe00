"""What the run runs on: precision, peak arithmetic, memory, watts.

>>> choose_precision("auto", "cuda", capability=(7, 5))
Precision(dtype='float16', scaled=True, why='float16 with a loss scaler: this card has no bf16 arithmetic')
"""

import contextlib
import ctypes
import platform
import re
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from onecard.errors import UserError
from onecard.facts.builds import has_bf16
from onecard.facts.gpus import Device
from onecard.facts.here import cpu, find_seen, here, known_device, seen_cards
from onecard.model.device_choice import choose_device as choose_device
from onecard.model.device_choice import gcn_arch as gcn_arch
from onecard.model.device_choice import measured_device as measured_device
from onecard.model.device_choice import unseen_card as unseen_card
from onecard.units import show_bytes


@dataclass(frozen=True)
class Precision:
    dtype: str  # of the matmuls; what weights and moments are kept in is the config's
    scaled: bool  # float16's small range needs the loss scaled up
    why: str


def choose_precision(
    asked: str,
    device_type: str,
    capability: tuple[int, int] | None = None,
    gcn_arch: str | None = None,
) -> Precision:
    """bf16 where the hardware has it (facts/builds.py), fp16 with a scaler on older cards, else fp32."""
    if asked != "auto":
        return Precision(asked, asked == "float16", f"{asked}, as the config asks")
    if device_type == "cuda":
        if has_bf16(capability, gcn_arch):
            return Precision("bfloat16", False, "bfloat16: this card has it in hardware")
        return Precision(
            "float16", True, "float16 with a loss scaler: this card has no bf16 arithmetic"
        )
    return Precision("float32", False, f"float32: the safe choice on {device_type}")


def precision_of(asked: str, device: torch.device) -> Precision:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return choose_precision(asked, device.type, capability, gcn_arch(device))


def require_fp8(device: torch.device) -> None:
    """A CPU computes fp8's products too, slowly: what a run learns with it can be seen there."""
    newer = device.type == "cuda" and not torch.version.hip
    if not (newer and torch.cuda.get_device_capability(device) >= (8, 9)) and device.type != "cpu":
        raise UserError(
            "fp8 = True needs an NVIDIA card of the Ada generation (RTX 40) or newer",
            hint="fp8 = False",
        )


@cache
def fast_low_dtype(device: torch.device, asked: str = "auto") -> torch.dtype:
    """The dtype for arithmetic that bears rounding: bf16 where it is hardware, fp16 on older cards, else fp32. A CPU computes
    it in bf16 only for a run that asks for bfloat16: any other run has the same digits on every machine."""
    if device.type == "cpu" and asked == "bfloat16" and _cpu_has_bf16():
        return torch.bfloat16
    if device.type != "cuda":
        return torch.float32
    if has_bf16(torch.cuda.get_device_capability(device), gcn_arch(device)):
        return torch.bfloat16
    # Pascal's GeForce cards compute fp16 at 1/64 of their fp32 rate; tensor cores begin with Volta
    old = not torch.version.hip and torch.cuda.get_device_capability(device) < (7, 0)
    return torch.float32 if old else torch.float16


def _cpu_has_bf16() -> bool:
    """Whether this processor multiplies in bf16 (four times as many small matrices as in fp32); emulated it is slower."""
    # older releases of torch do not tell
    known: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def autocast(
    device: torch.device, precision: Precision
) -> contextlib.AbstractContextManager[object]:
    if precision.dtype == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision.dtype))


def synchronize(device: torch.device) -> None:
    """Wait for the card, so that a clock read next means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@cache
def measured_peak_flops(device: torch.device, dtype: str) -> float:
    """The best of a few large matmuls: what "peak" means on a machine whose data sheet is not available."""
    if device.type == "cpu" and dtype != "float32":
        # a CPU without arithmetic for it computes in float32 instead: its peak is the faster of the two;
        # a small product shows which, and takes no seconds where there is only a slow stand-in
        return max(_matmul_flops(device, dtype, 256), _matmul_flops(device, "float32", 1024))
    return _matmul_flops(device, dtype, 1024 if device.type == "cpu" else 4096)


def _matmul_flops(device: torch.device, dtype: str, size: int) -> float:
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
    """The most the run has held so far, in the reading that Device.memory_reading names: what torch has allocated on a
    CUDA card; elsewhere the process's, on Linux since `forget_peak_memory`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return _process_peak_bytes()


def forget_peak_memory(device: torch.device) -> None:
    """Begin the peak again, where the device can: what a trial took before the run is not the run's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        _forget_process_peak()


def _process_peak_bytes() -> int | None:
    """The most that was resident; None on Windows."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError):
            status = Path("/proc/self/status").read_text()
            if match := re.search(r"(?m)^VmHWM:\s+(\d+) kB", status):
                return int(match[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _forget_process_peak() -> None:
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


def memory_is_paged(device: torch.device) -> bool:
    """Whether the driver moves GPU memory to the host's when it runs short, as on Windows and WSL: a step then takes
    many times as long, and nothing runs out that a smaller micro-batch could answer."""
    return device.type == "cuda" and (
        sys.platform == "win32" or "microsoft" in platform.release().lower()
    )


_PAGING_MARGIN = 0.02  # of the card, for the driver's own needs and what the desktop takes later


def limit_paged_memory(device: torch.device) -> str | None:
    """On such a system, let torch take no more than is free now, so that it runs out as on Linux; the sentence to show."""
    if not memory_is_paged(device):
        return None
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    share = min(1.0, max(0.1, (free + held) / total - _PAGING_MARGIN))
    torch.cuda.set_per_process_memory_fraction(share, device)
    return (
        f"memory: this system moves GPU memory to the host's when it runs short, which is many times slower; the run "
        f"takes at most {show_bytes(share * total)} of {show_bytes(total)}, what is free now, and makes its "
        "micro-batch smaller instead"
    )


def facts_of(device: torch.device) -> Device:
    """The table's row of the very card (or CPU) a torch device is, with its memory and power limit."""
    if device.type == "cpu":
        return cpu()
    if device.type != "cuda":
        return here()
    cards = seen_cards()
    wanted = uuid_of(device)
    same = [card for card in cards if wanted and card.uuid == wanted]
    index = device.index or 0
    if matching := same or cards[index : index + 1]:
        return known_device(matching[0])
    properties = torch.cuda.get_device_properties(device)
    return find_seen(properties.name, properties.total_memory)


def uuid_of(device: torch.device) -> str | None:
    """As NVML and CUDA_VISIBLE_DEVICES write it; None where this torch does not report it."""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}".replace("GPU-GPU-", "GPU-")


def peak_flops(device: torch.device, dtype: str) -> float:
    """The card's dense peak from the facts; measured where the facts do not know the device (a CPU, a new card)."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        with contextlib.suppress(UserError):
            return find_seen(properties.name, properties.total_memory).matmul_flops(dtype)
    return measured_peak_flops(device, dtype)
