"""Which device a run gets, and why not the card where there is one that this build of torch cannot use."""

import sys

import torch

from onecard.config.validate import check_device
from onecard.errors import UserError
from onecard.facts.builds import BUILDS, TORCH, install_hint, runs_on, serving_build, why_unseen
from onecard.facts.here import seen_cards
from onecard.facts.nvml import driver_version
from onecard.torchrun import local_process_count


def choose_device(asked: str, local_rank: int = 0) -> torch.device:
    """`device` of the config; "auto" is the card if there is one that this torch can use, and else the CPU."""
    if asked == "auto":
        if torch.cuda.is_available():
            return _usable_card(local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    check_device(asked)
    device = torch.device(asked)
    if device.type == "cuda" and not torch.cuda.is_available():
        cards = seen_cards()
        raise UserError(
            f"device = {asked!r}, but torch finds no CUDA card"
            + (f", although the driver shows a {cards[0].name}" if cards else ""),
            hint=f"{_why_unseen()}; device = 'cpu' trains without the card"
            if cards
            else "device = 'cpu', or install a CUDA build of torch and the driver",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(
            "device = 'mps', but this is not a Mac with a GPU that torch can use",
            hint="device = 'cpu'",
        )
    if asked == "cuda":
        device = torch.device("cuda", local_rank)
    return _served(device)


def checked_device(asked: str) -> torch.device:
    """For `onecard doctor`: as choose_device, but the card also where this torch has no kernels for it; doctor says so."""
    try:
        device = choose_device(asked)
    except UserError:
        if asked != "cuda" or not torch.cuda.is_available():
            raise
        return torch.device("cuda", 0)
    fallen_back = asked == "auto" and device.type == "cpu" and torch.cuda.is_available()
    return torch.device("cuda", 0) if fallen_back else device


def measured_device(asked: str) -> torch.device:
    """For `onecard probe`: as choose_device, but a card that cannot be measured is an error, not another device."""
    return choose_device("cuda" if asked == "auto" and torch.cuda.is_available() else asked)


def _usable_card(local_rank: int) -> torch.device:
    """The card of this process, or the CPU where this torch has no kernels for it. One process alone takes the first card
    that it has kernels for; several need one each, and all of them compute on the CPU where one has none."""
    count = torch.cuda.device_count()
    processes = local_process_count()
    if processes == 1 and local_rank == 0:
        cards = [torch.device("cuda", index) for index in range(count)]
        return next((card for card in cards if not build_mismatch(card)), torch.device("cpu"))
    _check_count(torch.device("cuda", local_rank))
    taken = range(min(max(processes, local_rank + 1), count))
    if any(build_mismatch(torch.device("cuda", index)) for index in taken):
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


def _served(device: torch.device) -> torch.device:
    """The device, if this build of torch has kernels for it; else the first of them would end in "no kernel image"."""
    if device.type != "cuda":
        return device
    _check_count(device)
    if reason := build_mismatch(device):
        raise UserError(reason[0], hint=f"{reason[1]}; device = 'cpu' trains without the card")
    return device


def _check_count(device: torch.device) -> None:
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise UserError(
            f"device = '{device}', but torch finds {count} CUDA card{'s' * (count != 1)}",
            hint="cards are counted from cuda:0; CUDA_VISIBLE_DEVICES can hide some",
        )


def build_mismatch(device: torch.device) -> tuple[str, str] | None:
    """Why this build of torch cannot run on the card, and which can; None where it can, or where it cannot be known."""
    kernels = torch.cuda.get_arch_list()
    name = torch.cuda.get_device_name(device)
    if torch.version.hip:
        architecture = gcn_arch(device)
        if not kernels or not architecture or architecture.partition(":")[0] in kernels:
            return None
        made_for = ", ".join(kernels)
        return (
            f"this torch ({torch.__version__}) has no kernels for the {name} ({architecture})",
            f"it is built for {made_for}; HSA_OVERRIDE_GFX_VERSION can name a sibling of your card",
        )
    capability = torch.cuda.get_device_capability(device)
    if not kernels or runs_on(capability, kernels):
        return None
    build = serving_build(capability)
    return (
        f"this torch ({torch.__version__}) has no kernels for the {name}, compute capability "
        f"{capability[0]}.{capability[1]}: it is built for {', '.join(kernels)}",
        install_hint(build)
        if build
        else f"none of torch {TORCH}'s builds (CUDA {' and '.join(b.cuda for b in BUILDS)}) runs on it",
    )


def gcn_arch(device: torch.device) -> str | None:
    """AMD's name of the architecture ("gfx1100"); None on every other card."""
    if device.type != "cuda" or not torch.version.hip:
        return None
    return getattr(torch.cuda.get_device_properties(device), "gcnArchName", None) or None


def unseen_card(device: torch.device, asked: str, takes: str = "") -> str | None:
    """A sentence when the run falls to the CPU although there is a card, which this torch cannot use: what is wrong, how
    long it `takes` on the CPU, and what to install."""
    if device.type != "cpu" or asked == "cpu":
        return None
    trains = "the CPU trains instead" + (f" ({takes})" if takes else "")
    if torch.cuda.is_available():
        cards = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
        reason = next(filter(None, map(build_mismatch, cards)), None)
        return (
            None if reason is None else f"card: {reason[0]}; {trains}. To use the card: {reason[1]}"
        )
    present = seen_cards()
    if not present:
        return None
    return (
        f"card: the driver shows a {present[0].name}, but this torch ({torch.__version__}) cannot use it; {trains}. "
        f"To use the card: {_why_unseen()}"
    )


def _why_unseen() -> str:
    return why_unseen(driver_version(), torch.version.cuda, sys.platform == "win32")
