"""How torch's threads wait for each other: what it costs alone, and what it gains beside another program.

    python bench/waiting.py [--steps 20] [--rounds 5] [--write]

Steps of nanoGPT's CPU shape, in processes that differ by OpenMP's settings alone (cli/__init__.py) and take turns. Alone, one
works at a time. Beside another program, as many busy loops as there are cores run as well. The figures are medians of the
rounds' medians, in milliseconds, and their ratio to what torch does by itself.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
POLICIES: dict[str, dict[str, str]] = {
    "torch's own": {},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    "1,000 spins": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"},
}
WORKER = """
import statistics, sys, torch
from onecard.config import RunConfig
from onecard.train.probe import start
turn = start(torch.device("cpu"), RunConfig(n_layer=4, n_head=4, n_embd=128, block_size=64, batch_size=12,
    gradient_accumulation_steps=1, vocab_size=65, compile=False))
turn.steps(3)
print("ready", flush=True)
for line in sys.stdin:
    print(statistics.median(turn.steps(int(line))), flush=True)
"""


BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


class Worker:
    def __init__(self, settings: dict[str, str]):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "KMP_"))}
        path = {"PYTHONPATH": str(ROOT / "src")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**clean, **settings, **path},
            text=True,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def steps(self, count: int) -> float:
        """The median of so many steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def by_turns(workers: dict[str, Worker], steps: int, rounds: int) -> dict[str, float]:
    seen: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            seen[name].append(worker.steps(steps))
    return {name: 1000 * statistics.median(taken) for name, taken in seen.items()}


def measure(steps: int, rounds: int) -> dict[str, Any]:
    workers = {name: Worker(settings) for name, settings in POLICIES.items()}
    alone = by_turns(workers, steps, rounds)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    beside = by_turns(workers, max(2, steps // 4), rounds)
    for each in busy:
        each.kill()
        each.wait()
    for worker in workers.values():
        worker.close()
    return {
        "date": date.today().isoformat(),
        "cores": os.cpu_count(),
        "alone_ms": alone,
        "beside_ms": beside,
    }


def section(result: dict[str, Any]) -> list[str]:
    """For docs/performance.md."""
    rows = [
        "## Steps beside other programs",
        "",
        f"`python bench/waiting.py --write`, {result['date']}, {result['cores']} cores: a step of nanoGPT's CPU shape, by how "
        "torch's threads wait for each other, by turns, medians; × is against what torch does by itself. The command line "
        "chooses passive where the processor is busy when it starts.",
        "",
        "| threads wait | alone, ms | × | beside a busy loop on every core, ms | × |",
        "|---|---:|---:|---:|---:|",
    ]
    alone, beside = result["alone_ms"], result["beside_ms"]
    own, own_beside = alone["torch's own"], beside["torch's own"]
    for name in alone:
        ratio, ratio_beside = alone[name] / own, beside[name] / own_beside
        rows.append(
            f"| {name} | {alone[name]:.1f} | {ratio:.2f} | {beside[name]:.1f} | {ratio_beside:.2f} |"
        )
    return [*rows, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="into bench/results/")
    args = parser.parse_args()
    result = measure(args.steps, args.rounds)
    print("\n".join(section(result)))
    if args.write:
        path = ROOT / "bench" / "results" / f"waiting-{result['date']}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
