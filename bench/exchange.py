"""The once-a-step exchange of gradients beside torch's DistributedDataParallel: processor time of a step, by turns.

python bench/exchange.py [--processes 2] [--rounds 7] [--steps 4] [--json FILE]

Two processes with gloo on one machine. Both do the same rows with the same accumulation; DDP exchanges in the backward pass
of the last micro-batch (no_sync before), ours after it. On a CPU nothing can hide behind computing: the figure is what
the exchange itself costs.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def measured(rounds: int, steps: int) -> dict[str, Any]:
    """In one of the processes."""
    import torch
    from torch import nn

    from onecard.config import RunConfig
    from onecard.model.build import make_model
    from onecard.train.run.workers import Workers

    torch.set_num_threads(1)
    config = RunConfig(n_layer=4, n_head=4, n_embd=256, block_size=64, vocab_size=4096)
    rows = torch.randint(0, 4096, (4, 65))
    with Workers("gloo", torch.device("cpu")) as workers:
        torch.manual_seed(0)
        ours = make_model(config)
        torch.manual_seed(0)
        theirs = nn.parallel.DistributedDataParallel(
            make_model(config), gradient_as_bucket_view=True
        )

        def step(model: nn.Module, ddp: bool) -> None:
            for number, part in enumerate(rows.split(1)):
                last = number == len(rows) - 1
                quiet = model.no_sync() if ddp and not last else contextlib.nullcontext()  # type: ignore[operator]
                with quiet:
                    loss = model(part[:, :-1], part[:, 1:])[1] / len(rows)
                    loss.backward()
            if not ddp:
                workers.any(False)
                workers.add_gradients(model.parameters())

        seconds: dict[str, list[float]] = {"ours": [], "ddp": []}
        ways = {"ours": (ours, False), "ddp": (theirs, True)}
        for _ in range(rounds + 1):
            for name, (model, ddp) in ways.items():
                workers.any(False)
                began = time.process_time()
                for _ in range(steps):
                    model.zero_grad(set_to_none=True)
                    step(model, ddp)
                seconds[name].append((time.process_time() - began) / steps)
        alike = all(
            torch.allclose(a.grad, b.grad * workers.processes, rtol=1e-4, atol=1e-6)
            for a, b in zip(
                (p for p in ours.parameters() if p.grad is not None),
                (p for p in theirs.parameters() if p.grad is not None),
                strict=True,
            )
            if a.grad is not None and b.grad is not None
        )
    ratios = [a / b for a, b in zip(seconds["ours"][1:], seconds["ddp"][1:], strict=True)]
    return {
        "ours_ms": 1e3 * statistics.median(seconds["ours"][1:]),
        "ddp_ms": 1e3 * statistics.median(seconds["ddp"][1:]),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "same_gradients": alike,
    }


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    if "RANK" in os.environ:
        found = measured(args.rounds, args.steps)
        if os.environ["RANK"] == "0":
            print(json.dumps(found))
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(args.processes)}
    command = [sys.executable, __file__, "--rounds", str(args.rounds), "--steps", str(args.steps)]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, **place, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(args.processes)
    ]
    found = json.loads(running[0].communicate()[0])
    for process in running:
        process.wait()
    low, high = found["ratio_range"]
    print(
        f"a step: ours {found['ours_ms']:.0f} ms of processor time, DDP {found['ddp_ms']:.0f} ms, "
        f"ratio {found['ratio']:.3f} ({low:.3f} to {high:.3f})"
    )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
