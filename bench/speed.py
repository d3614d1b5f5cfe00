"""Seconds per step and peak memory beside nanoGPT, same machine, same shape, fp32, alternating; medians.

python bench/speed.py --nanogpt DIR [--shape a] [--rounds 9] [--eager]

a: nanoGPT's README CPU run, 4L/4H/128, block 64, batch 12, characters.   goal: 1.3 × the faster of nanoGPT's two modes
b: 6L/6H/384, vocabulary 50304, block 256, batch 8.                       goal: 1.4 ×, 88 % of the matmul rate, half the memory
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from side_by_side import Program, machine, matmul_flops, random_tokens, store

SHAPES: dict[str, dict[str, Any]] = {
    "a": {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": 12,
        "vocab_size": 65,
    },
    "b": {
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "block_size": 256,
        "batch_size": 8,
        "vocab_size": 50304,
    },
}
GOALS = {"a": {"speed": 1.3}, "b": {"speed": 1.4, "matmul_share": 0.88, "memory": 0.5}}
STEPS = {"a": 20, "b": 2}  # in one turn
# The chunked loss saves memory and time where the vocabulary is large; with 65 characters there is nothing to save.
LEAN: dict[str, dict[str, Any]] = {"a": {}, "b": {"chunked_loss": True}}


def matmul_flops_per_step(shape: dict[str, Any]) -> float:
    """6 · (matrices and head) · tokens, and attention's two products over the causal half, forward and back."""
    width, layers, block = shape["n_embd"], shape["n_layer"], shape["block_size"]
    tokens = block * shape["batch_size"]
    return (
        6.0
        * tokens
        * (12 * layers * width**2 + shape["vocab_size"] * width + layers * width * block)
    )


def matmuls_alone(shape: dict[str, Any], tries: int = 9) -> float:
    """Seconds of a step's matrix products and nothing else: forward, and both gradients, of every matrix; no attention."""
    width, tokens = shape["n_embd"], shape["block_size"] * shape["batch_size"]
    layer = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    total = 0.0
    for (into, out), count in [
        *((pair, shape["n_layer"]) for pair in layer),
        ((width, shape["vocab_size"]), 1),
    ]:
        x, w, grad = torch.randn(tokens, into), torch.randn(out, into), torch.randn(tokens, out)
        seconds = []
        for _ in range(tries):
            began = time.perf_counter()
            x @ w.T, grad @ w, grad.T @ x
            seconds.append(time.perf_counter() - began)
        total += count * statistics.median(seconds)
    return total


def measure(
    name: str, nanogpt: str, rounds: int, modes: list[str], threads: int | None
) -> dict[str, Any]:
    shape = SHAPES[name]
    with tempfile.TemporaryDirectory() as folder:
        data = random_tokens(Path(folder, "data"), shape["vocab_size"])
        common = {
            **shape,
            "dataset": str(data),
            "learning_rate": 1e-3,
            "max_iters": 100_000,
            "warmup_iters": 100,
        }
        common |= {"min_lr": 1e-4, "threads": threads}
        ours = {"gradient_accumulation_steps": 1, "eval_iters": 1, **LEAN[name]}
        programs = {}
        for mode in modes:
            compiled = mode == "compiled"
            programs[f"nanogpt {mode}"] = Program(
                "nanogpt", nanogpt=nanogpt, compile=compiled, **common
            )
            programs[f"onecard {mode}"] = Program("onecard", compile=compiled, **common, **ours)
        seconds: dict[str, list[float]] = {key: [] for key in programs}
        cpu_seconds: dict[str, list[float]] = {key: [] for key in programs}
        rates, alone = [], []
        for program in programs.values():
            program.steps(3)  # compilation and warm caches
        for _ in range(rounds):
            rates.append(matmul_flops(1024, 9))
            alone.append(matmuls_alone(shape))
            for key, program in programs.items():
                turn = program.steps(STEPS[name])
                seconds[key] += turn["seconds"]
                cpu_seconds[key] += turn["cpu_seconds"]
        peaks = {key: program.peak_bytes() for key, program in programs.items()}
        tensors = {key: program.tensor_bytes() for key, program in programs.items()}
        medians = {key: statistics.median(values) for key, values in seconds.items()}
        theirs = min((key for key in medians if key.startswith("nanogpt")), key=medians.__getitem__)
        best = min((key for key in medians if key.startswith("onecard")), key=medians.__getitem__)
        profile = programs[best].profile()
        for program in programs.values():
            program.close()
    flops, rate = matmul_flops_per_step(shape), statistics.median(rates)
    return {
        "shape": shape,
        "step_seconds": medians,
        # of all threads together; on a machine that others use too, the steadier figure
        "cpu_seconds": {key: statistics.median(values) for key, values in cpu_seconds.items()},
        "peak_bytes": peaks,  # resident, with some 400 MB of torch itself in all of them
        "tensor_bytes": tensors,
        "nanogpt": theirs,
        "onecard": best,
        "speed": medians[theirs] / medians[best],
        "speed_by_cpu": statistics.median(cpu_seconds[theirs])
        / statistics.median(cpu_seconds[best]),
        "matmul_share": flops / medians[best] / rate,
        "memory": tensors[best] / tensors[theirs],
        "memory_resident": peaks[best] / peaks[theirs],
        "matmuls_alone": statistics.median(alone),  # what is left if all else were free: the wall
        "profile": profile,
        "goal": GOALS[name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", required=True, help="a checkout of nanoGPT")
    parser.add_argument("--shape", choices=sorted(SHAPES), action="append")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--mode", choices=["eager", "compiled"], action="append")
    args = parser.parse_args()
    results = {
        name: measure(
            name, args.nanogpt, args.rounds, args.mode or ["eager", "compiled"], args.threads
        )
        for name in args.shape or sorted(SHAPES)
    }
    for name, result in results.items():
        print(f"shape {name}: " + json.dumps(result, indent=1))
    print(json.dumps(machine()))
    if not (args.shape or args.mode):  # a part is a look, not a result
        print(f"stored in {store('speed', {'shapes': results})}")


if __name__ == "__main__":
    main()
