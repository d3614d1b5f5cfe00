"""The card in this machine: real tools' answers faked, the way to them real."""

import json
import os
import sys

import pytest

from fake_driver import FakeCard, FakeLibrary
from onecard.errors import UserError
from onecard.facts import here as here_module
from onecard.facts import nvml
from onecard.facts.gpus import metal_bytes
from onecard.facts.here import Seen, here, known_device
from onecard.units import GIB, MIB

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="fakes are shell scripts")


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH that holds only what a test puts there, and no NVML."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(here_module, "_nvml", lambda: [])

    def add(name, answer, code=0):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n")
        script.chmod(0o755)

    return add


def test_nvidia_smi(tools):
    tools("nvidia-smi", "NVIDIA GeForce RTX 4070, 12282, 913, 200.00")
    card = here()
    assert card.name == "RTX 4070"
    assert card.usable_bytes == 12282 * MIB
    assert card.taken_bytes == 913 * MIB
    assert card.watts == 200


def test_same_name_two_sizes_distinguished_by_the_driver(tools):
    tools("nvidia-smi", "NVIDIA GeForce RTX 3060, 12288, 1, [N/A]")
    assert here().name == "RTX 3060 12GB"
    tools("nvidia-smi", "NVIDIA GeForce RTX 3060, 8192, 1, [N/A]")
    assert here().name == "RTX 3060 8GB"


def test_two_cards(tools):
    tools(
        "nvidia-smi",
        "NVIDIA GeForce RTX 4090, 24564, 10, 450\nNVIDIA GeForce RTX 4070, 12282, 1, 200",
    )
    assert here(0).name == "RTX 4090"
    assert here(1).name == "RTX 4070"


@pytest.mark.parametrize("answer", ["", "NVIDIA-SMI has failed", "a, b, c, d", "x,1"])
def test_nonsense_from_the_driver_means_no_card(tools, answer):
    tools("nvidia-smi", answer)
    assert here().kind == "cpu"


def test_a_failing_driver_means_no_card(tools):
    tools("nvidia-smi", "NVIDIA GeForce RTX 4070, 12282, 913, 200.00", code=9)
    assert here().kind == "cpu"


def test_rocm(tools):
    fields = {
        "Card Series": "AMD Radeon RX 7900 XTX",
        "VRAM Total Memory (B)": str(24 * GIB),
        "VRAM Total Used Memory (B)": str(GIB),
        "Max Graphics Package Power (W)": "303.0",
    }
    tools("rocm-smi", json.dumps({"card0": fields}))
    card = here()
    assert (card.name, card.taken_bytes, card.watts) == ("RX 7900 XTX", GIB, 303)


def test_an_unknown_card_says_how_to_add_it():
    with pytest.raises(UserError, match="RTX 9999") as caught:
        known_device(Seen("NVIDIA GeForce RTX 9999", 30 * GIB, 0))
    assert "gpus.toml" in (caught.value.hint or "")


def test_a_data_centre_card_with_ecc():
    assert (
        known_device(Seen("NVIDIA A100-SXM4-80GB", round(79.15 * GIB), 0)).name == "A100 SXM 80GB"
    )
    assert known_device(Seen("NVIDIA L4", round(22.03 * GIB), 0)).name == "L4"


def test_the_cpu(tools):
    card = here()
    assert card.kind == "cpu"
    assert card.units >= 1
    assert card.fp32_flops > 1e9
    assert card.memory_bytes > GIB
    assert 0 <= card.taken_bytes < card.memory_bytes


def test_apple(monkeypatch, tools):
    monkeypatch.setattr(here_module.sys, "platform", "darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    tools("sysctl", "Apple M3 Max")
    answers = {"machdep.cpu.brand_string": "Apple M3 Max\n", "hw.memsize": f"{48 * GIB}\n"}
    monkeypatch.setattr(here_module, "_output", lambda *command: answers.get(command[-1], ""))
    card = here()
    assert (card.name, card.memory_bytes) == ("Apple M3 Max", 48 * GIB)
    assert card.usable_bytes < card.memory_bytes


@pytest.mark.parametrize(("gib", "share"), [(16, 2 / 3), (35, 2 / 3), (36, 0.75), (64, 0.75)])
def test_what_metal_lets_a_program_take(gib, share):
    assert metal_bytes(gib * GIB) == round(gib * GIB * share)


@pytest.mark.parametrize(
    ("flag", "per_clock", "quota", "cores"),
    [
        ("avx512f", 64, "150000 100000", 2),
        ("avx2", 32, "max 100000", 3),
        ("sse2", 16, "20000 100000", 1),
    ],
)
def test_a_processor_by_its_systems_files(
    tools, monkeypatch, tmp_path, flag, per_clock, quota, cores
):
    """Linux's own files, read from a folder: instructions, clock, memory, and the quota of a container."""
    root = tmp_path / "root"
    for name, text in {
        "proc/cpuinfo": f"flags\t: fpu {flag}\ncpu MHz\t\t: 2500.0\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemAvailable:   8388608 kB\n",
        "sys/fs/cgroup/cpu.max": f"{quota}\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(here_module, "Path", lambda name: root / name.lstrip("/"))
    monkeypatch.setattr(here_module.os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    card = here()
    assert (card.memory_bytes, card.taken_bytes) == (16 * GIB, 8 * GIB)
    assert card.units == cores
    assert card.fp32_flops == pytest.approx(cores * 2.5e9 * per_clock)


@pytest.mark.parametrize(
    ("system", "name"), [("win32", "nvml.dll"), ("linux", "libnvidia-ml.so.1")]
)
def test_the_drivers_library_by_its_systems_name(monkeypatch, system, name):
    asked = []

    def load(library):
        asked.append(library)
        raise OSError("not there")

    monkeypatch.setattr(nvml.sys, "platform", system)
    monkeypatch.setattr(nvml.ctypes, "CDLL", load)
    assert nvml.open_nvml() is None
    assert asked == [name]


def test_a_reading_that_the_driver_does_not_know_is_none():
    class OldLibrary(FakeLibrary):
        def __getattr__(self, name):
            if name == "nvmlDeviceGetTemperature":
                raise AttributeError(name)
            return super().__getattr__(name)

    card = FakeCard()
    found = nvml.Nvml(OldLibrary([card])).reading(card.uuid)
    assert (found.watts, found.celsius) == (card.watts, None)


class Cuda:
    """libcuda with two cards; each call answers 0, or what `failing` says."""

    def __init__(self, **failing):
        self._failing = failing

    def __getattr__(self, name):
        def call(*arguments):
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = 2
            elif name == "cuDeviceGetUuid_v2":
                arguments[0][15] = 7
            return self._failing.get(name, 0)

        return call


def test_cuda_s_order_of_the_cards_or_nothing(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: Cuda())
    assert nvml.cuda_uuids() == ["GPU-00000000-0000-0000-0000-000000000007"] * 2
    for call in ("cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetUuid_v2"):
        monkeypatch.setattr("ctypes.CDLL", lambda name, call=call: Cuda(**{call: 1}))
        assert nvml.cuda_uuids() is None
