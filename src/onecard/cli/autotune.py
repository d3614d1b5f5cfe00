"""`onecard probe --autotune CONFIG` and `onecard train --autotune`: measure what is faster here, and write it down."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from onecard.cli.terminal import console, progress_bar
from onecard.config import RunConfig, load, to_toml
from onecard.errors import UserError
from onecard.files import write_text
from onecard.model import machine
from onecard.planner.calibration import refine
from onecard.planner.calibration_file import load_calibration, write_calibration
from onecard.streams import to_stream
from onecard.train.autotune import SECONDS, Tuning, autotune
from onecard.train.autotune_choices import measured, words
from onecard.units import parse_duration, show_duration

SHORTEST = 10.0  # seconds of a search that can find anything
PAYS_BACK = 10.0  # `train --autotune` searches for at most a tenth of the planned time


def run_autotune(args: argparse.Namespace) -> int:
    path = Path(args.autotune)
    target = Path(args.out) if args.out else path if path.is_file() else None
    config, limit = load(args.autotune), parse_duration(args.limit)
    with progress_bar(quiet=args.json) as tell:
        tuning = autotune(config, limit, tell, args.device, args.fp8)
    if target is not None and tuning.changes:
        write_changes(path if path.is_file() else None, target, tuning)
    calibrated = feed_calibration(tuning, args.device)
    if args.json:
        print(json.dumps({**_as_json(tuning), "written": str(target) if target else None}))
        return 0
    show(tuning)
    if tuning.changes:
        print(f"written to {target}" if target else "a preset is not written: --out FILE keeps it")
    if calibrated:
        print("the calibration of this device was refined by it")
    return 0


def tuned_before_run(config: RunConfig, planned_seconds: float, quiet: bool) -> RunConfig:
    """The config with the fastest settings found; as it is where the run is too short for a search to pay back."""
    limit = min(SECONDS, planned_seconds / PAYS_BACK)
    if limit < SHORTEST:
        if not quiet:
            to_stream(sys.stdout, "--autotune: the run is too short for a search to pay back")
        return config
    with progress_bar(quiet=quiet) as tell:
        tuning = autotune(config, limit, tell)
    if not quiet:
        show(tuning)
    return tuning.config


def write_changes(source: Path | None, target: Path, tuning: Tuning) -> None:
    """The changed keys in place, all else as it stands; a preset's config in full."""
    if source is None or source.suffix != target.suffix:
        if target.suffix != ".toml":
            raise UserError(f"{target.name} is no .toml file", hint="--out run.toml")
        write_text(target, to_toml(tuning.config))
        return
    text = source.read_text(encoding="utf-8")
    for key, value in tuning.changes.items():
        text = _with_key(text, key, value, python=source.suffix == ".py")
    write_text(target, text)


def _with_key(text: str, key: str, value: Any, python: bool) -> str:
    shown = repr(value) if python or not isinstance(value, bool) else str(value).lower()
    if isinstance(value, str):
        shown = json.dumps(value)
    lines = text.split("\n")
    for number, line in enumerate(lines):
        name, equals, value_and_comment = line.partition("=")
        if equals and name.rstrip() == key:
            _, mark, comment = value_and_comment.partition("#")
            lines[number] = f"{key} = {shown}" + (f"  #{comment}" if mark else "")
            return "\n".join(lines)
    if python:
        return f"{text.rstrip()}\n{key} = {shown}\n"
    return f"{key} = {shown}\n{text}"  # a TOML key belongs before the first table


def feed_calibration(tuning: Tuning, asked: str) -> bool:
    """What the winner's step took, for the next plan; where nothing was probed there is nothing to refine."""
    device = machine.choose_device(asked if asked != "auto" else tuning.config.device)
    known = load_calibration(machine.facts_of(device))
    usual = tuning.config.threads is None and tuning.config.affinity == "none"
    if known is None or not usual:
        return False
    write_calibration(refine(known, measured(tuning.config, tuning.rows), tuning.after_seconds))
    return True


def show(tuning: Tuning) -> None:
    out = console()
    out.print(_table(tuning))
    if tuning.changes:
        out.print(f"[bold]{tuning.gain:.2f} times as fast[/] with {words(tuning.changes)}")
    else:
        out.print(
            "[bold]nothing more is to be gained[/]: the config's own settings are the fastest"
        )
    out.print(
        f"searched for {show_duration(tuning.spent_seconds)}, steps of {tuning.rows} sequences"
    )


def _table(tuning: Tuning) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("tried")
    for title in ("step", "steps", "beside it", "gain"):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in tuning.trials:
        taken = trial.seconds
        gain = beside = shown = "–"
        if taken is not None:
            shown = show_duration(taken)
        if taken is not None and trial.against is not None:
            beside, gain = show_duration(trial.against), f"{trial.against / taken:.2f} ×"
        what = words(trial.changes) + (f"  ({trial.note})" if trial.note else "")
        table.add_row(what, shown, str(trial.steps), beside, gain)
    return table


def _as_json(tuning: Tuning) -> dict[str, Any]:
    """Seconds, not rounded."""
    return {
        "changes": tuning.changes,
        "gain": tuning.gain,
        "before_seconds": tuning.before_seconds,
        "after_seconds": tuning.after_seconds,
        "sequences": tuning.rows,
        "spent_seconds": tuning.spent_seconds,
        "trials": [vars(trial) for trial in tuning.trials],
    }
