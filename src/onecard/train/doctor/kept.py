"""Fall-backs that the doctor found, one file a device in the config folder; the next `train` takes them.

They hold for one device, torch and driver: after an update of any the device counts as new.
"""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onecard.config import RunConfig
from onecard.facts.user_cards import config_folder
from onecard.files import write_json
from onecard.train.doctor.answers import Answers, Check
from onecard.untrusted import read_json

SCHEMA = "onecard.doctor/1"
# What a file may ask of a run: only what makes it slower and safer.
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "compile": (False,),
    "dtype": ("bfloat16", "float16", "float32"),
    "attention": ("math",),
}


@dataclass(frozen=True)
class Kept:
    device: str
    torch: str
    driver: str | None
    settings: dict[str, Any]
    reasons: dict[str, str]


def file_of(answers: Answers) -> Path:
    word = re.sub(r"[^a-z0-9]+", "-", answers.name.lower()).strip("-")[:80]
    return config_folder() / "devices" / f"{word}.json"


def keep(answers: Answers, checks: list[Check]) -> Kept:
    settings: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for check in checks:
        for key, value in check.settings:
            settings.setdefault(key, value)
            reasons.setdefault(key, check.detail)
    kept = Kept(answers.name, answers.torch_version, answers.driver, settings, reasons)
    path = file_of(answers)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"schema": SCHEMA, **asdict(kept)})
    return kept


def kept_for(answers: Answers) -> Kept | None:
    """What is known of this device; None where it is new, was updated, or the file is damaged."""
    try:
        content = read_json(file_of(answers), 100_000)
        if content.pop("schema") != SCHEMA:
            return None
        kept = Kept(**content)
        settings = {
            key: value
            for key, value in kept.settings.items()
            if any(value is allowed or value == allowed for allowed in _ALLOWED.get(key, ()))
        }
    except (OSError, ValueError, TypeError, AttributeError, KeyError):
        return None
    same = (kept.device, kept.torch, kept.driver) == (
        answers.name,
        answers.torch_version,
        answers.driver,
    )
    return replace(kept, settings=settings) if same else None


def with_fallbacks(config: RunConfig, kept: Kept) -> tuple[RunConfig, list[str]]:
    """The config as this device can run it, and a sentence for each change; what a user asked for by name stays."""
    changes: dict[str, Any] = {}
    for key, value in kept.settings.items():
        asked = getattr(config, key)
        if asked != value and (key != "dtype" or asked == "auto"):
            changes[key] = value
    lines = [
        f"{key}: {value}, as `onecard doctor` found ({kept.reasons.get(key, 'see there')})"
        for key, value in changes.items()
    ]
    return (config.replace(**changes) if changes else config), lines
