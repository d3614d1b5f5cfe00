"""The draw of a run's cards in watts, from the driver: NVIDIA's NVML by UUID, AMD's sensor files by PCI address.

meter = power_meter(device)
meter.read_watts()               # the sum of this machine's cards in the run; None where one does not report
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from onecard.facts.nvml import open_nvml
from onecard.model.machine import uuid_of
from onecard.torchrun import local_process_count

Reader = Callable[[], float | None]
_PCI = Path("/sys/bus/pci/devices")
_driver = cache(open_nvml)


class PowerMeter:
    """All cards of a run on this machine, read together. Never raises: a run does not end for a sensor."""

    def __init__(self, readers: Sequence[Reader] = ()):
        self._readers = tuple(readers)

    def read_watts(self) -> float | None:
        if not self._readers:
            return None
        total = 0.0
        for read in self._readers:
            try:
                watts = read()
            except Exception:  # whatever a driver's library does
                return None
            if watts is None:
                return None
            total += watts
        return total


def power_meter(device: torch.device, cards: int | None = None) -> PowerMeter:
    """The meter of `cards` cards, one for each process that torchrun started on this machine; those count from cuda:0."""
    if device.type != "cuda":
        return PowerMeter()
    if cards is None:
        cards = local_process_count()
    devices = [device] if cards == 1 else [torch.device("cuda", index) for index in range(cards)]
    return PowerMeter([_reader(each) for each in devices])


def _reader(device: torch.device) -> Reader:
    if torch.version.hip:
        address = pci_address(device)
        return lambda: None if address is None else amd_watts(address)
    uuid, driver = uuid_of(device), _driver()
    if driver is None or uuid is None:
        return lambda: None
    return lambda: driver.watts(uuid)


def pci_address(device: torch.device) -> str | None:
    """As the kernel's folders name it; None where this torch does not report it."""
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, place = (getattr(properties, name, None) for name in names)
    if domain is None or bus is None or place is None:
        return None
    return f"{domain:04x}:{bus:02x}:{place:02x}.0"


def amd_watts(address: str, folder: Path = _PCI) -> float | None:
    """The kernel's reading, in microwatts. (torch.cuda.power_draw gives watts on AMD and milliwatts on NVIDIA, and needs
    a package of its own for each.)"""
    for name in ("power1_average", "power1_input"):
        for sensor in sorted(folder.glob(f"{address}/hwmon/hwmon*/{name}")):
            return int(sensor.read_text()) / 1e6
    return None
