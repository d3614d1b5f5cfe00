"""A run's folder for tests: written as `onecard train` writes it, not begun and not held by a process."""

from pathlib import Path
from typing import Any

from onecard.config import RunConfig
from onecard.planner.result import RunPlan
from onecard.runs.record import RunRecord


def new_folder(
    path: Path,
    config: RunConfig,
    plan: RunPlan | None = None,
    environment: dict[str, Any] | None = None,
) -> RunRecord:
    record = RunRecord(path)
    record.write_new(config, plan, environment or {})
    record._lock.release()
    return record
