"""What the tests on cards read of a run."""

import json
from pathlib import Path

from onecard.config import RunConfig


def log_of(config: RunConfig) -> list[dict]:
    lines = (Path(config.out_dir) / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
