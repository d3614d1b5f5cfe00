"""Calibration: what `onecard probe` measured on a machine's own card, kept as JSON in the user's config folder.

One file a device, torch version and power limit; in it, per dtype and mode (eager, compiled), what each kind of work costs
there. A corrupt or foreign file is ignored with a warning, never an error.

>>> c = Calibration("CPU, 2 cores", "2.13.0", None, "2026-01-01", 0, {}, 2e10, 5e-6)
>>> from_json(json.loads(to_json(c))) == c
True
"""

import json
import math
import re
import warnings
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from onecard.facts.gpus import Device
from onecard.facts.user_cards import config_folder
from onecard.plan.flops import attention_flops
from onecard.plan.workload import Workload

SCHEMA = "onecard.calibration/1"
WORK = ("layers", "head", "attention", "memory", "launch", "optimizer")


@dataclass(frozen=True)
class Mode:
    """The cost of each kind of work for one dtype, eager or compiled; see `work`."""

    costs: dict[str, float]  # seconds per unit of `work`
    error: float  # median relative miss of the probed steps themselves
    steps: int  # how many shapes were timed


@dataclass(frozen=True)
class Calibration:
    device: str
    torch: str
    power_limit_watts: float | None
    date: str
    seconds: float  # that the probe took
    matmul: dict[str, list[tuple[float, float]]]  # per dtype: (width, FLOP/s) of width × width matmuls
    bandwidth: float  # bytes per second of a large copy
    launch_seconds: float  # of the smallest kernel
    modes: dict[str, Mode] | None = None  # "float32/eager"

    def mode(self, w: Workload) -> Mode | None:
        return (self.modes or {}).get(mode_key(w))


def mode_key(w: Workload) -> str:
    dtype = "float32" if w.dtype == "tf32" else w.dtype
    return f"{dtype}/{'compiled' if w.compiled else 'eager'}"


def work(
    w: Workload, rates: list[tuple[float, float]], micro_bytes: float, kernels: float, update: float
) -> dict[str, float]:
    """What one step consists of, in units that cost about the same at every shape: matmuls in seconds at the rate that was
    measured for their width, attention in FLOPs, the rest in bytes and kernels."""
    tokens = w.tokens
    again = 1 if w.recompute == "block" else 0
    layers = sum((6 + 2 * again) * tokens * i * o / rate_at(rates, math.sqrt(i * o)) for i, o in w.layer_matrices)
    head = 6.0 * tokens * w.n_embd * w.vocab_size / rate_at(rates, math.sqrt(w.n_embd * w.vocab_size))
    attention = (3.5 + again) * attention_flops(w) * tokens
    steps = w.accumulation
    amounts = (
        w.n_layer * layers * steps,
        head * steps,
        attention * steps,
        micro_bytes * steps,
        kernels * steps,
        update,
    )
    return dict(zip(WORK, amounts, strict=True))


def rate_at(rates: list[tuple[float, float]], width: float) -> float:
    """FLOP/s at a width between those measured: straight in the logarithms, flat beyond the ends."""
    if width <= rates[0][0]:
        return rates[0][1]
    for (w0, r0), (w1, r1) in zip(rates, rates[1:], strict=False):
        if width <= w1:
            share = math.log(width / w0) / math.log(w1 / w0)
            return r0 ** (1 - share) * r1**share
    return rates[-1][1]


def folder() -> Path:
    return config_folder() / "calibrations"


def file_of(device: str, torch: str, power_limit_watts: float | None) -> Path:
    words = [device, f"torch {torch}", f"{power_limit_watts:.0f} W" if power_limit_watts else ""]
    return folder() / (re.sub(r"[^a-z0-9.]+", "-", " ".join(words).lower()).strip("-") + ".json")


def load_calibration(device: Device, torch: str | None = None) -> Calibration | None:
    """The calibration of this very card under this torch and power limit, if it was probed."""
    return _load(file_of(device.name, torch or installed_torch(), device.power_limit_watts), device.name)


def _load(path: Path, device: str) -> Calibration | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        found = from_json(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        warnings.warn(f"ignored {path.name}: no calibration of onecard's ({error})", stacklevel=3)
        return None
    if found.device != device:
        warnings.warn(f"ignored {path.name}: it is for {found.device!r}, not {device!r}", stacklevel=3)
        return None
    return found


@cache
def installed_torch() -> str:
    try:
        return metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return "none"


def to_json(calibration: Calibration) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1) + "\n"


def from_json(content: Any) -> Calibration:
    """A Calibration from what a file held; ValueError says what is wrong with it."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    limit = content["power_limit_watts"]
    modes = content.get("modes")
    return Calibration(
        device=str(content["device"]),
        torch=str(content["torch"]),
        power_limit_watts=None if limit is None else _positive(limit),
        date=str(content["date"]),
        seconds=_number(content["seconds"]),
        matmul={str(dtype): _rates(rates) for dtype, rates in content["matmul"].items()},
        bandwidth=_positive(content["bandwidth"]),
        launch_seconds=_positive(content["launch_seconds"]),
        modes=None if modes is None else {str(key): _mode(mode) for key, mode in modes.items()},
    )


def _mode(content: dict[str, Any]) -> Mode:
    costs = {key: _number(content["costs"][key]) for key in WORK}
    if not any(costs.values()):
        raise ValueError("it says that work costs nothing")
    return Mode(costs, _number(content["error"]), int(_positive(content["steps"])))


def _rates(content: list[list[float]]) -> list[tuple[float, float]]:
    rates = sorted((_positive(width), _positive(rate)) for width, rate in content)
    if not rates:
        raise ValueError("it has no matmul rates")
    return rates


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ValueError(f"{value!r} is no measurement")
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if number == 0:
        raise ValueError("a measurement is 0")
    return number
