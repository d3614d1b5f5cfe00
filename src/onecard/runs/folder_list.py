"""The run folders below a folder, a row each.

for row in list_runs(["."]): print(row["path"], row["state"], row["loss"])
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onecard.errors import UserError
from onecard.facts.prices import Price, electricity
from onecard.runs.eval_results import main_figure, newest
from onecard.runs.folder import read_folder
from onecard.runs.record import RunRecord, is_run_folder
from onecard.runs.run import Run
from onecard.units import HOUR

_DEEPEST = 6  # folders below; runs and exports are not hidden deeper
_SKIPPED = {"checkpoints", "samples", "evals", "node_modules", "__pycache__"}


def list_runs(folders: list[str], price: Price | None = None) -> list[dict[str, Any]]:
    """Each run below the folders: path, state, step, loss, hours, kWh and cost; None where nothing was logged yet."""
    price = price or electricity("WORLD")
    rows: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        if not Path(folder).is_dir():
            raise UserError(
                f"no folder {folder!r}", hint="name a folder that holds runs, or none for this one"
            )
        for path in run_folders(Path(folder)):
            if path.resolve() not in rows:
                rows[path.resolve()] = _row(path, price)
    return list(rows.values())


def run_folders(folder: Path) -> Iterator[Path]:
    """The run folders below a folder."""
    return (path for path, _ in folders_below(folder) if is_run_folder(path))


def folders_below(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder and those below it, with the names of their files; links to folders are not followed."""
    for here, inner, files in os.walk(root):
        path = Path(here)
        yield path, files
        deep = len(path.parts) - len(root.parts) >= _DEEPEST
        kept = (name for name in inner if name not in _SKIPPED and not name.startswith("."))
        inner[:] = [] if deep else sorted(kept)


def _row(path: Path, price: Price) -> dict[str, Any]:
    run = read_folder(path)
    row: dict[str, Any] = {
        "path": str(path),
        "state": RunRecord(path).state,
        "step": None,
        "max_steps": None,
        "loss": None,
        "kind": None,
        "hours": None,
        "kwh": None,
        "cost": None,
        "currency": price.currency,
        "unreadable_lines": 0,
        "evals": {},
    }
    if run is None:
        return row
    val = next((e.val_loss for e in reversed(run.evals) if e.val_loss is not None), None)
    train = run.curve.loss_at(run.curve.steps[-1]) if run.curve.steps else None
    seconds = run.wall_seconds or (run.curve.seconds[-1] if run.curve.seconds else None)
    row |= {
        "step": run.last_step,
        "max_steps": run.max_steps,
        "loss": val if val is not None else train.value if train else None,
        "kind": "val" if val is not None else "train" if train else None,
        "hours": seconds / HOUR if seconds is not None else None,
        "kwh": run.kwh,
        "cost": run.kwh * price.per_kwh if run.kwh is not None else None,
        "unreadable_lines": run.unreadable,
        "evals": _evals(run),
    }
    return row


def _evals(run: Run) -> dict[str, Any]:
    """The newest result of each task: its main figure."""
    results = {}
    for task, result in newest(list(run.results)).items():
        figure = main_figure(result)
        if figure is not None:
            results[task] = {"figure": figure.name, "value": figure.value, "step": result.step}
    return results
