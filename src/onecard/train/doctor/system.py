"""Checks of what is installed: driver, torch build, compiler, power readings, clocks, paging, disk. No arithmetic."""

import os
import tempfile
import time
from pathlib import Path

from onecard.facts.builds import (
    driver_too_old,
    install_hint,
    runs_on,
    serving_build,
    too_old,
    why_eager,
)
from onecard.train.doctor.answers import Answers, Check
from onecard.units import GIB, MIB, show_bytes

_LEAST_DISK = 5 * GIB  # a few checkpoints of GPT-2 small
_SLOW_DISK = 50e6  # bytes a second: a checkpoint of GPT-2 small would take half a minute
_SLOW_CLOCK = 0.6  # of the highest clock under load
_ON_CPU = "until then `train` runs on the CPU"


def device(found: Answers) -> Check:
    more = f"; torch counts {', '.join(found.seen)}" if len(found.seen) > 1 else ""
    known = "" if found.facts else "; it is not in onecard's table, so its peak is measured"
    free = f"{show_bytes(found.free_bytes)} of {show_bytes(found.memory_bytes)} free"
    return Check("device", "ok", f"{found.name} ({found.device}), {free}{known}{more}")


def driver(found: Answers) -> Check:
    if found.unseen:
        return Check("driver", "action", found.unseen)
    if found.kind != "cuda" or found.hip:
        return Check("driver", "ok", "none needed" if found.kind != "cuda" else "ROCm's own")
    if found.driver is None:
        return Check("driver", "fall-back", "NVML does not answer: no power or clock readings")
    needed = driver_too_old(found.driver, found.cuda or "", windows=found.system == "win32")
    if needed:
        return Check("driver", "action", too_old(found.driver, found.cuda or "", needed))
    return Check("driver", "ok", f"{found.driver}, CUDA {found.cuda}")


def build(found: Answers) -> Check:
    name = f"torch {found.torch_version}"
    if found.kind != "cuda" or not found.kernels:
        return Check("torch build", "ok", f"{name} for {found.kind}")
    if found.hip:
        served = not found.gcn_arch or found.gcn_arch.partition(":")[0] in found.kernels
        wrong = f"{name} has no kernels for {found.gcn_arch}: it is built for {', '.join(found.kernels)}; {_ON_CPU}"
        return Check("torch build", "ok" if served else "action", name if served else wrong)
    capability = found.capability or (0, 0)
    shown = f"{capability[0]}.{capability[1]}"
    if runs_on(capability, found.kernels):
        return Check("torch build", "ok", f"{name}, made for compute capability {shown}")
    serving = serving_build(capability)
    hint = install_hint(serving) if serving else "no build of this torch runs on it"
    wrong = f"{name} has no kernels for capability {shown}: {hint}; {_ON_CPU}"
    return Check("torch build", "action", wrong)


def paging(found: Answers) -> Check:
    if not found.pages_memory:
        return Check("memory paging", "ok", "this system does not move GPU memory to the host's")
    return Check(
        "memory paging",
        "fall-back",
        f"this system moves GPU memory to the host's when it runs short; `train` takes at most the "
        f"{show_bytes(found.free_bytes)} that are free when it starts",
    )


def power(found: Answers) -> Check:
    if found.kind != "cuda":
        return Check("power", "ok", "not read on this device: energy is not logged")
    watts = found.reading().watts
    if watts is None:
        return Check("power", "fall-back", "the card does not report watts: energy is not logged")
    return Check("power", "ok", f"{watts:.0f} W now", figures=(("watts", watts),))


def clocks(found: Answers) -> Check:
    """To be asked while the card works, or right after."""
    now = found.reading()
    figures = tuple(
        (name, float(value))
        for name, value in (("sm_mhz", now.sm_mhz), ("celsius", now.celsius))
        if value is not None
    )
    if now.sm_mhz is None or not now.most_sm_mhz:
        return Check("clocks", "ok", "not reported on this device", figures)
    shown = f"{now.sm_mhz} of {now.most_sm_mhz} MHz"
    heat = "" if now.celsius is None else f", {now.celsius} °C"
    hot = {"temperature", "hardware slowdown", "power brake"} & set(now.held_back_by)
    if hot or (now.sm_mhz < _SLOW_CLOCK * now.most_sm_mhz and now.held_back_by):
        held = ", ".join(now.held_back_by)
        return Check(
            "clocks",
            "action",
            f"{shown}{heat}: held back by {held}; see to its cooling, power supply and power limit, or plan for less",
            figures,
        )
    return Check("clocks", "ok", f"{shown}{heat}", figures)


def compiler(found: Answers) -> Check:
    """Whether it can be tried at all; compute.step then does it."""
    off = (("compile", False),)
    capability = None if found.hip else found.capability
    if why := why_eager(found.kind, capability, found.has_cxx, found.has_triton):
        missing = found.kind == "cuda" and not found.has_triton
        hint = "; on Windows `pip install triton-windows` brings it" if missing else ""
        return Check("compiler", "fall-back", f"{why}: runs are eager{hint}", settings=off)
    if not _writable(found.cache):
        return Check(
            "compiler",
            "fall-back",
            "the compiler's cache folder cannot be written: runs are eager; set TORCHINDUCTOR_CACHE_DIR to one that can",
            settings=off,
        )
    return Check("compiler", "ok", "Triton" if found.kind == "cuda" else "a C++ compiler")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return os.access(folder, os.W_OK)
    except OSError:
        return False


def disk(found: Answers, folder: Path, size: int = 64 * MIB) -> Check:
    """Room and speed where runs are written."""
    free = found.free_disk(folder)
    if free < size + 16 * MIB:
        return Check("disk", "action", f"{show_bytes(free)} free here: too little for a checkpoint")
    piece = os.urandom(MIB)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began = time.perf_counter()
            for _ in range(size // MIB):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            rate = size / (time.perf_counter() - began)
    except OSError as error:
        return Check("disk", "action", f"this folder cannot be written: {error.strerror}")
    figures = (("write_bytes_per_second", rate), ("free_bytes", float(free)))
    shown = f"{show_bytes(free)} free, {rate / 1e6:,.0f} MB/s written"
    if free < _LEAST_DISK:
        few = f"{shown}: room for few checkpoints; keep_checkpoints and out_dir can help"
        return Check("disk", "action", few, figures)
    slow = "; checkpoints will take a while" if rate < _SLOW_DISK else ""
    return Check("disk", "ok", shown + slow, figures)


def mac(found: Answers) -> Check:
    """Of Apple's GPUs only."""
    return Check(
        "macOS",
        "ok",
        f"float32 and eager; Metal lets a program take {show_bytes(found.memory_bytes)} of the shared memory, and the "
        "system slows down before it runs out: close other programs",
    )
