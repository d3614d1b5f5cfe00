"""A finished run teaches the calibration: its median step against what the calibration says of it.

>>> refine_from_run(Path("out"))                                           # doctest: +SKIP
PosixPath('…/calibrations/cpu-2-cores-torch-2.13.0.json')
"""

import statistics
from pathlib import Path

from onecard.config import load
from onecard.errors import UserError
from onecard.facts.here import cpu, here
from onecard.planner.calibration import refine
from onecard.planner.calibration_file import load_calibration, write_calibration
from onecard.runs.log import read_log
from onecard.runs.run import DISTURBED

FEWEST_STEPS = 20  # below that, warming up is most of it


def refine_from_run(folder: Path) -> Path | None:
    """The calibration's file with the run's lesson in it; None where there is no calibration or nothing to learn."""
    lines = list(read_log(folder / "log.jsonl"))
    start = next((line for line in reversed(lines) if line.get("kind") == "start"), None)
    if start is None or start.get("processes", 1) != 1:
        return None
    try:
        device = cpu() if str(start.get("device")).startswith("cpu") else here()
    except UserError:  # a card that is not in the table has no plan either
        return None
    known = load_calibration(device)
    if known is None:
        return None
    config = load(folder / "config.toml").replace(dtype=start["dtype"])
    if any(
        line.get("kind") == "event" and str(line.get("text")).startswith("compile: off")
        for line in lines
    ):
        config = config.replace(compile=False)
    # the first warms up
    steps = [line for line in lines if line.get("kind") == "step" and line["step"] > start["step"]][
        1:
    ]
    measured = steps[-1]["step"] - steps[0]["step"] if steps else 0
    if measured < FEWEST_STEPS or any(
        line.get("micro_batch") != config.batch_size for line in steps
    ):
        return None
    waits = [line["cpu_wait"] for line in steps if "cpu_wait" in line]
    if waits and statistics.median(waits) > DISTURBED:  # slower than this machine is
        return None
    learned = refine(known, config, statistics.median(line["step_seconds"] for line in steps))
    return write_calibration(learned) if learned != known else None
