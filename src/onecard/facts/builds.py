"""Which builds of torch run on which card, what each architecture can do, and the oldest driver a build takes.

>>> runs_on((8, 9), ["sm_75", "sm_80", "sm_86", "sm_90"])
True
>>> runs_on((6, 1), ["sm_75", "sm_80", "compute_120"])
False
>>> serving_build((7, 0)).name
'cu126'
"""

import importlib.util
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from onecard.facts.gpus import Device

TORCH = "2.13.0"  # the version whose builds these are, and that the tests run on

Capability = tuple[int, int]


@dataclass(frozen=True)
class Build:
    """One of torch's own builds for CUDA."""

    name: str  # as in the address of its package index
    cuda: str
    sm: tuple[int, ...]  # what its kernels are compiled for, on x86-64
    linux_driver: tuple[int, ...]  # the oldest that its CUDA starts with
    windows_driver: tuple[int, ...]


# torch 2.13's own list is torch.cuda.PYTORCH_RELEASES_CODE_CC (a test compares). Drivers: CUDA toolkit release notes,
# table 2, minor-version compatibility. `pip install torch` brings cu130 on Linux.
BUILDS = (
    Build("cu130", "13.0", (75, 80, 86, 90, 100, 120), (580,), (580,)),
    Build("cu126", "12.6", (50, 60, 70, 75, 80, 86, 90), (525, 60, 13), (528, 33)),
)
DEFAULT_BUILD = BUILDS[0]

# Integrated cards run code made for them alone: torch.cuda.DEVICE_REQUIREMENT.
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1)}

# The table's architectures, as compute capabilities; of several the oldest.
_CAPABILITY: dict[str, Capability] = {
    "Maxwell": (5, 2),
    "Pascal": (6, 0),
    "Volta": (7, 0),
    "Turing": (7, 5),
    "Ampere": (8, 0),
    "Ampere (GA10B)": (8, 7),
    "Ada": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
    "Blackwell Ultra": (10, 3),
}

# AMD's architectures with bf16 matrix instructions (CDNA's MFMA from MI100 on, RDNA 3's and 4's WMMA). torch answers "yes"
# for every AMD card, also where each bf16 operation is emulated.
_BF16_GFX = re.compile(r"gfx(908|90a|94[0-9a-f]|95[0-9a-f]|11[0-9a-f]{2}|12[0-9a-f]{2})")


@dataclass(frozen=True)
class Support:
    """What onecard can do on a kind of card; `build` is None where no build of torch serves it."""

    trains: bool
    build: Build | None  # CUDA only
    compiles: bool
    bf16: bool
    flash: bool
    fp8: bool


def support_of(device: Device) -> Support:
    """By the table's architecture, for a card that need not be in this machine.

    >>> from onecard.facts.gpus import find_gpu
    >>> support_of(find_gpu("RTX 4070")).build.name, support_of(find_gpu("Arc A770")).trains
    ('cu130', False)
    """
    if device.kind in ("cpu", "mps"):
        return Support(True, None, why_eager(device.kind) is None, False, False, False)
    if device.vendor == "AMD":
        return Support(True, None, True, device.bf16_native, device.bf16_native, False)
    capability = _CAPABILITY.get(device.architecture)
    # a user's own card is taken at its word; other makers need other torches
    if capability is None:
        own = device.vendor == "user"
        return Support(own, None, own, device.bf16_native, own, False)
    build = serving_build(capability)
    return Support(
        trains=build is not None or capability in _INTEGRATED,
        build=build,
        compiles=why_eager("cuda", capability) is None,
        bf16=capability >= (8, 0),
        flash=capability >= (8, 0),
        fp8=capability >= (8, 9),
    )


def why_eager(
    kind: str,
    capability: Capability | None = None,
    has_cxx: bool = True,
    has_triton: bool = True,
) -> str | None:
    """Why torch.compile is not even tried on such a device; None where it is.

    `capability` is NVIDIA's, None for other cards. A CPU needs a C++ compiler, a card Triton: of another machine than
    this one it is not known whether they are there, and they are taken to be.

    >>> why_eager("cuda", (6, 1)), why_eager("cuda", (8, 9)), why_eager("cpu", has_cxx=False)
    ('triton needs compute capability 7.0 or newer', None, 'no C++ compiler was found')
    """
    if kind == "mps":
        return "torch's compiler for Apple's GPUs is a prototype"
    if kind == "cpu" and not has_cxx:
        return "no C++ compiler was found"
    if kind == "cuda" and not has_triton:
        return "triton is not installed"
    if kind == "cuda" and capability is not None and capability < (7, 0):
        return "triton needs compute capability 7.0 or newer"
    return None


def has_cxx() -> bool:
    """Whether this machine has a C++ compiler."""
    return any(map(shutil.which, ("c++", "g++", "clang++", "cl")))


def has_triton() -> bool:
    """Whether this Python has Triton; it is not imported."""
    return importlib.util.find_spec("triton") is not None


def runs_on(capability: Capability, arch_list: Sequence[str]) -> bool:
    """Whether a build with these kernels runs on a card: same generation and not newer, or PTX to be compiled there."""
    major, minor = capability
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch)
        if match is None:
            continue
        code = (int(match[2]), int(match[3]))
        if match[1] == "compute":
            if code <= capability:
                return True
        elif code == capability or (
            code[0] == major and code[1] <= minor and not {code, capability} & _INTEGRATED
        ):
            return True
    return False


@cache
def serving_build(capability: Capability) -> Build | None:
    """The newest of torch's builds that runs on a card of this capability."""
    return next(
        (build for build in BUILDS if runs_on(capability, [f"sm_{sm}" for sm in build.sm])), None
    )


def has_bf16(capability: Capability | None, gcn_arch: str | None) -> bool:
    """bf16 in hardware: NVIDIA from 8.0 on, AMD by the name of its architecture ("gfx1100", "gfx90a:sramecc+:xnack-").

    >>> has_bf16((8, 9), None), has_bf16((7, 5), None), has_bf16((10, 3), "gfx1030"), has_bf16((9, 0), "gfx90a:xnack-")
    (True, False, False, True)
    """
    if gcn_arch:
        return _BF16_GFX.match(gcn_arch) is not None
    return capability is not None and capability >= (8, 0)


def oldest_driver(cuda: str, windows: bool = False) -> tuple[int, ...] | None:
    """The oldest NVIDIA driver that a build for this CUDA starts with; None for a CUDA that is not known here.

    >>> oldest_driver("13.0"), oldest_driver("12.8")
    ((580,), (525, 60, 13))
    """
    major = cuda.partition(".")[0]
    for build in BUILDS:
        if build.cuda.partition(".")[0] == major:
            return build.windows_driver if windows else build.linux_driver
    return None


def driver_too_old(driver: str, cuda: str, windows: bool = False) -> str | None:
    """The version that is needed, where the driver is older than it."""
    needed = oldest_driver(cuda, windows)
    has = tuple(int(part) for part in re.findall(r"\d+", driver))
    if needed is None or not has or has >= needed:
        return None
    return ".".join(map(str, needed))


def install_hint(build: Build) -> str:
    """How to get that build, in words that outlive addresses."""
    return (
        f"torch {TORCH} built for CUDA {build.cuda} runs on it: choose CUDA {build.cuda} in pytorch.org's "
        "instructions (Start Locally)"
    )


def why_unseen(driver: str | None, cuda: str | None, windows: bool = False) -> str:
    """Why a torch built for `cuda` (None: for none) sees no card where the driver shows one, and what to do.

    >>> why_unseen("550.54.14", "13.0")[:66]
    'driver 550.54.14 is too old for CUDA 13.0: install 580 or newer, o'
    """
    if driver and cuda and (needed := driver_too_old(driver, cuda, windows)):
        return too_old(driver, cuda, needed)
    built = f"it is built for CUDA {cuda}" if cuda else "it is built without CUDA"
    return f"{built}; install torch {TORCH} by pytorch.org's instructions for your system"


def too_old(driver: str, cuda: str, needed: str) -> str:
    return (
        f"driver {driver} is too old for CUDA {cuda}: install {needed} or newer, or a torch built "
        "for an older CUDA (pytorch.org, Start Locally)"
    )
