"""Report files of `onecard doctor --report`, read as runs of onecard's own: a step, its config and what it took.

    python -m fit.speed --reports DIR       fit on these as well
    python -m fit.memory --reports DIR

>>> read_report(Path("nowhere.json"))
Traceback (most recent call last):
    ...
ValueError: nowhere.json cannot be read
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fit.runs import Run, all_runs
from onecard.config import RunConfig
from onecard.errors import UserError
from onecard.facts.gpus import Device
from onecard.facts.here import find_seen
from onecard.planner.workload import Workload
from onecard.untrusted import printable, read_json

SCHEMA = "onecard.hardware/1"
FAMILY = "onecard-doctor"
_MOST_BYTES = 1_000_000
_MOST_SECONDS = 1e4
_WARM_UP = 3  # steps that also start kernels and the loader
_FEWEST = 3  # steps after those


def read_report(path: Path) -> dict[str, Any]:
    """The file's content, checked; ValueError in a few words where it is none."""
    try:
        content = read_json(path, _MOST_BYTES)
    except OSError:
        raise ValueError(f"{path.name} cannot be read") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path.name} is no report of `onecard doctor`")
    if not isinstance(content.get("checks"), list):
        raise ValueError(f"{path.name} has no checks")
    for key in ("device", "torch", "system", "date", "kind"):
        if not isinstance(content.get(key), str) or len(content[key]) > 200:
            raise ValueError(f"{path.name} has no {key}")
        content[key] = printable(content[key])
    return content


def run_of(name: str, content: dict[str, Any]) -> Run:
    """The report's short run; what keeps it from being fitted on is its `trouble`."""
    bare = Run(name, FAMILY, {}, None, None, None, None, None, quality="A")
    log = content.get("log")
    lines = [line for line in log if isinstance(line, dict)] if isinstance(log, list) else []
    seconds = _figures(lines[_WARM_UP:], "step_seconds", _MOST_SECONDS)
    config, dtype = content.get("config"), content.get("dtype")
    try:
        if len(seconds) < _FEWEST:
            raise UserError("no log of a short run")
        if not isinstance(config, dict) or dtype not in ("bfloat16", "float16", "float32"):
            raise UserError("no config of the short run")
        device = _device(content)
        workload = Workload.on(device, RunConfig.from_values(config), dtype)
    except (UserError, TypeError) as error:
        return Run(**{**vars(bare), "trouble": str(error)})
    peaks = _figures(lines, "memory_bytes", 1e15)
    return Run(
        name,
        FAMILY,
        {"framework": "onecard", "vram_method": "torch max_memory_allocated"},
        workload,
        device,
        statistics.median(seconds),
        max(peaks) / 1e9 if peaks else None,
        None,
        quality="A",
    )


def report_runs(folder: Path) -> list[Run]:
    """Every report in the folder, readable or not."""
    if not folder.is_dir():
        sys.exit(f"{folder} is no folder of reports")
    runs = []
    for file in sorted(folder.glob("*.json"), key=lambda path: path.as_posix()):
        try:
            runs.append(run_of(file.stem, read_report(file)))
        except ValueError as error:
            runs.append(Run(file.stem, FAMILY, {}, None, None, None, None, str(error)))
    return runs


def runs_asked_for(words: Sequence[str]) -> list[Run]:
    """The public runs and, with `--reports DIR` among the words, those of that folder; what is left out is printed."""
    if "--reports" not in words:
        return all_runs()
    rest = words[words.index("--reports") + 1 :]
    if not rest:
        sys.exit("--reports needs a folder")
    reported = report_runs(Path(rest[0]))
    for run in reported:
        if run.trouble:
            print(f"{run.id} is left out: {run.trouble}", file=sys.stderr)
    return all_runs() + reported


def _device(content: dict[str, Any]) -> Device:
    memory = _figures([content], "memory_bytes", 1e15)
    if content["kind"] != "cuda" or not memory:
        raise UserError("not a run on a CUDA card")
    return find_seen(content["device"], int(memory[0]))


def _figures(lines: list[dict[str, Any]], key: str, most: float) -> list[float]:
    values = [line.get(key) for line in lines]
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < most
    ]
