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
from onecard.untrusted import read_bytes

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


_MOST_BYTES = 200_000  # a card is ten lines


def find_config_folder() -> Path | None:
    """Where a user's own cards and calibrations are; None for an account without a home folder (containers, jobs)."""
    if home := os.environ.get("ONECARD_HOME"):
        return Path(home)
    base = os.environ.get({"win32": "APPDATA", "darwin": ""}.get(sys.platform, "XDG_CONFIG_HOME"))
    if base:
        return Path(base) / "onecard"
    try:
        home_folder = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "win32":
        return home_folder / "AppData" / "Roaming" / "onecard"
    if sys.platform == "darwin":
        return home_folder / "Library" / "Application Support" / "onecard"
    return home_folder / ".config" / "onecard"


def config_folder() -> Path:
    """The folder to write to; ONECARD_HOME overrides the system's convention."""
    folder = find_config_folder()
    if folder is None:
        raise UserError(
            "this account has no home folder to keep settings in",
            hint="set ONECARD_HOME to a folder",
        )
    return folder


def user_cards_file() -> Path:
    return config_folder() / "gpus.toml"


def own_cards() -> list[dict[str, object]]:
    """The cards of the user's own file; none where there is no such file or no home folder."""
    return read_user_cards(user_cards_file()) if find_config_folder() is not None else []


def read_user_cards(path: Path, must_exist: bool = False) -> list[dict[str, object]]:
    """The [[gpu]] tables of the file, checked key by key."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would never end
            raise UserError(
                f"{path} is not a file", hint="`onecard gpus --help` shows what it holds"
            )
        content = tomllib.loads(read_bytes(path, _MOST_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        if must_exist:
            raise UserError(
                f"no card file {path}", hint="`onecard gpus --help` shows what it holds"
            ) from None
        return []
    except (OSError, ValueError, RecursionError) as error:
        # a number of 5,000 digits is a plain ValueError
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
                    f"{path.name}: {key} = {value!r} has the wrong type",
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
