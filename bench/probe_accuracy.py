"""After a probe of this CPU: predicted against real steps of six shapes that were not probed.

    python bench/probe_accuracy.py [--rounds 3] [--quick] [--json]

Two widths, two depths, two batch sizes, a small and GPT-2's vocabulary; none of the widths, depths or batch sizes is one
of the probe's. The real steps are `onecard train`'s own, each turn in a process of its own, all shapes in turn; a shape's
figure is the median over its turns of the median step. Exits 1 where the median error is above 5 % or the worst above 12 %.
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from onecard.cli import main as onecard
from onecard.config import RunConfig
from onecard.plan import plan

MEDIAN, WORST = 0.05, 0.12
# layers, heads, width, batch, vocabulary; the context is 128
SHAPES = (
    (5, 5, 160, 12, 500),
    (3, 5, 320, 6, 500),
    (5, 5, 320, 12, 500),
    (3, 5, 160, 6, 50304),
    (3, 5, 320, 6, 50304),
    (5, 5, 160, 12, 50304),
)
SKIPPED = 3  # first steps of each process: allocations, lazy initialisation
TURN_SECONDS = 6.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="after `onecard probe --quick`; its goals are looser")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["ONECARD_HOME"] = str(Path(place) / "home")
        words = ["probe", "--device", "cpu", *(["--quick"] if args.quick else []), *(["--json"] if args.json else [])]
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            shown, sys.stdout = sys.stdout, nowhere if args.json else sys.stdout
            code = onecard(words)
            sys.stdout = shown
        if code:
            return code
        rows = compare(Path(place), args.rounds)
    errors = [abs(row["error"]) for row in rows]
    answer = {"median": statistics.median(errors), "worst": max(errors), "rows": rows,
              "held": sum(row["low"] <= row["measured"] <= row["high"] for row in rows)}  # fmt: skip
    if args.json:
        print(json.dumps(answer, indent=1))
    else:
        show(answer)
    return 0 if answer["median"] <= MEDIAN and answer["worst"] <= WORST else 1


def compare(place: Path, rounds: int) -> list[dict]:
    configs = [config_of(place, *shape) for shape in SHAPES]
    ranges = [plan(config, "cpu").time for config in configs]
    assert all(time.basis == "measured" for time in ranges)
    measured: list[list[float]] = [[] for _ in SHAPES]
    for turn in range(rounds):
        for which, config in enumerate(configs):
            steps = SKIPPED + round(min(60, max(8, TURN_SECONDS / ranges[which].step_seconds.mid)))
            measured[which].append(real_step(config, place / f"run-{turn}-{which}", steps))
            print(f"round {turn + 1}: {SHAPES[which]} {measured[which][-1]:.4f} s", file=sys.stderr)
    rows = []
    for shape, time, seconds in zip(SHAPES, ranges, measured, strict=True):
        guess, real = time.step_seconds, statistics.median(seconds)
        rows.append({"shape": shape, "predicted": guess.mid, "low": guess.low, "high": guess.high, "measured": real,
                     "turns": seconds, "error": guess.mid / real - 1})  # fmt: skip
    return rows


def config_of(place: Path, layers: int, heads: int, width: int, batch: int, vocabulary: int) -> RunConfig:
    return RunConfig(
        n_layer=layers, n_head=heads, n_embd=width, block_size=128, batch_size=batch, gradient_accumulation_steps=1,
        vocab_size=vocabulary, dataset=str(data(place, vocabulary)), compile=False, device="cpu",
        eval_interval=10**9, eval_iters=1, log_interval=1, warmup_iters=0, always_save_checkpoint=False,
    )  # fmt: skip


def data(place: Path, vocabulary: int) -> Path:
    """Random tokens in nanoGPT's format: time does not depend on what they say."""
    folder = place / f"data-{vocabulary}"
    if not folder.exists():
        folder.mkdir()
        for name, count in (("train", 400_000), ("val", 20_000)):
            tokens = np.random.default_rng(1).integers(0, min(vocabulary, 50257), count)
            tokens.astype("<u2").tofile(folder / f"{name}.bin")
        if vocabulary != 50304:
            letters = dict(enumerate(chr(0x100 + number) for number in range(vocabulary)))
            meta = {"vocab_size": vocabulary, "itos": letters, "stoi": {c: i for i, c in letters.items()}}
            (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    return folder


def real_step(config: RunConfig, out: Path, steps: int) -> float:
    """The median step of a real run, its first ones left out; the run learns nothing of it for the calibration."""
    changed = {**config.changed(), "max_iters": steps, "lr_decay_iters": steps, "out_dir": str(out)}
    words = [f"--{key}={value}" for key, value in changed.items()]
    environment = {**os.environ, "ONECARD_HOME": str(out.parent / "elsewhere")}
    subprocess.run([sys.executable, "-W", "ignore", "-m", "onecard", "train", *words, "--quiet"], check=True,
                   env=environment, stdout=subprocess.DEVNULL)  # fmt: skip
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [line["step_seconds"] for line in lines if line["kind"] == "step"]
    return statistics.median(seconds[SKIPPED:])


def show(answer: dict) -> None:
    print(f"{'layers':>6} {'width':>6} {'batch':>6} {'vocab':>6} {'predicted':>11} {'measured':>11} {'error':>7}")
    for row in answer["rows"]:
        layers, _, width, batch, vocabulary = row["shape"]
        print(f"{layers:6} {width:6} {batch:6} {vocabulary:6} {row['predicted'] * 1e3:8.1f} ms {row['measured'] * 1e3:8.1f} ms "
              f"{row['error']:+7.1%}")  # fmt: skip
    print(f"median error {answer['median']:.1%} (at most {MEDIAN:.0%}), worst {answer['worst']:.1%} (at most {WORST:.0%}); "
          f"{answer['held']} of {len(answer['rows'])} within the stated range")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
