"""What a step of the modern recipe costs beside one of GPT-2's: same shape, same machine, by turns; medians.

    python bench/step_cost.py [--shape demo] [--mode eager] [--rounds 15] [--threads 1] [--dtype bfloat16]

Goal: at most 1.1 × its share of FLOPs. The share is of a step's matrix products as they are done: 6 for each token and
matrix entry (layers and head), attention's over the causal half, and for the modern recipe Muon's Newton–Schulz in the
form that a CPU takes (30·m³ for a square matrix, 4·m²·n + 34·m³ for an MLP's) and the short convolutions. Norms, rotation,
soft cap, softmax and updates count nothing. Each call adds its shapes and modes to the day's results with that dtype and
so many threads.
"""

import argparse
import datetime
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from length_runs import BLOCK, BUDGETS
from onecard.config.model_rules import TAPS
from side_by_side import RESULTS, Program, random_tokens, store
from speed import SHAPES as SPEED_SHAPES
from speed import matmul_flops_per_step

SHAPES: dict[str, dict[str, Any]] = {
    # what `onecard demo` trains, eagerly
    "demo": {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 64,
        "block_size": 128,
        "batch_size": 32,
        "vocab_size": 1024,
    },
    # the budgets of lengths.py
    **{
        name: {
            "n_layer": budget.n_layer,
            "n_head": budget.n_head,
            "n_embd": budget.n_embd,
            "block_size": BLOCK,
            "batch_size": budget.batch_size,
            "vocab_size": 4096,
            "chunked_loss": True,
        }
        for name, budget in BUDGETS.items()
    },
    "a": SPEED_SHAPES["a"],
}
MOST = 1.1  # over the share of FLOPs
STEPS = 8  # in one turn
NAME = "step_cost"


def newton_schulz_flops(width: int) -> float:
    """Of one layer: queries, keys, values and the projection are square, the MLP's two four times as long."""
    square, long = 30 * width**3, 4 * width**2 * 4 * width + 34 * width**3
    return float(4 * square + 2 * long)


def flops_share(shape: dict[str, Any]) -> float:
    """A modern step's FLOPs over one of GPT-2's.

    >>> round(flops_share(SHAPES["small"]), 3)
    1.115
    """
    plain = matmul_flops_per_step(shape)
    layers, width = shape["n_layer"], shape["n_embd"]
    taps = 6 * shape["block_size"] * shape["batch_size"] * 2 * layers * TAPS * width
    return 1 + (layers * newton_schulz_flops(width) + taps) / plain


def measure(
    shape: dict[str, Any], mode: str, rounds: int, threads: int, dtype: str
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        data = random_tokens(Path(folder, "data"), shape["vocab_size"])
        common = {**shape, "dataset": str(data), "max_iters": 100_000, "threads": threads}
        common |= {"gradient_accumulation_steps": 1, "eval_iters": 1, "compile": mode == "compiled"}
        common["dtype"] = dtype
        programs = {
            recipe: Program("onecard", recipe=recipe, **common) for recipe in ("gpt2", "modern")
        }
        seconds: dict[str, list[float]] = {recipe: [] for recipe in programs}
        cpu_seconds: dict[str, list[float]] = {recipe: [] for recipe in programs}
        for program in programs.values():
            program.steps(5)  # compilation and warm caches
        for _ in range(rounds):
            for recipe, program in programs.items():
                turn = program.steps(STEPS)
                seconds[recipe] += turn["seconds"]
                cpu_seconds[recipe] += turn["cpu_seconds"]
        for program in programs.values():
            program.close()
    times = {recipe: statistics.median(values) for recipe, values in seconds.items()}
    cpu_times = {recipe: statistics.median(values) for recipe, values in cpu_seconds.items()}
    return {
        "step_seconds": times,
        "cpu_seconds": cpu_times,
        "ratio": times["modern"] / times["gpt2"],
        "cpu_ratio": cpu_times["modern"] / cpu_times["gpt2"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), action="append")
    parser.add_argument("--mode", choices=["eager", "compiled"], action="append")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()
    setting = {"dtype": args.dtype, "threads": args.threads}
    suffix = f"-{args.dtype}-{args.threads}"
    for name in args.shape or SHAPES:
        for mode in args.mode or ("eager", "compiled"):
            found = measure(SHAPES[name], mode, args.rounds, args.threads, args.dtype)
            share = flops_share(SHAPES[name])
            print(name, mode, json.dumps(found), f"share {share:.3f}, goal {MOST * share:.3f}")
            today = RESULTS / f"{NAME}-{datetime.date.today()}{suffix}.json"
            shapes = json.loads(today.read_text())["shapes"] if today.exists() else {}
            shapes[name] = {**shapes.get(name, {"shape": SHAPES[name]}), mode: found}
            shapes[name] |= {"flops_share": share, "goal": MOST * share}
            print(f"stored in {store(NAME, {**setting, 'shapes': shapes}, suffix)}", flush=True)


if __name__ == "__main__":
    main()
