"""The card in this machine, as its driver tells it (NVML or nvidia-smi, ROCm, Apple); never through torch.

`here()` is what `--gpu here` means: the card that torch counts first, with the memory that other programs already hold, or
the CPU. What asks a driver or the system is imported where it is asked: a plan for a named card needs none of it.
"""

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from onecard.errors import UserError
from onecard.facts.gpus import Device, find_gpu, metal_bytes
from onecard.units import GIB, MIB


@dataclass(frozen=True)
class Seen:
    """What a driver reports of one card."""

    name: str
    total_bytes: int
    taken_bytes: int
    power_limit_watts: float | None = None
    uuid: str = ""  # "GPU-…", NVIDIA's alone


def here(index: int = 0) -> Device:
    """This machine's card with its real memory and power limit; the CPU where there is no card."""
    cards = seen_cards()
    if cards:
        return known_device(cards[min(index, len(cards) - 1)])
    return apple_gpu() or cpu()


def seen_cards() -> list[Seen]:
    """Every card that a driver reports and CUDA (or HIP) shows, in the order in which torch counts them."""
    from onecard.facts.nvml import chosen, in_cuda_order

    for ask in (_nvml, _nvidia_smi):
        if cards := ask():
            return in_cuda_order(cards)
    hidden = os.environ.get("HIP_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))
    return chosen(_rocm_smi(), hidden)


def find_seen(name: str, total_bytes: int) -> Device:
    """The table's row of a card by the driver's name and memory: a 3060 is sold with 8 and with 12 GB."""
    return find_gpu(name, memory_gib=round(total_bytes / GIB * 1.02))


def known_device(seen: Seen) -> Device:
    """The table's row for the card the driver named, with what the driver measured of it."""
    try:
        device = find_seen(seen.name, seen.total_bytes)
    except UserError as error:
        raise UserError(
            f"this machine's card {seen.name!r} with {seen.total_bytes / GIB:.1f} GiB is not in the table",
            hint="add it in gpus.toml (`onecard gpus --help`), or plan for a near one with the option `gpu`",
        ) from error
    return replace(
        device,
        usable_bytes=seen.total_bytes,
        taken_bytes=seen.taken_bytes,
        power_limit_watts=seen.power_limit_watts,
    )


def _nvml() -> list[Seen]:
    """NVIDIA's management library, in milliseconds."""
    from onecard.facts.nvml import open_nvml

    driver = open_nvml()
    return (
        []
        if driver is None
        else [
            Seen(card.name, card.total_bytes, card.used_bytes, card.power_limit_watts, card.uuid)
            for card in driver.cards()
        ]
    )


def _nvidia_smi() -> list[Seen]:
    answer = _output(
        "nvidia-smi",
        "--query-gpu=name,memory.total,memory.used,power.limit,uuid",
        "--format=csv,noheader,nounits",
    )
    cards = []
    for line in answer.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and fields[1].isdigit() and fields[2].isdigit():
            watts = float(fields[3]) if re.fullmatch(r"\d+(\.\d+)?", fields[3]) else None
            total, used = int(fields[1]) * MIB, int(fields[2]) * MIB
            cards.append(Seen(fields[0], total, used, watts, "".join(fields[4:])))
    return cards


def _rocm_smi() -> list[Seen]:
    answer = _output(
        "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showmaxpower", "--json"
    )
    try:
        answered = json.loads(answer or "{}")
    except json.JSONDecodeError:
        return []
    cards = []
    for fields in answered.values() if isinstance(answered, dict) else ():
        if not isinstance(fields, dict):
            continue
        lower = {str(key).lower(): str(value) for key, value in fields.items()}
        name = lower.get("card series") or lower.get("card model") or ""
        total, used = (
            lower.get("vram total memory (b)", ""),
            lower.get("vram total used memory (b)", ""),
        )
        power = lower.get("max graphics package power (w)", "")
        if name and total.isdigit():
            watts = float(power) if re.fullmatch(r"\d+(\.\d+)?", power) else None
            cards.append(Seen(name, int(total), int(used) if used.isdigit() else 0, watts))
    return cards


def apple_gpu() -> Device | None:
    """The GPU of an Apple chip; it shares the machine's memory, of which Metal lets it take a part."""
    if sys.platform != "darwin" or _machine() != "arm64":
        return None
    chip = _output("sysctl", "-n", "machdep.cpu.brand_string").strip()
    memory = _output("sysctl", "-n", "hw.memsize").strip()
    if not chip.startswith("Apple M") or not memory.isdigit():
        return None
    device = find_gpu(chip)
    return replace(device, memory_bytes=int(memory), usable_bytes=metal_bytes(int(memory)))


def computer_bytes() -> int:
    """This machine's memory, not its card's."""
    return _memory()[0]


def cpu() -> Device:
    """This machine's processor: cores × clock × FLOP per clock, and its memory."""
    cores, info = available_cores(), _cpu_info()
    per_clock = _flops_per_clock(info)
    gigahertz = _gigahertz(info)
    total, free = _memory()
    return replace(
        find_gpu("cpu"),
        name=f"CPU, {cores} core{'s' * (cores != 1)}",
        memory_bytes=total,
        usable_bytes=total,
        taken_bytes=total - free,
        fp32_flops=cores * gigahertz * 1e9 * per_clock,
        units=cores,
        source=f"this machine: {cores} cores × {gigahertz:.2f} GHz × {per_clock} FLOP per clock",
        note="",
    )


def available_cores() -> int:
    """Cores this process may use: its affinity, and the container's quota if there is one."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cores


def _cpu_info() -> str:
    import platform

    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return _output("sysctl", "-a") if sys.platform == "darwin" else platform.processor()


def _machine() -> str:
    import platform

    return platform.machine()


def _flops_per_clock(info: str) -> int:
    """fp32 FLOP per core and clock with fused multiply-add: two 512-bit, two 256-bit or four 128-bit units."""
    flags = info.lower()
    if "avx512f" in flags:
        return 64
    if "avx2" in flags or _machine() == "arm64":
        return 32
    return 16


def _gigahertz(info: str) -> float:
    megahertz = [float(value) for value in re.findall(r"cpu MHz\s*:\s*([\d.]+)", info)]
    # a common sustained clock where the system does not tell
    return max(megahertz) / 1000 if megahertz else 3.0


def _memory() -> tuple[int, int]:
    """Total and available bytes."""
    try:
        meminfo = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
        return int(meminfo["MemTotal"]) * 1024, int(meminfo["MemAvailable"]) * 1024
    except (OSError, KeyError):
        pass
    if sys.platform == "win32":
        return _windows_memory()
    total = _output("sysctl", "-n", "hw.memsize").strip()
    return (int(total), int(total)) if total.isdigit() else (8 * GIB, 8 * GIB)


def _windows_memory() -> tuple[int, int]:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *(
                (name, ctypes.c_ulonglong)
                for name in (
                    "total",
                    "free",
                    "page",
                    "page_free",
                    "virtual",
                    "virtual_free",
                    "more",
                )
            ),
        )

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return int(status.total), int(status.free)


def _output(*command: str) -> str:
    """What a system tool prints; "" where it is missing, fails or hangs."""
    import subprocess

    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
