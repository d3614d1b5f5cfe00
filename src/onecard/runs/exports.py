"""What was exported from a run, noted in its folder: exports.json, one entry for each target."""

import contextlib
from pathlib import Path
from typing import Any

from onecard.files import write_json
from onecard.untrusted import read_json

FILE = "exports.json"
_MOST = 100
_SHOWN = 200


def note_export(run_folder: Path, to: str, target: Path, step: int) -> None:
    """Add an export; a folder that cannot be written costs the note alone."""
    entry = {"to": to, "path": str(target), "step": step}
    others = [one for one in _entries(run_folder) if one.get("path") != entry["path"]]
    with contextlib.suppress(OSError):
        write_json(run_folder / FILE, [*others, entry][-_MOST:])


def noted_exports(run_folder: Path) -> tuple[str, ...]:
    """The exports of a run in words: "hf: my-model (step 500)"."""
    return tuple(
        f"{str(one.get('to'))[:20]}: {str(one.get('path'))[:_SHOWN]} (step {one.get('step')})"
        for one in _entries(run_folder)
        if isinstance(one.get("step"), int)
    )


def _entries(run_folder: Path) -> list[dict[str, Any]]:
    try:
        entries = read_json(run_folder / FILE, most_bytes=1 << 20)
    except (OSError, ValueError):
        return []
    return [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
