"""Tokens per second and peak memory beside nanoGPT's own train.py, on the CPU, same shape, batch and data.

    python bench/train.py --nanogpt ~/nanoGPT [--rounds 3] [--shape small] [--json]

The two take turns, each in a process of its own, so that a busy machine disturbs both alike; the figure is the median
over all steps of all rounds but the first steps of each. `small` is the CPU config of nanoGPT's README, `gpt2-vocab` a
shape whose time goes into GPT-2's vocabulary.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SHAPES = {
    "small": {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": 12,
        "steps": 150,
        "vocab": 65,
    },
    "gpt2-vocab": {
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "block_size": 256,
        "batch_size": 8,
        "steps": 9,
        "vocab": 50257,
    },
}
SKIPPED = 3  # first steps of each process: allocations, lazy initialisation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--nanogpt", type=Path, required=True, help="a checkout of github.com/karpathy/nanoGPT"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: all")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="a key for onecard's side, such as chunked_loss=True",
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for name in args.shape or SHAPES:
        with tempfile.TemporaryDirectory() as place:
            results[name] = measure(
                SHAPES[name], args.nanogpt.resolve(), Path(place), args.rounds, args.set
            )
        if not args.json:
            show(name, results[name])
    if args.json:
        print(json.dumps(results, indent=1))


def common_keys(shape: dict, data: str) -> list[str]:
    keys = {key: shape[key] for key in ("n_layer", "n_head", "n_embd", "block_size", "batch_size")}
    return [
        *(f"--{key}={value}" for key, value in keys.items()),
        f"--dataset={data}",
        "--device=cpu",
        "--compile=False",
        "--dtype=float32",
        "--gradient_accumulation_steps=1",
        "--dropout=0.0",
        "--learning_rate=1e-3",
        "--warmup_iters=0",
        "--log_interval=1",
        "--eval_interval=100000",
        "--eval_iters=1",
        f"--max_iters={shape['steps']}",
        f"--lr_decay_iters={shape['steps']}",
    ]


def measure(shape: dict, nanogpt: Path, place: Path, rounds: int, extra: list[str]) -> dict:
    data = make_data(place, shape["vocab"])
    shutil.copy(nanogpt / "configurator.py", place)  # nanoGPT looks for it where it is started
    common = common_keys(shape, data)
    sides: dict[str, dict[str, list[float]]] = {
        side: {"seconds": [], "peak": []} for side in ("nanogpt", "onecard")
    }
    for turn in range(rounds):
        for side in ("nanogpt", "onecard") if turn % 2 == 0 else ("onecard", "nanogpt"):
            out = place / f"{side}-{turn}"
            command = (
                [
                    str(nanogpt / "train.py"),
                    *common,
                    f"--out_dir={out}",
                    "--always_save_checkpoint=False",
                ]
                if side == "nanogpt"
                else [
                    "-m",
                    "onecard",
                    "train",
                    *common,
                    f"--out_dir={out}",
                    "--quiet",
                    *(f"--{word}" for word in extra),
                ]
            )
            text, peak = run([sys.executable, "-W", "ignore", *command], place)
            sides[side]["seconds"] += (
                nanogpt_seconds(text) if side == "nanogpt" else onecard_seconds(out)
            )[SKIPPED:]
            sides[side]["peak"].append(peak)
    tokens = shape["batch_size"] * shape["block_size"]
    answer: dict = {
        side: {
            "tokens_per_second": tokens / statistics.median(found["seconds"]),
            "step_seconds": statistics.median(found["seconds"]),
            "peak_bytes": statistics.median(found["peak"]),
        }
        for side, found in sides.items()
    }
    answer["speed_ratio"] = (
        answer["onecard"]["tokens_per_second"] / answer["nanogpt"]["tokens_per_second"]
    )
    answer["memory_ratio"] = answer["onecard"]["peak_bytes"] / answer["nanogpt"]["peak_bytes"]
    return answer


def make_data(place: Path, vocab: int) -> str:
    folder = place / "data" / "made"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name, count in (("train", 400_000), ("val", 40_000)):
        np.minimum(generator.zipf(1.2, count), vocab - 1).astype("<u2").tofile(
            folder / f"{name}.bin"
        )
    if vocab != 50257:
        import pickle

        letters = [chr(0x100 + number) for number in range(vocab)]
        meta = {
            "vocab_size": vocab,
            "itos": dict(enumerate(letters)),
            "stoi": {c: i for i, c in enumerate(letters)},
        }
        (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return "made"


def run(command: list[str], place: Path) -> tuple[str, int]:
    """Its output, and the peak of its resident memory in bytes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src")}
    with open(place / "output.txt", "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=place, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{text[-2000:]}")
    return text, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def nanogpt_seconds(text: str) -> list[float]:
    return [
        float(found) / 1000 for found in re.findall(r"iter \d+: loss [\d.]+, time ([\d.]+)ms", text)
    ][1:]


def onecard_seconds(folder: Path) -> list[float]:
    """From one step's end to the next one's: everything between is counted, as in nanoGPT."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    ends = [line["seconds"] for line in lines if line["kind"] == "step"]
    return [after - before for before, after in itertools.pairwise(ends)]


def show(name: str, result: dict) -> None:
    for side in ("nanogpt", "onecard"):
        found = result[side]
        print(
            f"{name:11} {side:8} {found['tokens_per_second']:10,.0f} tokens/s {found['step_seconds'] * 1000:8.1f} ms a step "
            f"{found['peak_bytes'] / 2**20:7.0f} MiB"
        )
    print(
        f"{name:11} onecard is {result['speed_ratio']:.2f} × as fast with {result['memory_ratio']:.2f} × the memory"
    )


if __name__ == "__main__":
    main()
