"""Where calibrations are kept: `calibrations/` in the user's config folder, one JSON file a device, torch and power limit.

`load_calibration(device)` is what a plan asks; it reads a few small files and nothing else. docs/formats.md has the format.
"""

import json
import math
import os
import re
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from onecard.facts.gpus import Device
from onecard.facts.user_cards import config_folder
from onecard.messages import Note
from onecard.plan.calibration import PART_OF, Calibration, Costs, Observation
from onecard.plan.workload import Workload

SCHEMA = "onecard.calibration/1"
_MOST_BYTES = 1_000_000  # ours are a few kilobytes
_SAME_MEMORY = 0.02  # a kernel's own share moves with its version


def calibrations_folder() -> Path:
    return config_folder() / "calibrations"


def torch_version() -> str | None:
    """The installed torch, without importing it; None where there is none."""
    from importlib import metadata  # a tenth of a plan's time, and a plan for a named card needs none of it

    try:
        return metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def file_of(calibration: Calibration) -> Path:
    limit = calibration.power_limit_watts
    words = f"{calibration.device} torch {calibration.torch} {'' if limit is None else f'{limit:.0f} W'}"
    return calibrations_folder() / (re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-") + ".json")


def load_calibration(device: Device, notes: list[Note] | None = None) -> Calibration | None:
    """The newest calibration of this very device under this torch and power limit; what was ignored goes to `notes`."""
    if not _is_this_machines(device):
        return None
    good = [found for _, found in read_calibrations(notes) if _matches(found, device)]
    return max(good, key=lambda found: found.date, default=None)


def read_calibrations(notes: list[Note] | None = None) -> list[tuple[Path, Calibration]]:
    """Every calibration in the folder; a file that is none gets a sentence in `notes`."""
    found = []
    for path in sorted(calibrations_folder().glob("*.json")):
        try:
            found.append((path, read_calibration(path)))
        except (OSError, ValueError, RecursionError) as error:
            if notes is not None:
                notes.append(
                    Note("calibration-ignored", "the calibration {file} was ignored ({why}); `onecard probe` makes a new one",
                         file=path.name, why=str(error))
                )  # fmt: skip
    return found


def read_calibration(path: Path) -> Calibration:
    """A file's Calibration; ValueError says in a few words why it is none."""
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError("too large")
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
    except ValueError:
        raise ValueError("not JSON") from None
    return from_json(content)


def write_calibration(calibration: Calibration) -> Path:
    """Write the file in one piece: whoever reads meanwhile, or is interrupted here, has the old one."""
    path = file_of(calibration)
    path.parent.mkdir(parents=True, exist_ok=True)
    import tempfile

    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(to_json(calibration), indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return path


def to_json(calibration: Calibration) -> dict[str, Any]:
    plain = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    seen = [{"workload": _changed(o.work), "seconds": o.seconds} for o in calibration.observations]
    runs = [{"mode": mode, "ratio": ratio} for mode, ratio in calibration.runs]
    return {"schema": SCHEMA, **plain, "observations": seen, "runs": runs}


def from_json(content: Any) -> Calibration:
    """Checked field by field: a file may come from anywhere."""
    if not isinstance(content, dict):
        raise ValueError("not a calibration")
    if content.get("schema") != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    limit = content.get("power_limit_watts")
    costs = {mode: _costs(each) for mode, each in _table(content, "costs").items()}
    spread = {mode: _number(each, "spread", most=10) for mode, each in _table(content, "spread").items()}
    if "eager" not in costs or set(costs) != set(spread):
        raise ValueError("it has no costs")
    return Calibration(
        device=_text(content, "device"),
        memory_bytes=int(_number(content.get("memory_bytes"), "memory_bytes")),
        torch=_text(content, "torch"),
        power_limit_watts=None if limit is None else _number(limit, "power_limit_watts"),
        date=_text(content, "date"),
        dtype=_text(content, "dtype"),
        rates={name: _number(rate, "rates") for name, rate in _table(content, "rates").items()},
        host_seconds=_number(content.get("host_seconds"), "host_seconds", most=1),
        costs=costs,
        spread=spread,
        observations=tuple(_observation(each) for each in _list(content, "observations")),
        runs=tuple(_run(each) for each in _list(content, "runs")),
    )


def _is_this_machines(device: Device) -> bool:
    """A card that a driver described, or a processor; a row of the table is somebody else's."""
    return device.taken_bytes is not None or device.power_limit_watts is not None or device.kind in ("cpu", "mps")


def _matches(found: Calibration, device: Device) -> bool:
    watts, limit = found.power_limit_watts, device.power_limit_watts
    return (
        found.device == device.name
        and abs(found.memory_bytes - device.usable_bytes) <= _SAME_MEMORY * device.usable_bytes
        and ((watts is None and limit is None) or (watts is not None and limit is not None and abs(watts - limit) < 1))
        and found.torch == torch_version()
    )


def _changed(w: Workload) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    defaults = {field.name: field.default for field in fields(w)}
    return {name: value for name, value in asdict(w).items() if value != defaults[name]}


def _table(content: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(content.get(key), dict):
        raise ValueError(f"{key} is missing")
    table: dict[str, Any] = content[key]
    return table


def _list(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = content.get(key)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError(f"{key} is missing")
    return found


def _text(content: dict[str, Any], key: str) -> str:
    if not isinstance(content.get(key), str):
        raise ValueError(f"{key} is missing")
    text: str = content[key]
    return text


def _number(value: Any, name: str, most: float = 1e24) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 <= value < most
    ):
        raise ValueError(f"{name} holds no measurement")
    return float(value)


def _costs(content: Any) -> Costs:
    if not isinstance(content, dict) or set(content) != set(PART_OF):
        raise ValueError("its costs are another version's")
    costs = {kind: _number(content[kind], "costs", most=10) for kind in PART_OF}
    if not costs["blocks"] + costs["layers"] > 0:
        raise ValueError("its costs are nothing")
    return costs


def _observation(content: dict[str, Any]) -> Observation:
    given = _table(content, "workload")
    defaults = {field.name: field.default for field in fields(Workload)}
    for name, value in given.items():
        if name not in defaults:
            raise ValueError(f"an observation has an unknown {name!r}")
        if defaults[name] is MISSING:
            _number(value, name)
        elif type(value) is not (int if defaults[name] is None else type(defaults[name])):
            raise ValueError(f"an observation's {name} is of the wrong kind")
    if missing := [name for name, default in defaults.items() if default is MISSING and name not in given]:
        raise ValueError(f"an observation has no {missing[0]}")
    return Observation(Workload(**given), _number(content.get("seconds"), "seconds"))


def _run(content: dict[str, Any]) -> tuple[str, float]:
    ratio = _number(content.get("ratio"), "ratio", most=100)
    if ratio <= 0:
        raise ValueError("ratio holds no measurement")
    return _text(content, "mode"), ratio
