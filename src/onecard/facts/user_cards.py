"""Cards that a user adds in a small TOML file, `gpus.toml` in onecard's config folder or any file given to --gpu:

[[gpu]]
name = "RTX 4070 at 160 W"
like = "RTX 4070"        # everything else as this card; without it, give the figures below
memory_gib = 12
bandwidth_gbs = 504
bf16_tflops = 58.3
fp32_tflops = 29.1
watts = 160
"""

import os
import sys
import tomllib
from pathlib import Path

from onecard.errors import UserError, nearest

_KEYS = (
    "name",
    "like",
    "memory_gib",
    "bandwidth_gbs",
    "bf16_tflops",
    "fp16_tflops",
    "tf32_tflops",
    "fp32_tflops",
    "watts",
)


def config_folder() -> Path:
    """Where a user's own facts and calibrations live; ONECARD_HOME overrides the system's convention."""
    if home := os.environ.get("ONECARD_HOME"):
        return Path(home)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home() / "AppData" / "Roaming")) / "onecard"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "onecard"
    return Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config")) / "onecard"


def user_cards_file() -> Path:
    return config_folder() / "gpus.toml"


def read_user_cards(path: Path, must_exist: bool = False) -> list[dict[str, object]]:
    """The [[gpu]] tables of the file, checked key by key."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise UserError(
                f"{path} is not a file", hint="`onecard gpus --help` shows what it holds"
            )
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise UserError(
                f"no card file {path}", hint="`onecard gpus --help` shows what it holds"
            ) from None
        return []
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # a number of 5,000 digits is a plain ValueError
        why = getattr(error, "strerror", None) or str(error).partition(";")[0]
        raise UserError(
            f"cannot read {path}: {why}", hint="`onecard gpus --help` shows what it holds"
        ) from None
    if not content and not must_exist:
        return []  # nothing in it, or only comments
    entries = content.get("gpu", [])
    if (
        not isinstance(entries, list)
        or not entries
        or not all(isinstance(entry, dict) for entry in entries)
    ):
        raise UserError(
            f"{path.name} has no [[gpu]] table", hint="`onecard gpus --help` shows what it holds"
        )
    for entry in entries:
        for key, value in entry.items():
            if key not in _KEYS:
                raise UserError(
                    f"{path.name}: unknown key {key!r}",
                    hint=nearest(key, _KEYS) or f"known: {', '.join(_KEYS)}",
                )
            wanted = str if key in ("name", "like") else int | float
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise UserError(
                    f"{path.name}: {key} = {value!r} is of the wrong kind",
                    hint="names are text, the rest numbers",
                )
            if not isinstance(value, str) and not 0 < value < 1e7:
                raise UserError(
                    f"{path.name}: {key} = {value} must be above 0",
                    hint="in GiB, GB/s, TFLOPS and watts",
                )
        if not entry.get("name"):
            raise UserError(f"{path.name}: a [[gpu]] without a name", hint='add name = "…"')
    return entries
