"""What a check looks at, in one frozen value: the answers of torch, the driver and the system.

>>> Answers(device=torch.device("cpu"), name="CPU, 2 cores").kind
'cpu'
"""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from onecard.errors import UserError
from onecard.facts.builds import has_cxx, has_triton
from onecard.facts.gpus import Device
from onecard.facts.nvml import Reading, open_nvml
from onecard.model import machine

Status = Literal["ok", "fall-back", "action"]


@dataclass(frozen=True)
class Check:
    """One row: what was tried, how it went, and what `train` will do differently because of it."""

    check: str
    status: Status
    detail: str
    figures: tuple[tuple[str, float], ...] = ()  # measured, for the report file
    settings: tuple[tuple[str, Any], ...] = ()  # config keys that `train` falls back to

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "status": self.status,
            "detail": self.detail,
            "figures": dict(self.figures),
            "settings": dict(self.settings),
        }


@dataclass(frozen=True)
class Answers:
    device: torch.device
    name: str
    facts: Device | None = None
    torch_version: str = torch.__version__
    cuda: str | None = None  # what torch was built for
    hip: str | None = None
    kernels: tuple[str, ...] = ()  # torch.cuda.get_arch_list()
    capability: tuple[int, int] | None = None
    gcn_arch: str | None = None
    memory_bytes: int = 0
    free_bytes: int = 0
    uuid: str | None = None
    driver: str | None = None
    reading: Callable[[], Reading] = Reading
    seen: tuple[str, ...] = ()  # names of the cards, as torch counts them
    unseen: str | None = None  # of a card that the driver shows and this torch cannot use
    system: str = sys.platform
    release: str = ""
    has_triton: bool = False
    has_cxx: bool = False
    cache: Path = Path()  # where the compiler writes
    free_disk: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free

    @property
    def kind(self) -> str:
        return self.device.type

    @property
    def pages_memory(self) -> bool:
        return self.kind == "cuda" and (
            self.system == "win32" or "microsoft" in self.release.lower()
        )


def ask(device: torch.device, asked: str = "auto") -> Answers:
    """The real ones; `asked` is the `device` that the user named."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.gettempdir()
    common: dict[str, Any] = {
        "release": platform.release(),
        "has_triton": has_triton(),
        "has_cxx": has_cxx(),
        "cache": Path(cache),
    }
    try:
        facts = machine.facts_of(device)
    except UserError:
        facts = None
    if device.type != "cuda":
        memory = facts.usable_bytes if facts else 0
        taken = (facts.taken_bytes or 0) if facts else 0
        name = facts.name if facts else device.type
        return Answers(
            device,
            name,
            facts,
            memory_bytes=memory,
            free_bytes=memory - taken,
            unseen=machine.unseen_card(device, asked),
            **common,
        )
    properties = torch.cuda.get_device_properties(device)
    uuid, driver = machine.uuid_of(device), None if torch.version.hip else open_nvml()
    free, total = torch.cuda.mem_get_info(device)
    return Answers(
        device,
        properties.name,
        facts,
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        kernels=tuple(torch.cuda.get_arch_list()),
        capability=torch.cuda.get_device_capability(device),
        gcn_arch=machine.gcn_arch(device),
        memory_bytes=total,
        free_bytes=free,
        uuid=uuid,
        driver=driver.driver_version() if driver else None,
        reading=(lambda: driver.reading(uuid)) if driver and uuid else Reading,
        seen=tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())),
        **common,
    )
