"""How long `onecard plan` takes beside `python -c "import torch"`, alternating, medians; and that it imports neither.

By the clock, and in processor time, which other programs on the machine disturb less.

python bench/plan_speed.py [--rounds 9]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

# pip writes byte code when it installs; an editable tree gets its own in the first, unmeasured round
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(*command: str) -> tuple[float, float]:
    """By the clock and of the processor."""
    start, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    passed, after = time.perf_counter() - start, os.times()
    used = after.children_user + after.children_system
    return passed, used - before.children_user - before.children_system


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    plan = ("-m", "onecard", "plan", "train_gpt2", "--gpu", "RTX 4070")
    torch = ("-c", "import torch")
    seconds(*plan), seconds(*torch)  # warm the disk cache
    rounds = [(seconds(*plan), seconds(*torch)) for _ in range(args.rounds)]
    clock, processor = (
        [statistics.median(both[who][kind] for both in rounds) for who in (0, 1)] for kind in (0, 1)
    )
    code = "import sys; from onecard.cli import main; main(sys.argv[1:]); print(*(m for m in ('torch', 'numpy') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *plan[2:]], capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = {
        "plan_seconds": clock[0],
        "import_torch_seconds": clock[1],
        "ratio": clock[1] / clock[0],
        "plan_processor_seconds": processor[0],
        "import_torch_processor_seconds": processor[1],
        "processor_ratio": processor[1] / processor[0],
        "heavy_imports": done.stderr.split(),
    }
    print(
        json.dumps(answer)
        if args.json
        else "\n".join(f"{key:32} {value}" for key, value in answer.items())
    )
    slow = min(answer["ratio"], answer["processor_ratio"]) < 8
    return int(slow or bool(answer["heavy_imports"]))


if __name__ == "__main__":
    sys.exit(main())
