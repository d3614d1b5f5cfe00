"""What the guards cost: steps per second and a checkpoint's time of this tree beside an older commit, on the CPU.

    python bench/reliability_cost.py --before d9350af [--rounds 15] [--json]

Both trees run in processes of their own, alive together, and take turns: some steps here, as many there, one checkpoint
here, one there. A turn's figures are compared with those of its neighbour; the answer is the median of the ratios.
"""

import argparse
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = 12  # a turn
SHAPE: dict[str, Any] = {
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 64,
    "batch_size": 12,
}
CHECKPOINT_VALUES = 4_000_000  # weights of the checkpoint that is timed, and twice as many moments


class Turns:
    """A view of the run that waits for a line before each turn and answers with the seconds of its steps."""

    def __init__(self, save: Any):
        self._save, self._turn, self._times = save, 0, [now()]

    def step(self, fields: Any) -> None:
        self._times.append(now())
        if len(self._times) > STEPS + 1:  # the first step of a turn warms the caches again
            pairs = list(zip(self._times[1:], self._times[2:], strict=False))
            wall, cpu = (statistics.median(b[i] - a[i] for a, b in pairs) for i in (0, 1))
            self._turn += 1
            answer(step=wall, step_cpu=cpu, **self._save(self._turn))
            if not sys.stdin.readline():
                os._exit(0)
            self._times = [now()]

    def eval(self, fields: Any) -> None:
        pass

    def message(self, text: str) -> None:
        pass


def now() -> tuple[float, float]:
    """By the clock, and of the processor alone: the latter on a machine that others use too."""
    return time.perf_counter(), time.process_time()


def answer(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def drive(folder: Path) -> None:
    """One tree's side: a run that never ends by itself."""
    import torch

    try:  # where each tree has them
        from onecard.model import checkpoint
        from onecard.train.run.loop import train
    except ImportError:
        from onecard.train.loop import train  # type: ignore[import-not-found,no-redef]

        from onecard.train import checkpoint  # type: ignore[attr-defined,no-redef]
    from onecard.config import RunConfig

    torch.set_num_threads(1)
    tensors = {"weights": torch.randn(CHECKPOINT_VALUES)}
    moments = {f"weights/{name}": torch.randn(CHECKPOINT_VALUES) for name in ("m", "v")}

    def save(number: int) -> dict[str, float]:
        began = now()
        made = checkpoint.save(folder / "timed", number, tensors, moments, {"val_loss": None})
        wall, cpu = (b - a for a, b in zip(began, now(), strict=True))
        for path in made.iterdir():
            path.unlink()
        made.rmdir()
        return {"checkpoint": wall, "checkpoint_cpu": cpu}

    config = RunConfig(
        **SHAPE,
        vocab_size=64,
        gradient_accumulation_steps=1,
        compile=False,
        device="cpu",
        max_iters=10**6,
        eval_interval=10**6,
        eval_iters=1,
        log_interval=1,
        dataset=str(folder / "data"),
        out_dir=str(folder / "run"),
    )
    train(config, view=Turns(save))


def started(source: Path, folder: Path) -> "subprocess.Popen[str]":
    make_data(folder / "data")
    return subprocess.Popen(
        [sys.executable, str(Path(__file__)), "--drive", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
    )


def make_data(folder: Path) -> None:
    """Characters in nanoGPT's format, which both trees read."""
    generator = random.Random(1)
    folder.mkdir(parents=True)
    letters = [chr(48 + number) for number in range(64)]
    meta = {"vocab_size": 64, "itos": dict(enumerate(letters))}
    meta["stoi"] = {letter: number for number, letter in enumerate(letters)}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
    for name, count in (("train", 500_000), ("val", 5_000)):
        ids = bytes(byte for _ in range(count) for byte in (generator.randrange(64), 0))
        (folder / f"{name}.bin").write_bytes(ids)


def measured(before: Path, rounds: int, place: Path) -> dict[str, list[list[float]]]:
    """[older, this] for each turn, after one turn each that is not counted."""
    sides = [
        started(source, place / name)
        for name, source in (("older", before / "src"), ("this", ROOT / "src"))
    ]
    found: dict[str, list[list[float]]] = {}
    try:
        answers = [read(side) for side in sides]
        for turn in range(rounds):
            for number in (0, 1) if turn % 2 else (1, 0):
                side = sides[number]
                assert side.stdin is not None
                side.stdin.write("\n")
                side.stdin.flush()
                answers[number] = read(side)
            for key in answers[0]:
                found.setdefault(key, []).append([each[key] for each in answers])
    finally:
        for side in sides:
            side.kill()
            side.wait()
    return found


def read(side: "subprocess.Popen[str]") -> dict[str, float]:
    assert side.stdout is not None
    line = side.stdout.readline()
    if not line:
        raise SystemExit(f"a program under measurement ended with code {side.wait()}")
    return json.loads(line)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="d9350af", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive is not None:
        drive(args.drive)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(older), args.before], check=True)
        try:
            found = measured(older, args.rounds, Path(folder) / "runs")
        finally:
            subprocess.run([*git, "remove", "--force", str(older)], check=True)
    answer = {
        key: {
            "older_seconds": statistics.median(a for a, _ in pairs),
            "this_seconds": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(b / a for a, b in pairs),
        }
        for key, pairs in found.items()
    }
    if args.json:
        print(json.dumps(answer, indent=1))
        return 0
    for key, figures in answer.items():
        print(
            f"{key}: {1000 * figures['older_seconds']:.2f} ms before, "
            f"{1000 * figures['this_seconds']:.2f} ms now, ratio {figures['ratio']:.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
