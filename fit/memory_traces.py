"""How far the simulation of planner/memory is from traces of the trainer's own step; writes src/onecard/facts/memory_fit.json.

    python fit/memory_traces.py [--eager 248] [--compiled 108] [--cache FOLDER]

A trace (tests/torch/memory_oracle.py) takes seconds, a compiled one up to a minute; with --cache they are kept, so that a change
of the declarations is measured at once. The stated range is never narrower than what nine in ten settings are off by here.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests" / "torch")]

from onecard.config import RunConfig  # noqa: E402
from onecard.planner.memory.step import simulate  # noqa: E402
from onecard.planner.workload import Workload  # noqa: E402

FIT = ROOT / "src" / "onecard" / "facts" / "memory_fit.json"


def traced_bytes(config: RunConfig, dtype: str, kept: Path | None) -> int:
    if kept is not None and kept.exists():
        known: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        if known["dtype"] == dtype and known["config"] == config.changed():
            return int(known["bytes"])
    from memory_oracle import traced

    size = traced(config, dtype).bytes
    if kept is not None:
        answer = {"config": config.changed(), "dtype": dtype, "bytes": size}
        kept.write_text(json.dumps(answer), encoding="utf-8")
    return size


def errors(compile: bool, settings: int, cache: Path | None) -> list[float]:
    from traced_settings import seeded

    found = []
    for seed in range(settings):
        config, dtype = seeded(seed, compile)
        kept = cache / f"{'compiled' if compile else 'eager'}_{seed}.json" if cache else None
        size = traced_bytes(config, dtype, kept)
        found.append(simulate(Workload.of(config, dtype)).peak().bytes / size - 1)
    return found


def summary(found: list[float]) -> dict[str, float]:
    size = sorted(map(abs, found))
    return {
        "settings": len(size),
        "median": round(statistics.median(size), 5),
        "nine_in_ten": round(size[int(0.9 * (len(size) - 1) + 0.5)], 4),
        "worst": round(size[-1], 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eager", type=int, default=248, help="random settings (default 248)")
    parser.add_argument(
        "--compiled", type=int, default=108, help="the same, compiled (default 108)"
    )
    parser.add_argument("--cache", type=Path, help="a folder that keeps the traces")
    args = parser.parse_args()
    if args.cache:
        args.cache.mkdir(parents=True, exist_ok=True)
    fit = json.loads(FIT.read_text(encoding="utf-8"))
    fit["simulation"] = {
        "eager": summary(errors(False, args.eager, args.cache)),
        "compiled": summary(errors(True, args.compiled, args.cache)),
    }
    least = max(kind["nine_in_ten"] for kind in fit["simulation"].values())
    fit["spread"] = [max(least, end) for end in fit["spread"]]
    FIT.write_text(json.dumps(fit, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(fit["simulation"], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
