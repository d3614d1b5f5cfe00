"""Where calibrations are kept: `calibrations/` in the user's config folder, one JSON file a device, torch and power limit.

`load_calibration(device)` is what a plan asks; it reads a few small files and nothing else. docs/formats.md has the format.
"""

import re
from functools import cache
from pathlib import Path

from onecard.facts.gpus import Device
from onecard.facts.user_cards import config_folder, find_config_folder
from onecard.messages import Note
from onecard.planner.calibration import Calibration
from onecard.planner.calibration_json import from_json, to_json
from onecard.untrusted import read_json

_FOLDER = "calibrations"
_MOST_BYTES = 1_000_000  # ours are a few kilobytes
_SAME_MEMORY = 0.02  # a kernel's own share moves with its version


def calibrations_folder() -> Path:
    return config_folder() / _FOLDER


def torch_version() -> str | None:
    """The installed torch, without importing it; None where there is none."""
    from importlib import (
        metadata,  # a tenth of a plan's time, and a plan for a named card needs none of it
    )

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
    calibrations = read_calibrations(notes)
    good = [each for _, each in calibrations if not _difference(each, device)]
    # beside a good one, those of other devices and former torches are no news
    if notes is not None and not good:
        notes += [
            _ignored(path, difference)
            for path, each in calibrations
            if (difference := _difference(each, device))
        ]
    best = max(good, key=lambda each: each.date, default=None)
    if notes is not None and best is not None and (note := disturbance(best)):
        notes.append(note)
    return best


@cache
def known_calibration(device: Device) -> Calibration | None:
    """The same, read once in this process, until a probe of its own writes another: for searches."""
    return load_calibration(device)


def disturbance(calibration: Calibration) -> Note | None:
    """What to say of a probe whose own steps contradict each other."""
    if calibration.disturbed is None:
        return None
    return Note(
        "calibration-disturbed",
        off=calibration.disturbed,
    )


def read_calibrations(notes: list[Note] | None = None) -> list[tuple[Path, Calibration]]:
    """Every calibration in the folder; a file that is none gets a sentence in `notes`."""
    folder = find_config_folder()
    calibrations: list[tuple[Path, Calibration]] = []
    if folder is None:
        return calibrations
    for path in sorted((folder / _FOLDER).glob("*.json")):
        try:
            calibrations.append((path, read_calibration(path)))
        except (OSError, ValueError, RecursionError) as error:
            if notes is not None:
                notes.append(_ignored(path, str(error)))
    return calibrations


def _ignored(path: Path, why: str | Note) -> Note:
    return Note(
        "calibration-ignored",
        file=path.name,
        why=why,
    )


def read_calibration(path: Path) -> Calibration:
    """A file's Calibration; ValueError says in a few words why it is none."""
    if not path.is_file():
        raise ValueError("not a file")
    try:
        content = read_json(path, _MOST_BYTES)
    except ValueError:
        raise ValueError("not JSON, or too large") from None
    return from_json(content)


def write_calibration(calibration: Calibration) -> Path:
    """Write the file in one piece: whoever reads meanwhile, or is interrupted here, has the old one."""
    path = file_of(calibration)
    from onecard.files import write_json  # loads modules that planning has no use for

    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(calibration))
    known_calibration.cache_clear()
    return path


def _is_this_machines(device: Device) -> bool:
    """A card that a driver described, or a processor; a row of the table is somebody else's."""
    return (
        device.taken_bytes is not None
        or device.power_limit_watts is not None
        or device.kind in ("cpu", "mps")
    )


def _difference(calibration: Calibration, device: Device) -> Note | None:
    """What keeps a calibration from this device; None where it is of this very one."""
    watts, limit = calibration.power_limit_watts, device.power_limit_watts
    if calibration.device != device.name:
        return Note("calibration-of-another", other=calibration.device, this=device.name)
    if abs(calibration.memory_bytes - device.usable_bytes) > _SAME_MEMORY * device.usable_bytes:
        return Note(
            "calibration-other-memory", other=calibration.memory_bytes, this=device.usable_bytes
        )
    if watts is None and limit is not None:
        return Note("calibration-limit-unknown", now=limit)
    if watts is not None and limit is None:
        return Note("calibration-limit-unread", was=watts)
    if watts is not None and limit is not None and abs(watts - limit) >= 1:
        return Note("calibration-other-limit", was=watts, now=limit)
    if calibration.torch != (now := torch_version()):
        if now is None:
            return Note("calibration-no-torch", was=calibration.torch)
        return Note("calibration-other-torch", was=calibration.torch, now=now)
    return None
