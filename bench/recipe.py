"""Tokens and seconds to nanoGPT's final validation loss, its own recipe against recipe = "modern", in one run.

python bench/recipe.py --nanogpt DIR --text tinyshakespeare.txt             characters; minutes
python bench/recipe.py --nanogpt DIR --parquet prose.parquet                GPT-2's tokens; half an hour

Both programs are eager and in fp32 and are judged on the same fixed validation tokens; on characters they take turns.
The clock runs only in training steps: the median step of each turn, times its steps. The modern run is as long as
`--share` of nanoGPT's tokens, and its keys are those that `recipe = "modern"` brings: nothing is tuned here but nanoGPT's
learning rate on the prose, the best of runs of a quarter of the length, each with its own whole schedule, at four rates
and more (until the best is neither the lowest nor the highest).
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import Program, characters, gpt2_tokens, store

POINTS = 10  # evaluations along each run

# nanoGPT's README: "I only have a macbook"
CHARACTERS: dict[str, Any] = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}
CHARACTERS_NANOGPT = {
    "batch_size": 12,
    "max_iters": 2000,
    "learning_rate": 1e-3,
    "min_lr": 1e-4,
    "beta2": 0.99,
    "warmup_iters": 100,
}
CHARACTERS_BATCH = (
    8  # the modern run's: with Muon more steps are worth more than quieter gradients (docs/LOG.md)
)

# 7.1M parameters outside the embeddings
PROSE: dict[str, Any] = {
    "n_layer": 4,
    "n_head": 6,
    "n_embd": 384,
    "block_size": 256,
    "vocab_size": 50304,
}
PROSE_RATES = (5e-4, 1e-3, 2e-3, 4e-3)
PROSE_BATCH = 8
PROSE_EVAL_WINDOWS = 128  # 32,768 tokens


def curve(program: Program, steps: int, tokens_per_step: int):
    """Train in POINTS turns; yields the curve so far after each, so that two programs can take turns."""
    points: list[dict[str, float]] = []
    done, seconds, cpu_seconds = 0, 0.0, 0.0
    for turn in range(1, POINTS + 1):
        count = steps * turn // POINTS - done
        answer = program.steps(count)
        done += count
        seconds += count * statistics.median(answer["seconds"])
        cpu_seconds += count * statistics.median(answer["cpu_seconds"])
        points.append(
            {
                "step": done,
                "tokens": done * tokens_per_step,
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "loss": program.eval(),
            }
        )
        print(json.dumps(points[-1]), flush=True)
        yield points


def race(
    first: Program,
    first_steps: int,
    first_tokens: int,
    second: Program,
    second_steps: int,
    second_tokens: int,
):
    """Both curves, a turn each in alternation."""
    one, two = curve(first, first_steps, first_tokens), curve(second, second_steps, second_tokens)
    for _ in range(POINTS):
        points, other = next(one), next(two)
    first.close(), second.close()
    return points, other


def verdict(nanogpt: list[dict[str, float]], modern: list[dict[str, float]]) -> dict[str, Any]:
    target = nanogpt[-1]["loss"]
    reached = next((point for point in modern if point["loss"] <= target), None)
    return {
        "nanogpt": nanogpt,
        "modern": modern,
        "target": target,
        "reached": reached,
        "tokens": reached and reached["tokens"] / nanogpt[-1]["tokens"],
        "time": reached and reached["seconds"] / nanogpt[-1]["seconds"],
        "cpu_time": reached and reached["cpu_seconds"] / nanogpt[-1]["cpu_seconds"],
    }


def modern_settings(
    shape: dict[str, Any], batch: int, steps: int, folder: str, seed: int
) -> dict[str, Any]:
    return {
        **shape,
        "recipe": "modern",
        "batch_size": batch,
        "gradient_accumulation_steps": 1,
        "max_iters": steps,
        "dataset": folder,
        "seed": seed,
        "compile": False,
        "chunked_loss": shape["vocab_size"] > 10_000,
    }


def on_characters(
    nanogpt: str, text: Path, share: float, seed: int, threads: int | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        shape = {**CHARACTERS, "vocab_size": characters(text, Path(folder))}
        theirs = {**shape, **CHARACTERS_NANOGPT}
        tokens = theirs["batch_size"] * shape["block_size"]
        steps = round(
            theirs["max_iters"] * tokens * share / (CHARACTERS_BATCH * shape["block_size"])
        )
        ours = modern_settings(shape, CHARACTERS_BATCH, steps, folder, seed)
        found = race(
            Program(
                "nanogpt", nanogpt=nanogpt, dataset=folder, seed=seed, threads=threads, **theirs
            ),
            theirs["max_iters"],
            tokens,
            Program("onecard", threads=threads, **ours),
            steps,
            CHARACTERS_BATCH * shape["block_size"],
        )
    return {**verdict(*found), "goal": {"tokens": 0.1, "time": 0.2}, "seed": seed}


def whole_run(
    kind: str, steps: int, tokens_per_step: int, **settings: Any
) -> list[dict[str, float]]:
    program = Program(kind, **settings)
    *_, points = curve(program, steps, tokens_per_step)
    program.close()
    return points


def on_prose(
    nanogpt: str, parquet: Path, steps: int, share: float, threads: int | None
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        gpt2_tokens(parquet, Path(folder))
        tokens = PROSE_BATCH * PROSE["block_size"]
        common = {"dataset": folder, "threads": threads, "eval_windows": PROSE_EVAL_WINDOWS}
        theirs = {**common, **PROSE, "batch_size": PROSE_BATCH, "nanogpt": nanogpt}

        def nanogpt_run(rate: float, steps: int) -> list[dict[str, float]]:
            print(f"nanoGPT at a learning rate of {rate:g}, {steps} steps", flush=True)
            schedule = {"learning_rate": rate, "max_iters": steps, "warmup_iters": steps // 10}
            return whole_run("nanogpt", steps, tokens, **theirs, **schedule)

        sweep: dict[float, float] = {}
        waiting = list(PROSE_RATES)
        while waiting:
            rate = waiting.pop(0)
            sweep[rate] = nanogpt_run(rate, steps // 4)[-1]["loss"]
            best = min(sweep, key=sweep.__getitem__)
            if not waiting and best in (min(sweep), max(sweep)):
                waiting.append(best / 2 if best == min(sweep) else best * 2)
        found = nanogpt_run(best, steps)
        ours_steps = round(steps * share)
        ours = {**common, **modern_settings(PROSE, PROSE_BATCH, ours_steps, folder, 1337)}
        modern = whole_run("onecard", ours_steps, tokens, **ours)
    rates = {f"{rate:g}": loss for rate, loss in sorted(sweep.items())}
    return {**verdict(found, modern), "goal": {"tokens": 0.25}, "sweep": rates}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", required=True, help="a checkout of nanoGPT")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--parquet", type=Path)
    parser.add_argument(
        "--share", type=float, help="the modern run's tokens over nanoGPT's; 0.1, on the prose 0.25"
    )
    parser.add_argument("--steps", type=int, default=300, help="of nanoGPT on the prose")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if args.text:
        results["characters"] = on_characters(
            args.nanogpt, args.text, args.share or 0.1, args.seed, args.threads
        )
    if args.parquet:
        results["prose"] = on_prose(
            args.nanogpt, args.parquet, args.steps, args.share or 0.25, args.threads
        )
    for name, result in results.items():
        print(
            f"{name}: "
            + json.dumps({k: v for k, v in result.items() if k not in ("nanogpt", "modern")})
        )
        print(f"stored in {store(f'recipe-{name}', result)}")


if __name__ == "__main__":
    main()
