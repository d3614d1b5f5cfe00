"""How long `onecard plan` takes beside `python -c "import torch"`, alternating, medians; and that it imports neither.

python bench/plan_speed.py [--rounds 9]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# pip writes byte code when it installs; an editable tree gets its own in the first, unmeasured round
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *command], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    return time.perf_counter() - start


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
    ours, theirs = zip(
        *((seconds(*plan), seconds(*torch)) for _ in range(args.rounds)), strict=True
    )
    code = "import sys; from onecard.cli import main; main(sys.argv[1:]); print(*(m for m in ('torch', 'numpy') if m in sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *plan[2:]], capture_output=True, text=True, check=True
    )
    answer = {
        "plan_seconds": statistics.median(ours),
        "import_torch_seconds": statistics.median(theirs),
        "ratio": statistics.median(theirs) / statistics.median(ours),
        "heavy_imports": done.stderr.split(),
    }
    print(
        json.dumps(answer)
        if args.json
        else "\n".join(f"{key:22} {value}" for key, value in answer.items())
    )
    return int(answer["ratio"] < 8 or bool(answer["heavy_imports"]))


if __name__ == "__main__":
    sys.exit(main())
