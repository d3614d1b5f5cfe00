"""After a probe of this CPU: predicted against real steps of six shapes that were not probed.

    python bench/probe_accuracy.py [--rounds 3] [--quick] [--json]

Two widths, two depths, two batch sizes, a small and GPT-2's vocabulary; none of the widths, depths or batch sizes is one
of the probe's. The real steps are a training session's own, each shape in a process of its own; they are done in turns
between the probe's measurements, for a machine's clock may wander by a fifth within minutes, and the prediction is made
from the finished probe. A shape's error is the median over the rounds, each with a new probe. Exits 1 where the median error
is above 5 % or the worst above 12 %.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onecard.config import RunConfig
from onecard.planner import plan
from onecard.planner.calibration_file import write_calibration
from onecard.train.probe import probe
from side_by_side import Program, random_tokens, store

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
EVERY = 2  # of the probe's turns is followed by one of ours
TURN_SECONDS = (
    1.0  # of steps that count, at least two, after one that brings the weights back into the caches
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="after `onecard probe --quick`; its goals are looser"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        os.environ["ONECARD_HOME"] = str(Path(place) / "home")
        programs = [Program("onecard", **settings(Path(place), *shape)) for shape in SHAPES]
        rounds = [
            one_round(Path(place), programs, args.quick, number) for number in range(args.rounds)
        ]
        for program in programs:
            program.close()
    rows = [
        middle(shape, found) for shape, found in zip(SHAPES, zip(*rounds, strict=True), strict=True)
    ]
    errors = [abs(row["error"]) for row in rows]
    answer = {
        "median": statistics.median(errors),
        "worst": max(errors),
        "rows": rows,
        "held": sum(row["low"] <= row["measured"] <= row["high"] for row in rows),
    }
    if args.json:
        print(json.dumps(answer, indent=1))
    else:
        show(answer)
    if not args.quick:
        print(f"stored in {store('probe', answer)}", file=sys.stderr)
    return 0 if answer["median"] <= MEDIAN and answer["worst"] <= WORST else 1


def one_round(place: Path, programs: list[Program], quick: bool, number: int) -> list[dict]:
    """A probe, real steps in its pauses, and what a plan then says of each shape."""
    seconds: list[list[float]] = [[] for _ in SHAPES]
    turns = itertools.count()

    def between(done: float, whole: float, what: str) -> None:
        turn, rest = divmod(next(turns), EVERY)
        if not rest and "round" in what and "compiled" not in what:
            which = turn % len(SHAPES)
            seconds[which] += programs[which].steps(1 + counts[which])["seconds"][1:]

    paces = [
        program.steps(3)["seconds"][-1] for program in programs
    ]  # after allocations, lazy initialisation
    counts = [max(2, round(TURN_SECONDS / pace)) for pace in paces]
    write_calibration(probe(quick, between, "cpu"))
    rows = []
    for shape, found in zip(SHAPES, seconds, strict=True):
        time = plan(RunConfig(**settings(place, *shape)), "cpu").time
        assert time.basis == "measured"
        guess, real = time.step_seconds, statistics.median(found)
        rows.append(
            {
                "predicted": guess.mid,
                "low": guess.low,
                "high": guess.high,
                "measured": real,
                "steps": found,
            }
        )
        print(
            f"round {number + 1}: {shape} predicted {guess.mid:.4f} s, measured {real:.4f} s, {len(found)} steps",
            file=sys.stderr,
        )
    return rows


def middle(shape: tuple[int, ...], found: Sequence[dict]) -> dict:
    """Over the rounds: medians of the error, and of everything as a multiple of the measured step."""
    measured = statistics.median(row["measured"] for row in found)
    guess = {
        key: measured * statistics.median(row[key] / row["measured"] for row in found)
        for key in ("predicted", "low", "high")
    }
    return {
        "shape": shape,
        **guess,
        "measured": measured,
        "rounds": list(found),
        "error": guess["predicted"] / measured - 1,
    }


def settings(
    place: Path, layers: int, heads: int, width: int, batch: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "n_layer": layers,
        "n_head": heads,
        "n_embd": width,
        "block_size": 128,
        "batch_size": batch,
        "gradient_accumulation_steps": 1,
        "vocab_size": vocabulary,
        "dataset": str(random_tokens(place / f"data-{vocabulary}", vocabulary)),
        "compile": False,
        "eval_iters": 1,
    }


def show(answer: dict) -> None:
    print(
        f"{'layers':>6} {'width':>6} {'batch':>6} {'vocab':>6} {'predicted':>11} {'measured':>11} {'error':>7}"
    )
    for row in answer["rows"]:
        layers, _, width, batch, vocabulary = row["shape"]
        print(
            f"{layers:6} {width:6} {batch:6} {vocabulary:6} {row['predicted'] * 1e3:8.1f} ms {row['measured'] * 1e3:8.1f} ms "
            f"{row['error']:+7.1%}"
        )
    print(
        f"median error {answer['median']:.1%} (at most {MEDIAN:.0%}), worst {answer['worst']:.1%} (at most {WORST:.0%}); "
        f"{answer['held']} of {len(answer['rows'])} within the stated range"
    )


if __name__ == "__main__":
    sys.exit(main())
