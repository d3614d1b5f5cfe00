"""NVIDIA's management library through ctypes: cards by UUID, their memory, power, clocks and what holds them back.

    driver = open_nvml()               # None where there is no NVIDIA driver
    driver.cards()[0].uuid             # "GPU-…", the same name that torch and CUDA_VISIBLE_DEVICES use
    driver.reading(uuid).watts

No call raises once the library is open: a card that does not report something answers None. `nvidia-smi` shows the same
figures with a process around them.
"""

import ctypes
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

# NVML's bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h). Idle and "applications clocks" hold nothing back.
_REASONS = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "temperature",
    0x40: "temperature",
    0x80: "power brake",
}
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("ids", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


@dataclass(frozen=True)
class NvmlCard:
    """A card as NVIDIA's driver describes it."""

    name: str
    uuid: str
    pci: str  # "00000000:01:00.0"
    total_bytes: int
    used_bytes: int
    power_limit_watts: float | None


@dataclass(frozen=True)
class Reading:
    """One card at one moment; None where the card does not report it."""

    watts: float | None = None
    power_limit_watts: float | None = None
    sm_mhz: int | None = None
    most_sm_mhz: int | None = None
    celsius: int | None = None
    held_back_by: tuple[str, ...] = ()


@dataclass
class Nvml:
    """An open library. Kept open for the life of the process: opening takes tens of milliseconds."""

    library: Any
    _handles: dict[str, ctypes.c_void_p] = field(default_factory=dict)

    def driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(96)
        return _text(text) if self._ask("nvmlSystemGetDriverVersion", text, 96) else None

    def cards(self) -> list[NvmlCard]:
        """Every card in NVML's order, which is that of the PCI bus."""
        count = ctypes.c_uint()
        if not self._ask("nvmlDeviceGetCount_v2", ctypes.byref(count)):
            return []
        seen = []
        for index in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            name, uuid = (ctypes.create_string_buffer(96) for _ in range(2))
            pci = _Pci()
            if not (
                self._ask("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
                and self._ask("nvmlDeviceGetName", handle, name, 96)
                and self._ask("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
            ):
                continue
            self._ask("nvmlDeviceGetUUID", handle, uuid, 96)
            self._ask("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
            seen.append(
                NvmlCard(
                    _text(name),
                    _text(uuid),
                    pci.bus_id.decode(errors="replace"),
                    memory.total,
                    memory.used,
                    self._milliwatts("nvmlDeviceGetPowerManagementLimit", handle),
                )
            )
        return seen

    def reading(self, uuid: str) -> Reading:
        handle = self._handle(uuid)
        if handle is None:
            return Reading()
        reasons = ctypes.c_ulonglong()
        known = self._ask(
            "nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons)
        )
        held = dict.fromkeys(
            word for bit, word in _REASONS.items() if known and reasons.value & bit
        )
        return Reading(
            watts=self.watts(uuid),
            power_limit_watts=self._milliwatts("nvmlDeviceGetPowerManagementLimit", handle),
            sm_mhz=self._number("nvmlDeviceGetClockInfo", handle, _CLOCK_SM),
            most_sm_mhz=self._number("nvmlDeviceGetMaxClockInfo", handle, _CLOCK_SM),
            celsius=self._number("nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU),
            held_back_by=tuple(held),
        )

    def watts(self, uuid: str) -> float | None:
        """The board's draw now, averaged by the driver over up to a second."""
        handle = self._handle(uuid)
        return None if handle is None else self._milliwatts("nvmlDeviceGetPowerUsage", handle)

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        if uuid not in self._handles:
            handle = ctypes.c_void_p()
            if not self._ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle)):
                return None
            self._handles[uuid] = handle
        return self._handles[uuid]

    def _number(self, question: str, handle: ctypes.c_void_p, *more: int) -> int | None:
        value = ctypes.c_uint()
        return value.value if self._ask(question, handle, *more, ctypes.byref(value)) else None

    def _milliwatts(self, question: str, handle: ctypes.c_void_p) -> float | None:
        value = self._number(question, handle)
        return None if value is None else value / 1000

    def _ask(self, question: str, *arguments: Any) -> bool:
        """Whether the call exists in this driver and succeeded (NVML_SUCCESS is 0)."""
        try:
            return bool(getattr(self.library, question)(*arguments) == 0)
        except (AttributeError, OSError, ctypes.ArgumentError):
            return False


def open_nvml() -> Nvml | None:
    """The driver's library, started; None where there is none."""
    try:
        library = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        started = library.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        return None
    return Nvml(library) if started else None


def driver_version() -> str | None:
    """NVIDIA's driver, as nvidia-smi names it; None where there is none."""
    driver = open_nvml()
    return driver.driver_version() if driver else None


def cuda_uuids() -> list[str] | None:
    """The UUIDs in CUDA's own order, after CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER; None where CUDA cannot be asked.

    CUDA puts the fastest card first, NVML follows the PCI bus. Takes a tenth of a second or more: ask only where there
    are several cards.
    """
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        count = ctypes.c_int()
        if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return None
        uuids = []
        for index in range(count.value):
            device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            if (
                cuda.cuDeviceGet(ctypes.byref(device), index) != 0
                or cuda.cuDeviceGetUuid_v2(raw, device) != 0
            ):
                return None
            uuids.append(uuid_text(bytes(raw)))
    except (OSError, AttributeError):
        return None
    return uuids


def _text(buffer: Any) -> str:
    return str(buffer.value.decode(errors="replace"))


def uuid_text(raw: bytes) -> str:
    """
    >>> uuid_text(bytes(range(16)))
    'GPU-00010203-0405-0607-0809-0a0b0c0d0e0f'
    """
    digits = raw.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class HasUuid(Protocol):
    @property
    def uuid(self) -> str: ...


Card = TypeVar("Card", bound=HasUuid)


def in_cuda_order(cards: list[Card]) -> list[Card]:
    """Of cards in the order of the PCI bus, those that CUDA shows, as torch counts them."""
    if len(cards) > 1 and all(card.uuid for card in cards) and (order := cuda_uuids()) is not None:
        by_uuid = {card.uuid: card for card in cards}
        return [by_uuid[uuid] for uuid in order if uuid in by_uuid]
    return chosen(cards, os.environ.get("CUDA_VISIBLE_DEVICES"))


def chosen(cards: list[Card], visible: str | None) -> list[Card]:
    """CUDA_VISIBLE_DEVICES by its own rules: numbers or the beginnings of UUIDs, up to the first that names no card."""
    if visible is None:
        return cards
    selected: list[Card] = []
    for word in (word.strip() for word in visible.split(",")):
        if word.isdigit():
            named = cards[int(word) : int(word) + 1]
        else:
            named = [card for card in cards if word and card.uuid.startswith(word)]
        if len(named) != 1:
            break
        selected += named
    return selected
