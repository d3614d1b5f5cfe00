"""Is a run that branches off before its decay and decays later as good as a straight run of that length?

    python bench/extend.py [--steps 600]

Prepares the standard library (bytes, no download), then trains small models: a straight run (several seeds, for the
noise), one of half the length lengthened by `--extend` (it branches off before the decay), one lengthened the old way
(the end of its schedule moved after the decay), and the modern recipe with and without a flat part. Prints the final
validation losses; results go to docs/LOG.md.
"""

import argparse
import json
import tempfile
from pathlib import Path

from onecard.config import RunConfig
from onecard.data import prepare
from onecard.train.run.loop import train


def settings(out: Path, data: Path, steps: int, **other: object) -> RunConfig:
    values: dict[str, object] = {
        "out_dir": str(out),
        "dataset": str(data),
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 64,
        "block_size": 64,
        "batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_iters": steps,
        "lr_decay_iters": steps,
        "warmup_iters": 20,
        "learning_rate": 3e-3,
        "min_lr": 0.0,
        "schedule": "wsd",
        "eval_interval": max(steps // 12, 1),
        "eval_iters": 60,
        "log_interval": 50,
        "compile": False,
        "device": "cpu",
        "sample_interval": 10**6,
        **other,
    }
    return RunConfig.from_values(values)


def curve(out: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [(e["step"], round(e["val_loss"], 4)) for e in lines if e["kind"] == "eval"]


MOVED = ("max_iters", "lr_decay_iters")


def branched(home: Path, data: Path, steps: int) -> None:
    for seed in (1, 2, 3):
        train(settings(home / f"straight{seed}", data, steps, seed=seed))
        print("straight", seed, curve(home / f"straight{seed}")[-1], flush=True)
    for seed in (1, 2):
        train(settings(home / f"branch{seed}", data, steps // 2, seed=seed))
        print("half", seed, curve(home / f"branch{seed}")[-1], flush=True)
        longer = settings(home / f"branch{seed}", data, steps, seed=seed)
        train(longer, resume=True, change=MOVED, branch=True)
        print("branched", seed, curve(home / f"branch{seed}")[-1], flush=True)


def rewarmed(home: Path, data: Path, steps: int) -> None:
    for kind in ("cosine", "linear"):
        out = home / kind
        train(settings(out, data, steps // 2, seed=1, schedule=kind))
        train(settings(out, data, steps, seed=1, schedule=kind), resume=True, change=MOVED)
        print("re-warmed", kind, curve(out)[5:], flush=True)


def modern_flat(home: Path, data: Path, steps: int) -> None:
    modern = {"recipe": "modern", "optimizer": "muon", "learning_rate": 0.02, "warmup_iters": 0}
    for seed in (1, 2):
        for name, extra in (
            ("linear", {"schedule": "linear"}),
            ("flat 0.6", {"schedule": "wsd", "decay_fraction": 0.6}),
            ("flat 0.4", {"schedule": "wsd", "decay_fraction": 0.4}),
        ):
            out = home / f"modern-{name}-{seed}"
            more = {**modern, **extra, "weight_decay": 0.0, "tied": False, "seed": seed}
            train(settings(out, data, steps, **more))
            print("modern", name, seed, curve(out)[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", choices=("branch", "rewarm", "modern"))
    args = parser.parse_args()
    steps = args.steps
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        data = home / "data"
        prepare(["stdlib"], data, tokens=2_000_000, tokenizer="bytes")
        parts = {"branch": branched, "rewarm": rewarmed, "modern": modern_flat}
        for name, part in parts.items():
            if args.only in (None, name):
                part(home, data, steps)


if __name__ == "__main__":
    main()
