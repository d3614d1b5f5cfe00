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


def device(answers: Answers) -> Check:
    more = f"; torch counts {', '.join(answers.seen)}" if len(answers.seen) > 1 else ""
    known = "" if answers.facts else "; it is not in onecard's table, so its peak is measured"
    free = f"{show_bytes(answers.free_bytes)} of {show_bytes(answers.memory_bytes)} free"
    return Check("device", "ok", f"{answers.name} ({answers.device}), {free}{known}{more}")


def driver(answers: Answers) -> Check:
    if answers.unseen:
        return Check("driver", "action", answers.unseen)
    if answers.kind != "cuda" or answers.hip:
        return Check("driver", "ok", "none needed" if answers.kind != "cuda" else "ROCm's own")
    if answers.driver is None:
        return Check("driver", "fall-back", "NVML does not answer: no power or clock readings")
    needed = driver_too_old(answers.driver, answers.cuda or "", windows=answers.system == "win32")
    if needed:
        return Check("driver", "action", too_old(answers.driver, answers.cuda or "", needed))
    return Check("driver", "ok", f"{answers.driver}, CUDA {answers.cuda}")


def build(answers: Answers) -> Check:
    name = f"torch {answers.torch_version}"
    if answers.kind != "cuda" or not answers.kernels:
        return Check("torch build", "ok", f"{name} for {answers.kind}")
    if answers.hip:
        served = not answers.gcn_arch or answers.gcn_arch.partition(":")[0] in answers.kernels
        wrong = f"{name} has no kernels for {answers.gcn_arch}: it is built for {', '.join(answers.kernels)}; {_ON_CPU}"
        return Check("torch build", "ok" if served else "action", name if served else wrong)
    capability = answers.capability or (0, 0)
    shown = f"{capability[0]}.{capability[1]}"
    if runs_on(capability, answers.kernels):
        return Check("torch build", "ok", f"{name}, made for compute capability {shown}")
    serving = serving_build(capability)
    hint = install_hint(serving) if serving else "no build of this torch runs on it"
    wrong = f"{name} has no kernels for capability {shown}: {hint}; {_ON_CPU}"
    return Check("torch build", "action", wrong)


def paging(answers: Answers) -> Check:
    if not answers.pages_memory:
        return Check("memory paging", "ok", "this system does not move GPU memory to the host's")
    return Check(
        "memory paging",
        "fall-back",
        f"this system moves GPU memory to the host's when it runs short; `train` takes at most the "
        f"{show_bytes(answers.free_bytes)} that are free when it starts",
    )


def power(answers: Answers) -> Check:
    if answers.kind != "cuda":
        return Check("power", "ok", "not read on this device: energy is not logged")
    watts = answers.reading().watts
    if watts is None:
        return Check("power", "fall-back", "the card does not report watts: energy is not logged")
    return Check("power", "ok", f"{watts:.0f} W now", figures=(("watts", watts),))


def clocks(answers: Answers) -> Check:
    """To be asked while the card works, or right after."""
    now = answers.reading()
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


def compiler(answers: Answers) -> Check:
    """Whether it can be tried at all; compute.step then does it."""
    off = (("compile", False),)
    capability = None if answers.hip else answers.capability
    if why := why_eager(answers.kind, capability, answers.has_cxx, answers.has_triton):
        missing = answers.kind == "cuda" and not answers.has_triton
        hint = "; on Windows `pip install triton-windows` brings it" if missing else ""
        return Check("compiler", "fall-back", f"{why}: runs are eager{hint}", settings=off)
    if not _writable(answers.cache):
        return Check(
            "compiler",
            "fall-back",
            "the compiler's cache folder cannot be written: runs are eager; set TORCHINDUCTOR_CACHE_DIR to one that can",
            settings=off,
        )
    return Check("compiler", "ok", "Triton" if answers.kind == "cuda" else "a C++ compiler")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return os.access(folder, os.W_OK)
    except OSError:
        return False


def disk(answers: Answers, folder: Path, size: int = 64 * MIB) -> Check:
    """Room and speed where runs are written."""
    free = answers.free_disk(folder)
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


def mac(answers: Answers) -> Check:
    """Of Apple's GPUs only."""
    return Check(
        "macOS",
        "ok",
        f"float32 and eager; Metal lets a program take {show_bytes(answers.memory_bytes)} of the shared memory, and the "
        "system slows down before it runs out: close other programs",
    )
