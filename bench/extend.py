"""Is a run that branches off before its decay and decays later as good as a straight run of that length?

    python bench/extend.py [--steps 600]
    python bench/extend.py --only modern --steps 1200 [--text prose.parquet] [--seeds 1 2] [--rates 0.02 0.04]

Prepares the standard library or `--text` (bytes, no download), then trains small models: a straight run (several seeds,
for the noise), one of half the length lengthened by `--extend` (it branches off before the decay), one lengthened the
old way (the end of its schedule moved after the decay), and the modern recipe with and without a flat part. The flat
part is tried at several peak rates, for a rate that stays up longer is a larger one on average: each schedule is to be
judged at its own best. Prints the final validation losses; results go to docs/LOG.md.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from onecard.config import RunConfig
from onecard.config.recipes import recipe_values
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


def branched(home: Path, data: Path, args: argparse.Namespace) -> None:
    steps = args.steps
    for seed in (1, 2, 3):
        train(settings(home / f"straight{seed}", data, steps, seed=seed))
        print("straight", seed, curve(home / f"straight{seed}")[-1], flush=True)
    for seed in (1, 2):
        train(settings(home / f"branch{seed}", data, steps // 2, seed=seed))
        print("half", seed, curve(home / f"branch{seed}")[-1], flush=True)
        longer = settings(home / f"branch{seed}", data, steps, seed=seed)
        train(longer, resume=True, change=MOVED, branch=True)
        print("branched", seed, curve(home / f"branch{seed}")[-1], flush=True)


def rewarmed(home: Path, data: Path, args: argparse.Namespace) -> None:
    steps = args.steps
    for kind in ("cosine", "linear"):
        out = home / kind
        train(settings(out, data, steps // 2, seed=1, schedule=kind))
        train(settings(out, data, steps, seed=1, schedule=kind), resume=True, change=MOVED)
        print("re-warmed", kind, curve(out)[5:], flush=True)


MODERN = {
    "recipe": "modern",
    "n_embd": 128,
    "block_size": 128,
    **{key: value for key, value in recipe_values("modern").items() if key != "schedule"},
}
SCHEDULES: dict[str, dict[str, object]] = {
    "linear from the start": {"schedule": "linear"},
    "flat 0.2": {"schedule": "wsd", "decay_fraction": 0.8},
    "flat 0.4": {"schedule": "wsd", "decay_fraction": 0.6},
    "flat 0.6": {"schedule": "wsd", "decay_fraction": 0.4},
    "flat 0.8": {"schedule": "wsd", "decay_fraction": 0.2},
}


def modern_flat(home: Path, data: Path, args: argparse.Namespace) -> None:
    for seed in args.seeds:
        for rate in args.rates:
            for name in args.schedules:
                schedule = SCHEDULES[name]
                out = home / f"modern-{name}-{rate}-{seed}"
                more = {**MODERN, "learning_rate": rate, **schedule, "seed": seed}
                train(settings(out, data, args.steps, **more))
                print("modern", name, rate, seed, curve(out)[-1], flush=True)


def modern_branched(home: Path, data: Path, args: argparse.Namespace) -> None:
    """Straight, half of it, the half lengthened from before its decay, and lengthened after its decay."""
    steps = args.steps
    for seed in args.seeds:
        more = {**MODERN, **SCHEDULES[args.flat], "seed": seed}
        for name, length in (("straight", steps), ("half", steps // 2)):
            train(settings(home / f"modern-{name}{seed}", data, length, **more))
            print("modern", name, seed, curve(home / f"modern-{name}{seed}")[-1], flush=True)
        out = home / f"modern-half{seed}"
        train(settings(out, data, steps, **more), resume=True, change=MOVED, branch=True)
        print("modern branched", seed, curve(out)[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--text", default="stdlib", help="what is trained on (default: stdlib)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.02, 0.04])
    parser.add_argument("--schedules", nargs="+", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--flat", choices=SCHEDULES, default="flat 0.4")
    parts: dict[str, Callable[[Path, Path, argparse.Namespace], None]] = {
        "branch": branched,
        "rewarm": rewarmed,
        "modern": modern_flat,
        "modern-branch": modern_branched,
    }
    parser.add_argument("--only", choices=parts)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        data = home / "data"
        prepare([args.text], data, tokens=4_000_000, tokenizer="bytes")
        for name, part in parts.items():
            if args.only in (None, name):
                part(home, data, args)


if __name__ == "__main__":
    main()
