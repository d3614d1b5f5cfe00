"""docs/runs.md names every rule, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_rule_is_in_the_table():
    sources = [
        *(ROOT / "src/onecard/runs/explain").glob("*.py"),
        ROOT / "src/onecard/runs/resolve.py",
        ROOT / "src/onecard/runs/compare.py",
    ]
    found = set()
    for source in sources:
        found |= set(re.findall(r'Note\(\s*"([a-z0-9-]+)"', source.read_text(encoding="utf-8")))
    found = {
        code
        for code in found
        if not code.startswith(
            ("effect-", "micro-batch-gain", "micro-batch-level", "micro-batch-too-large")
        )
    }
    table = (
        (ROOT / "docs/runs.md").read_text(encoding="utf-8").split("## The rules of `explain`")[1]
    )
    assert (
        set(
            re.findall(
                r"`([a-z0-9]+(?:-[a-z0-9]+)+|unreadable|resumed|gaps|accumulation|recompiles|stuck|diverging|spikes|"
                r"overfitting|benchmark|forgotten)`",
                table,
            )
        )
        == found
    )
