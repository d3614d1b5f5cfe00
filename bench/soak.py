"""Long runs: memory that does not grow over 100,000 steps, and steps that cost no more after a million.

    python bench/soak.py --work DIR memory [--steps 100000] [--minutes 60]      resident memory along a run of a tiny model
    python bench/soak.py --work DIR million [--at 999000]        a run resumed there, with a log of as many lines

`memory` reads the process's resident memory every second while `onecard train` runs, then the log, line by line,
and counts the checkpoints. With --minutes the run goes on for so long, and for at least --steps, and is then stopped with
Ctrl-C; DIR/memory must be new. `million` trains a few thousand steps, stops, and writes the same state as the one of step
999,000, behind a log that has a line for each step before; the run then goes on to a million. What the two kinds of
step took is measured by turns of the same process kind, one after the other; the CPU's time beside the clock's.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from side_by_side import random_tokens, store
from soak_rules import MOST_GROWTH, growth

KEYS: dict[str, Any] = {
    "n_layer": 1,
    "n_head": 2,
    "n_embd": 16,
    "block_size": 8,
    "batch_size": 2,
    "gradient_accumulation_steps": 1,
    "eval_iters": 2,
    "compile": False,
    "device": "cpu",
    "recipe": "modern",
    "sample_interval": 10**9,
}
STOPPED = 128 + signal.SIGINT  # the exit code of a run that Ctrl-C ended
UNENDING = 10**8  # steps of a run that is stopped by the clock
LOGGED = 10  # steps between two lines of the log
KEPT = 50  # readings, about, besides the last one
FIRST_STEPS = 2000
WARM = 200  # steps of a process that are not counted
MOST_COST = 1.1  # of a step after a million, over one at the beginning


def started(folder: Path, data: Path, *flags: str, **keys: Any) -> subprocess.Popen[bytes]:
    words = [f"--{key}={value}" for key, value in {**KEYS, **keys}.items()]
    words += [f"--out_dir={folder}", f"--dataset={data}", "--quiet", *flags]
    return subprocess.Popen([sys.executable, "-m", "onecard", "train", *words])


def lines(folder: Path, kind: str = "step") -> Iterator[dict[str, Any]]:
    from onecard.runs.log import read_log

    return (line for line in read_log(folder / "log.jsonl") if line["kind"] == kind)


def resident_bytes(pid: int) -> int | None:
    """What the process holds now; None once it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = [line.split() for line in status.splitlines() if line.startswith("VmRSS")]
    return int(found[0][1]) * 1024 if found else None


def last_step(folder: Path) -> int:
    """By the end of its log, which is not read as a whole."""
    path = folder / "log.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 4096))
        whole = [line for line in log.read().split(b"\n")[1:-1] if b'"kind": "step"' in line]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def memory(work: Path, data: Path, steps: int, minutes: float | None) -> dict[str, Any]:
    folder = work / "memory"
    if folder.exists():  # its memory and its time would be of a part of the run
        raise SystemExit(f"{folder} has an earlier run; delete it or name another --work")
    keys = {"log_interval": LOGGED, "eval_interval": max(LOGGED, steps // 20)}
    began = time.monotonic()
    process = started(folder, data, max_iters=steps if minutes is None else UNENDING, **keys)
    seen: list[tuple[int, int]] = []
    stopped = False
    while process.poll() is None:
        time.sleep(1)
        held, step = resident_bytes(process.pid), last_step(folder)
        if held:
            seen.append((step, held))
        over = minutes is not None and time.monotonic() - began >= 60 * minutes
        if over and step >= steps and not stopped:
            process.send_signal(signal.SIGINT)
            stopped = True
    if process.returncode not in ((0, STOPPED) if stopped else (0,)):
        raise SystemExit(f"the run ended with {process.returncode}")
    logged = [line["step"] for line in lines(folder)]
    grown = growth(seen, logged[-1])
    return {
        "steps": logged[-1],
        "seconds": time.monotonic() - began,
        "resident_bytes": [*seen[: -1 : max(1, len(seen) // KEPT)], seen[-1]],
        "growth": grown,
        "flat": grown <= MOST_GROWTH,
        "log_whole": logged == list(range(LOGGED, logged[-1] + 1, LOGGED)),
        "checkpoints": len(list((folder / "checkpoints").iterdir())),
    }


def first_part(folder: Path, data: Path, at: int) -> None:
    """Some thousand steps of a run that will be longer, stopped as with Ctrl-C."""
    if last_step(folder) >= FIRST_STEPS:
        return
    process = started(folder, data, "--continue", **million_keys(at))
    while last_step(folder) < FIRST_STEPS:
        if process.poll() is not None:
            raise SystemExit(f"the run ended with {process.returncode}")
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.wait()


def million_keys(at: int) -> dict[str, Any]:
    steps = at + 1000
    return {"max_iters": steps, "lr_decay_iters": steps, "log_interval": 1, "eval_interval": 10**6}


def moved(folder: Path, at: int) -> None:
    """The run's newest checkpoint as one of step `at`, behind a log with a line for each step before it."""
    from onecard.model import checkpoint

    saved = checkpoint.newest_good(folder, print)
    assert saved is not None
    step, log = saved.state["step"], folder / "log.jsonl"
    head, *_ = log.read_bytes().split(b'{"kind": "step"', 1)
    first = next(lines(folder))
    with (folder / "log.aside").open("wb") as out:
        out.write(head)
        for number in range(1, at + 1):
            line = {**first, "step": number, "tokens": number * first["tokens"]}
            out.write(json.dumps(line).encode() + b"\n")
        offset = out.tell()
    (folder / "log.aside").replace(log)
    later = {key: at for key in ("step", "position")}
    later |= {key: saved.state[key] * at // step for key in ("tokens", "place")}
    left = ("schema", "files", "checksum", "step")
    state = {key: value for key, value in saved.state.items() if key not in left}
    state |= {key: value for key, value in later.items() if key != "step"}
    checkpoint.save(folder, at, saved.model, saved.optimizer, {**state, "log_offset": offset})


def million(work: Path, data: Path, at: int) -> dict[str, Any]:
    folder = work / "million"
    first_part(folder, data, at)
    early = [line["step_seconds"] for line in lines(folder) if WARM < line["step"] <= FIRST_STEPS]
    moved(folder, at)
    began = time.perf_counter()
    process = started(folder, data, "--resume", **million_keys(at))
    opened = None
    while process.poll() is None:
        time.sleep(0.2)
        if opened is None and last_step(folder) > at:
            opened = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    late = [line["step_seconds"] for line in lines(folder) if line["step"] > at + WARM]
    ratio = statistics.median(late) / statistics.median(early)
    return {
        "at": at,
        "log_bytes": (folder / "log.jsonl").stat().st_size,
        "seconds_to_first_step": opened,
        "early_step_seconds": statistics.median(early),
        "late_step_seconds": statistics.median(late),
        "ratio": ratio,
        "no_dearer": ratio <= MOST_COST,
        "lines": sum(1 for _ in lines(folder)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=["memory", "million"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, help="of `memory`: so long, and at least --steps")
    parser.add_argument("--at", type=int, default=999_000)
    args = parser.parse_args()
    data = random_tokens(args.work / "data", 65)
    if args.part == "memory":
        found = memory(args.work, data, args.steps, args.minutes)
    else:
        found = million(args.work, data, args.at)
    print(json.dumps({key: value for key, value in found.items() if key != "resident_bytes"}))
    print(f"stored in {store(f'soak-{args.part}', found)}")


if __name__ == "__main__":
    main()
