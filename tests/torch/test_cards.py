"""Cards that are not there: torch's and the driver's answers faked, onecard's reaction real."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from fake_driver import GIB, FakeCard, FakeLibrary, fake_cuda
from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts import here as here_module
from onecard.facts.builds import BUILDS, runs_on, support_of
from onecard.facts.gpus import find_gpu
from onecard.facts.nvml import Nvml
from onecard.model import machine, power
from onecard.model.build import make_model
from onecard.train.optim.muon import muon_groups
from onecard.train.run import run_folder, trial

CUDA = torch.device("cuda", 0)
CU130 = [f"sm_{sm}" for sm in BUILDS[0].sm]
CAPABILITIES = ((5, 2), (6, 1), (7, 0), (7, 5), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 1))
CU126 = [f"sm_{sm}" for sm in BUILDS[1].sm]


def test_the_builds_are_torchs_own():
    released = torch.cuda.PYTORCH_RELEASES_CODE_CC
    assert torch.__version__.partition("+")[0] == "2.13.0"
    for build in BUILDS:
        assert set(build.sm) == released[build.cuda]["x86_64"]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("kernels", [CU130, CU126])
def test_runs_on_is_torchs_own_rule(capability, kernels):
    device = 10 * capability[0] + capability[1]
    codes = [torch.cuda._extract_arch_version(arch) for arch in kernels]
    theirs = any(torch.cuda._code_compatible_with_device(device, code) for code in codes)
    assert runs_on(capability, kernels) == theirs


@pytest.mark.parametrize(
    ("name", "capability", "kernels", "message"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), CU130, "CUDA 12.6"),
        ("NVIDIA GeForce GTX 1080", (6, 1), CU130, "CUDA 12.6"),
        ("NVIDIA GeForce RTX 5090", (12, 0), CU126, "CUDA 13.0"),
        ("NVIDIA GeForce GT 710", (3, 5), CU130, "none of torch"),
    ],
)
@pytest.mark.parametrize("asked", ["cuda", "cuda:0"])
def test_a_card_outside_the_build_is_an_error_that_names_the_build(
    monkeypatch, name, capability, kernels, message, asked
):
    fake_cuda(monkeypatch, [FakeCard(name, capability=capability)], arch_list=kernels)
    with pytest.raises(UserError, match="has no kernels for the") as caught:
        machine.choose_device(asked)
    assert name in str(caught.value)
    assert message in caught.value.hint
    assert machine.choose_device("auto") == torch.device("cpu")  # slower, but it continues
    sentence = machine.unseen_card(torch.device("cpu"), "auto", "2 h")
    assert all(word in sentence for word in (name, message, "the CPU trains instead (2 h)"))
    assert machine.measured_device("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match="has no kernels for the"):
        machine.measured_device("auto")  # what a probe measures is never another device


@pytest.mark.parametrize(
    ("processes", "rank", "device"), [(1, 0, "cuda:1"), (2, 0, "cpu"), (2, 1, "cpu")]
)
def test_of_mixed_cards_one_that_the_build_serves_is_taken(monkeypatch, processes, rank, device):
    """One process takes it; several would need one each, and all of them compute on the same kind of device."""
    cards = [FakeCard("NVIDIA GeForce GTX 1080", capability=(6, 1)), FakeCard()]
    fake_cuda(monkeypatch, cards, arch_list=CU130)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert machine.choose_device("auto", rank) == torch.device(device)
    assert (machine.unseen_card(torch.device(device), "auto") is None) == (device != "cpu")


def test_a_card_of_the_build_is_taken(monkeypatch):
    fake_cuda(monkeypatch, [FakeCard(), FakeCard()], arch_list=CU130)
    assert machine.choose_device("auto") == CUDA
    assert machine.choose_device("cuda", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="finds 2 CUDA cards"):
        machine.choose_device("cuda:2")


@pytest.mark.parametrize(
    ("gcn", "dtype"),
    [
        ("gfx906:sramecc+:xnack-", "float16"),  # MI50: torch calls it (9, 0)
        ("gfx1030", "float16"),  # RX 6800: (10, 3)
        ("gfx90a:sramecc+:xnack-", "bfloat16"),
        ("gfx942:sramecc+:xnack-", "bfloat16"),
        ("gfx1100", "bfloat16"),
        ("gfx1201", "bfloat16"),
    ],
)
def test_on_rocm_the_architecture_decides(monkeypatch, gcn, dtype):
    major = int(gcn[3:].partition(":")[0][:-2] or 9) if gcn[3:5].isdigit() else 9
    card = FakeCard("AMD", capability=(major, 0), gcn=gcn)
    fake_cuda(monkeypatch, [card], arch_list=["gfx906", "gfx90a", "gfx1030"], hip="7.0")
    assert machine.precision_of("auto", CUDA).dtype == dtype
    assert machine.fast_low_dtype(CUDA) == getattr(torch, dtype)


def test_rocm_without_kernels_for_the_card(monkeypatch):
    card = FakeCard("AMD Radeon RX 5700", capability=(10, 1), gcn="gfx1010")
    fake_cuda(monkeypatch, [card], arch_list=["gfx90a", "gfx1030"], hip="7.0")
    with pytest.raises(UserError, match="gfx1010"):
        machine.choose_device("cuda")
    assert machine.choose_device("auto") == torch.device("cpu")
    assert "gfx1010" in machine.unseen_card(torch.device("cpu"), "auto")


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [
        ((12, 0), torch.bfloat16),
        ((8, 0), torch.bfloat16),
        ((7, 5), torch.float16),
        ((7, 0), torch.float16),
        ((6, 1), torch.float32),
    ],
)
def test_the_low_dtype_is_one_the_card_computes_in(monkeypatch, capability, dtype):
    fake_cuda(monkeypatch, [FakeCard(capability=capability)])
    assert machine.fast_low_dtype(CUDA) == dtype


@pytest.mark.parametrize(
    ("known", "asked", "dtype"),
    [
        ({"avx512_bf16": True}, "bfloat16", torch.bfloat16),
        ({"amx_bf16": True}, "bfloat16", torch.bfloat16),
        ({"avx512_bf16": True}, "auto", torch.float32),
        ({"avx512_bf16": True}, "float16", torch.float32),
        ({"avx512_bf16": False}, "bfloat16", torch.float32),
    ],
)
def test_muon_in_a_cpus_bf16_only_if_the_run_asks_for_it(monkeypatch, known, asked, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    machine.fast_low_dtype.cache_clear()
    config = RunConfig(n_layer=1, n_head=1, n_embd=8, recipe="modern", optimizer="muon")
    (matrices,) = [
        group
        for group in muon_groups(config.replace(dtype=asked), make_model(config))
        if group["muon"]
    ]
    machine.fast_low_dtype.cache_clear()
    assert matrices["product_dtype"] == dtype


@pytest.mark.parametrize(
    ("system", "release", "paged"),
    [
        ("win32", "10", True),
        ("linux", "5.15.153.1-microsoft-standard-WSL2", True),
        ("linux", "6.8.0-45-generic", False),
    ],
)
def test_windows_and_wsl_are_kept_from_paging(monkeypatch, system, release, paged):
    fake_cuda(monkeypatch, [FakeCard(used_bytes=2 * GIB)])
    monkeypatch.setattr(machine.sys, "platform", system)
    monkeypatch.setattr(machine.platform, "release", lambda: release)
    limits = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: limits.append(share)
    )
    sentence = machine.limit_paged_memory(CUDA)
    assert (sentence is not None) == paged == bool(limits)
    if paged:
        assert limits[0] == pytest.approx(10 / 12 - 0.02)
        assert "9.76 GiB of 12.00 GiB" in sentence
    assert machine.limit_paged_memory(torch.device("cpu")) is None


def drivers(monkeypatch, cards, **more):
    library = FakeLibrary(cards, **more)
    monkeypatch.setattr("onecard.facts.nvml.open_nvml", lambda: Nvml(library))
    monkeypatch.setattr(power, "_driver", lambda: Nvml(library))
    return library


def mixed():
    small = FakeCard("NVIDIA GeForce RTX 3060", "GPU-aa", 8 * GIB, watts=100.0)
    large = FakeCard("NVIDIA GeForce RTX 4090", "GPU-bb", 24 * GIB, watts=400.0)
    return small, large


def test_a_run_records_its_card_and_driver(monkeypatch):
    drivers(monkeypatch, [FakeCard()])
    fake_cuda(monkeypatch, [FakeCard()])
    session = SimpleNamespace(
        config=RunConfig(),
        data=SimpleNamespace(path="data/x"),
        workers=SimpleNamespace(device=CUDA, processes=1),
    )
    recorded = run_folder._environment(session)
    assert (recorded["gpu"], recorded["driver"]) == ("NVIDIA GeForce RTX 4070", "580.95.05")
    session.workers.device = torch.device("cpu")
    assert run_folder._environment(session)["driver"] is None


def test_torchs_card_is_found_in_the_driver_by_uuid(monkeypatch):
    small, large = mixed()
    drivers(monkeypatch, [small, large])  # by the PCI bus
    monkeypatch.setattr("onecard.facts.nvml.cuda_uuids", lambda: ["GPU-bb", "GPU-aa"])
    fake_cuda(monkeypatch, [large, small])  # the fastest first
    assert here_module.here().name == "RTX 4090"
    assert machine.facts_of(CUDA).name == "RTX 4090"
    assert machine.facts_of(torch.device("cuda", 1)).name == "RTX 3060 8GB"
    assert power.power_meter(CUDA).read_watts() == 400
    assert power.power_meter(torch.device("cuda", 1)).read_watts() == 100


def test_all_cards_of_a_run_are_metered_together(monkeypatch):
    small, large = mixed()
    library = drivers(monkeypatch, [small, large])
    fake_cuda(monkeypatch, [large, small])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    meter = power.power_meter(CUDA)
    assert meter.read_watts() == 500
    small.watts = None  # one card stops reporting: no sum of the rest is taken for the whole
    assert meter.read_watts() is None
    small.watts = 90.0
    assert meter.read_watts() == 490
    library.broken = True
    assert meter.read_watts() is None


def test_a_meter_never_raises():
    def lost():
        raise RuntimeError("GPU is lost")

    assert power.PowerMeter([lambda: 100.0, lost]).read_watts() is None
    assert power.PowerMeter().read_watts() is None
    assert power.power_meter(torch.device("cpu")).read_watts() is None


def test_amd_reports_microwatts(monkeypatch, tmp_path):
    fake_cuda(monkeypatch, [FakeCard("AMD Radeon RX 7900 XTX", gcn="gfx1100")], hip="7.0")
    address = power.pci_address(CUDA)
    assert address == "0000:03:00.0"
    sensor = tmp_path / address / "hwmon" / "hwmon4"
    sensor.mkdir(parents=True)
    assert power.amd_watts(address, tmp_path) is None
    (sensor / "power1_average").write_text("303000000\n")
    assert power.amd_watts(address, tmp_path) == 303


@pytest.mark.parametrize(("gib", "row"), [(8, "RTX 3060 8GB"), (12, "RTX 3060 12GB")])
def test_mfu_is_compared_with_the_card_with_that_memory(monkeypatch, gib, row):
    fake_cuda(monkeypatch, [FakeCard("NVIDIA GeForce RTX 3060", memory_bytes=gib * GIB)])
    monkeypatch.setattr(machine, "measured_peak_flops", lambda *args: pytest.fail("measured"))
    wanted = find_gpu(row).matmul_flops("bfloat16")
    assert machine.peak_flops(CUDA, "bfloat16") == wanted


def test_what_a_named_card_can_do():
    assert support_of(find_gpu("RTX 4070")).build.name == "cu130"
    assert support_of(find_gpu("V100S")).build.name == "cu126"
    assert not support_of(find_gpu("GTX 1080")).compiles
    assert not support_of(find_gpu("Arc A770")).trains
    assert support_of(find_gpu("RX 7900 XTX")).bf16
    assert not support_of(find_gpu("RX 6900 XT")).bf16
    assert support_of(find_gpu("cpu")).trains


def test_where_the_compiler_is_not_even_tried(monkeypatch):
    cpu, mps = torch.device("cpu"), torch.device("mps")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/g++" if name == "g++" else None)
    assert trial.cannot_compile(cpu) is None
    assert "Apple" in trial.cannot_compile(mps)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert trial.cannot_compile(cpu) == "no C++ compiler was found"
    assert "Apple" in trial.cannot_compile(mps)
