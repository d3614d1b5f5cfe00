"""Drivers and cards that are not there: NVIDIA's library as ctypes calls it, and torch.cuda's answers."""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 2**30


@dataclass
class FakeCard:
    name: str = "NVIDIA GeForce RTX 4070"
    uuid: str = "GPU-00000000-0000-0000-0000-000000000001"
    memory_bytes: int = 12 * GIB
    used_bytes: int = GIB
    capability: tuple[int, int] = (8, 9)
    watts: float | None = 150.0
    power_limit_watts: float = 200.0
    sm_mhz: int = 2400
    most_sm_mhz: int = 2610
    celsius: int = 60
    reasons: int = 0
    gcn: str = ""


@dataclass
class FakeLibrary:
    """NVML: every call returns 0 for success and writes its answer where a pointer says; others are not found."""

    cards: list[FakeCard]
    driver: str = "580.95.05"
    calls: list[str] = field(default_factory=list)
    broken: bool = False  # every reading fails, as after the card fell off the bus

    def __getattr__(self, name):
        answer = {
            "nvmlSystemGetDriverVersion": self._driver,
            "nvmlDeviceGetCount_v2": lambda count: _put(count, len(self.cards)),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, handle: _put(handle, index + 1),
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetName": lambda handle, text, size: _write(text, self._of(handle).name),
            "nvmlDeviceGetUUID": lambda handle, text, size: _write(text, self._of(handle).uuid),
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetPowerManagementLimit": self._reading("power_limit_watts", 1000),
            "nvmlDeviceGetPowerUsage": self._reading("watts", 1000),
            "nvmlDeviceGetClockInfo": self._reading("sm_mhz"),
            "nvmlDeviceGetMaxClockInfo": self._reading("most_sm_mhz"),
            "nvmlDeviceGetTemperature": self._reading("celsius"),
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._reading("reasons"),
        }.get(name)
        if answer is None:
            raise AttributeError(name)
        self.calls.append(name)
        return answer

    def _of(self, handle) -> FakeCard:
        return self.cards[handle.value - 1]

    def _driver(self, text, size):
        return _write(text, self.driver)

    def _by_uuid(self, uuid, handle):
        for index, card in enumerate(self.cards):
            if card.uuid == uuid.decode():
                return _put(handle, index + 1)
        return 6  # NVML_ERROR_NOT_FOUND

    def _memory(self, handle, memory):
        card = self._of(handle)
        memory._obj.total, memory._obj.used = card.memory_bytes, card.used_bytes
        memory._obj.free = card.memory_bytes - card.used_bytes
        return 0

    def _reading(self, what, scale=1):
        def read(handle, *more):
            value = getattr(self._of(handle), what)
            if self.broken or value is None:
                return 15  # NVML_ERROR_GPU_IS_LOST
            return _put(more[-1], round(value * scale))

        return read


def _put(pointer, value) -> int:
    pointer._obj.value = value
    return 0


def _write(text, value) -> int:
    text.value = value.encode()
    return 0


def fake_cuda(
    monkeypatch, cards, arch_list=("sm_75", "sm_80", "sm_86", "sm_90", "sm_120"), hip=None
):
    """torch.cuda as if these cards were there, in torch's own order."""
    import torch

    def of(device=None):
        index = device.index if isinstance(device, torch.device) else device
        return cards[index or 0]

    def properties(device=None):
        card = of(device)
        more = {"gcnArchName": card.gcn} if hip else {}
        return SimpleNamespace(
            name=card.name,
            total_memory=card.memory_bytes,
            major=card.capability[0],
            minor=card.capability[1],
            uuid=card.uuid.removeprefix("GPU-"),
            pci_domain_id=0,
            pci_bus_id=3,
            pci_device_id=0,
            **more,
        )

    answers = {
        "is_available": lambda: bool(cards),
        "device_count": lambda: len(cards),
        "get_device_capability": lambda device=None: of(device).capability,
        "get_device_name": lambda device=None: of(device).name,
        "get_device_properties": properties,
        "get_arch_list": lambda: list(arch_list),
        "mem_get_info": lambda device=None: (
            of(device).memory_bytes - of(device).used_bytes,
            of(device).memory_bytes,
        ),
        "memory_reserved": lambda device=None: 0,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.version, "hip", hip)
    with contextlib.suppress(ImportError):
        from onecard.model import machine

        machine.fast_low_dtype.cache_clear()
