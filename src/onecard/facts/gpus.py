"""The cards: memory, bandwidth, dense tensor rates per dtype and accumulator, from gpus.csv with source and confidence.

>>> find_gpu("rtx4070").name
'RTX 4070'
>>> round(find_gpu("4070 Ti").peak_flops("float32") / 1e12, 1)
40.1
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from onecard.errors import UserError
from onecard.facts.card_names import name_key, without_memory
from onecard.facts.data_files import table
from onecard.facts.pcie import PCIE_BANDWIDTH, pcie_generation
from onecard.facts.user_cards import own_cards, read_user_cards, user_cards_file
from onecard.units import GIB, MIB

# Emulated bf16 runs at 0.45 of fp32 on Pascal (P40: 5.26 of 11.8) and at half or less on Turing and Volta
# (2080: 5.1 of 10.1; V100S: 9.85 of 16.4): measured matmuls, zzc0721/torch-performance-test-data.
EMULATED_BF16 = 0.5


@dataclass(frozen=True)
class Device:
    """One card (or a CPU) as the plan sees it. Rates in FLOP/s, dense, accumulating in fp32."""

    name: str
    vendor: str
    architecture: str
    rate_class: str  # cards with the same FLOP per clock and unit: they share fitted efficiencies
    memory_bytes: int  # as sold
    usable_bytes: int  # what torch reports as total
    bandwidth: float  # bytes per second
    bf16_flops: float | None
    fp16_flops: float | None
    tf32_flops: float | None
    fp32_flops: float
    tdp_watts: float
    units: int  # SMs, CUs or cores
    bf16_native: bool
    # A: vendor's figure checked, B: computed from the specification, C: a rough estimate
    confidence: str
    source: str
    checked: str
    note: str = ""
    aliases: tuple[str, ...] = ()
    taken_bytes: int | None = None  # by other programs, when the driver was asked
    power_limit_watts: float | None = None  # when the driver was asked
    cache_bytes: int = 0  # the last level on the chip; 0 where nobody says

    @property
    def kind(self) -> str:
        """Which torch device it is: cuda (AMD's ROCm calls itself that too), mps, xpu or cpu."""
        if self.rate_class in ("cpu", "apple"):
            return {"cpu": "cpu", "apple": "mps"}[self.rate_class]
        return "xpu" if self.vendor == "Intel" else "cuda"

    @property
    def pcie(self) -> float:
        """The generation of its slot: the newest that its architecture has."""
        return pcie_generation(self.architecture)

    @property
    def host_bandwidth(self) -> float:
        """Bytes a second each way to and from pinned memory of the computer: sixteen lanes, as many as most boards have."""
        return PCIE_BANDWIDTH[self.pcie]

    @property
    def memory_reading(self) -> Literal["allocated", "process"]:
        """Which of a plan's memory figures a run here measures: torch counts what it allocates with CUDA only."""
        return "allocated" if self.kind == "cuda" else "process"

    def dtype_of(self, asked: str) -> str:
        """The number format that `dtype` means here: "auto" is what the card trains in."""
        return self.training_dtype if asked == "auto" else asked

    @property
    def training_dtype(self) -> str:
        """What to train in: bf16 where the hardware has it, else fp16 with a loss scaler; fp32 on CPU and Apple."""
        if self.kind in ("cpu", "mps"):
            return "float32"
        return "bfloat16" if self.bf16_native else "float16"

    def peak_flops(self, dtype: str) -> float:
        """Dense peak with fp32 accumulation: "bfloat16", "float16", "tf32" or "float32" (outside the tensor cores)."""
        if dtype == "bfloat16":
            return self.bf16_flops or self.fp32_flops * EMULATED_BF16
        tensor_cores = {"tf32": self.tf32_flops, "float16": self.fp16_flops}
        return tensor_cores.get(dtype) or self.fp32_flops

    def matmul_flops(self, dtype: str) -> float:
        """The peak that a training run in `dtype` is compared with: fp32 runs are allowed TF32, as in nanoGPT."""
        return self.peak_flops("tf32" if dtype == "float32" else dtype)

    @property
    def watts(self) -> float:
        """The draw under load: the power limit if the driver reports it, else the TDP."""
        return self.power_limit_watts or self.tdp_watts


@cache
def all_gpus() -> tuple[Device, ...]:
    """Every card known: the shipped table, then the user's own file, whose names win."""
    shipped = [_from_row(row) for row in table("gpus")]
    own = [card(entry, user_cards_file()) for entry in own_cards()]
    taken = {name_key(device.name) for device in own}
    return (*own, *(device for device in shipped if name_key(device.name) not in taken))


def find_gpu(name: str, memory_gib: float | None = None) -> Device:
    """The card a person means, by name or alias; case, spacing and vendor are ignored, substrings never match.

    A name that means several memory sizes asks which, unless `memory_gib` is given. A path to a .toml file describes one.
    """
    if name.lower().endswith(".toml"):
        return card(read_user_cards(Path(name), must_exist=True)[0], Path(name))
    matches = _matches(name, memory_gib)
    if len(matches) == 1:
        return matches[0]
    if matches:
        names = [device.name for device in matches]
        raise UserError(
            f"{name!r} can mean {', '.join(names[:-1])} or {names[-1]}",
            hint=f'say which: the option `gpu="{names[0]}"`',
        )
    if others := _matches(without_memory(name), None):
        has = " or ".join(f"{device.memory_bytes / GIB:g}" for device in others)
        raise UserError(
            f"no {others[0].name} has that memory: {name!r}", hint=f"it is sold with {has} GB"
        )
    known = {key: device.name for device in all_gpus() for key, _ in _keys(device)}
    import difflib  # only where somebody mistyped

    close = dict.fromkeys(
        known[key] for key in difflib.get_close_matches(name_key(name)[0], known, n=6)
    )
    hint = f"did you mean {' or '.join(list(close)[:3])}? " if close else ""
    raise UserError(f"unknown GPU {name!r}", hint=f"{hint}`onecard gpus` lists them all")


def search_gpus(words: list[str]) -> list[Device]:
    """Cards whose name, maker or architecture holds every word; for `onecard gpus`, where substrings are welcome."""
    wanted = [word.lower() for word in words]
    return [
        device
        for device in all_gpus()
        if all(
            any(
                word in text.lower()
                for text in (device.name, device.vendor, device.architecture, *device.aliases)
            )
            or (
                word.removesuffix("gb").isdigit()
                and f"{device.memory_bytes / GIB:g}gb" == word.removesuffix("gb") + "gb"
            )
            for word in wanted
        )
    ]


def _matches(name: str, memory_gib: float | None) -> list[Device]:
    key, named_gib = name_key(name)
    gib = memory_gib or named_gib
    for meant in (  # aliases are looked at only where no name is the one
        lambda device: name_key(device.name) == (key, named_gib),
        lambda device: (key, named_gib) in _keys(device),
        lambda device: key in {known for known, _ in _keys(device)},
    ):
        candidates = list(filter(meant, all_gpus()))
        if gib is not None:
            candidates = [_with_memory(each, gib) for each in candidates if _sold_with(each, gib)]
        if candidates:
            return candidates
    return []


def _sold_with(device: Device, gib: float) -> bool:
    """A B200 is sold as 180 or as 192 GB: allow a tenth. An Apple chip shares whatever its machine has."""
    return device.kind == "mps" or abs(device.memory_bytes / GIB / gib - 1) < 0.1


def _with_memory(device: Device, gib: float) -> Device:
    if device.kind != "mps":
        return device
    return replace(device, memory_bytes=round(gib * GIB), usable_bytes=metal_bytes(gib * GIB))


def metal_bytes(memory_bytes: float) -> int:
    """What Metal lets a program take of an Apple machine's memory: three quarters from 36 GB on, two thirds below.

    recommendedMaxWorkingSetSize, read in MiB: 10,922.67 of 16 GB (abetlen/llama-cpp-python#687), 21,845.34 of 32
    (ollama/ollama#434), 49,152 of 64 (ggml-org/llama.cpp#1870), 73,728 of 96 (ggml-org/llama.cpp#3213).

    >>> round(metal_bytes(16 * GIB) / 2**20, 2)
    10922.67
    """
    return round(memory_bytes * (0.75 if memory_bytes >= 36 * GIB else 2 / 3))


def _keys(device: Device) -> set[tuple[str, float | None]]:
    return {name_key(device.name), *map(name_key, device.aliases)}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _tera(text: str) -> float | None:
    value = _number(text)
    return None if value is None else value * 1e12


def _from_row(row: dict[str, str]) -> Device:
    memory = float(row["vram_gib"]) * GIB
    return Device(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        rate_class=row["rate_class"],
        memory_bytes=round(memory),
        usable_bytes=_usable(row, memory),
        bandwidth=float(row["mem_bw_gbs"]) * 1e9,
        bf16_flops=_tera(row["bf16_fp32acc_tflops"]),
        fp16_flops=_tera(row["fp16_fp32acc_tflops"]),
        tf32_flops=_tera(row["tf32_tflops"]),
        fp32_flops=float(row["fp32_nontensor_tflops"]) * 1e12,
        tdp_watts=float(row["tdp_w"]),
        units=int(row["sm_count"] or 1),
        bf16_native=row["bf16_native"] == "1",
        confidence=row["confidence"],
        source=row["source"],
        checked=row["checked"],
        note=row["note"],
        aliases=tuple(filter(None, row["aliases"].split(";"))),
        cache_bytes=round((_number(row["l2_mb"]) or 0.0) * MIB),
    )


def _usable(row: dict[str, str], memory: float) -> int:
    if row["torch_total_gib_est"]:
        return round(float(row["torch_total_gib_est"]) * GIB)
    if row["rate_class"] in ("apple", "cpu"):
        return metal_bytes(memory) if row["rate_class"] == "apple" else round(memory)
    return usable(memory)


def usable(memory_bytes: float) -> int:
    """What torch reports of a card's memory: 1.5–2.5 % less than sold (median of the table's own readings)."""
    return round(memory_bytes * 0.98)


def card(entry: dict[str, object], path: Path) -> Device:
    """A Device from a user's TOML table; what it leaves out is taken from the card it says it is `like`."""
    own = dict(entry)
    like = own.pop("like", None)
    name = str(own.pop("name"))
    if like is not None:
        shipped = {name_key(row["name"]): row for row in table("gpus")}
        if name_key(str(like)) not in shipped:
            raise UserError(
                f"{path.name}: {name!r} is like an unknown card {like!r}",
                hint="`onecard gpus` lists them all",
            )
        device = _from_row(shipped[name_key(str(like))])
    else:
        missing = [
            key for key in ("memory_gib", "bandwidth_gbs", "fp32_tflops", "watts") if key not in own
        ]
        if missing:
            raise UserError(
                f"{path.name}: {name!r} lacks {', '.join(missing)}",
                hint='give them, or like = "RTX 4070"',
            )
        device = Device(
            name, "user", "user", "user", 0, 0, 0, None, None, None, 0, 0, 1, False, "C", "", ""
        )
    numbers = {key: float(value) for key, value in own.items() if isinstance(value, int | float)}
    changes: dict[str, object] = {
        "name": name,
        "aliases": (),
        "source": f"your own {path.name}",
        "confidence": "C",
        "note": "",
    }
    if "memory_gib" in numbers:
        memory = numbers["memory_gib"] * GIB
        changes |= {"memory_bytes": round(memory), "usable_bytes": usable(memory)}
    if "bandwidth_gbs" in numbers:
        changes["bandwidth"] = numbers["bandwidth_gbs"] * 1e9
    for dtype in ("bf16", "fp16", "tf32", "fp32"):
        if f"{dtype}_tflops" in numbers:
            changes[f"{dtype}_flops"] = numbers[f"{dtype}_tflops"] * 1e12
    if "bf16_tflops" in numbers:
        changes["bf16_native"] = True
    if "watts" in numbers:
        changes["tdp_watts"] = numbers["watts"]
    return replace(device, **changes)  # type: ignore[arg-type]
