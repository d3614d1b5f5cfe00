"""Tokens to a loss at several lengths: the modern recipe against the GPT-2 recipe with its rate tuned at each length.

    python bench/lengths.py --work DIR --corpus prose=prose.parquet --corpus code=FOLDER --results FILE [--budget small] [--minutes 170]
    python bench/lengths.py … --ideas [--idea "momentum 0.9"]     the ideas of ideas.py, at a quarter of the smallest budget (or --budget)
    python bench/lengths.py … --nanogpt DIR                       nanoGPT's own code at the GPT-2 recipe's best rate

The protocol is in docs/LOG.md ("Lengths that count"). Each corpus gets a BPE of 4,096 trained on it; every run is a call of
`onecard train --continue` in a folder of its own below DIR, one after another, so a script that was stopped goes on where
it was. What is finished is kept in FILE, run by run; runs that are there are not made again. results/lengths.json has
the runs of docs/performance.md; they were judged by the first 81,920 tokens of the validation text, where the trainer now
takes windows at equal distances over all of it, so no run made today is put beside them.
The GPT-2 recipe's rate is doubled or halved until the best is neither the lowest nor the highest; the modern recipe
runs as `recipe = "modern"` brings it, at shares of the other's tokens, each with a whole schedule.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ideas import IDEAS
from length_rules import BUDGETS, EVAL_TOKENS
from length_runs import BLOCK, POINTS, SCREENED, Results, Run, nanogpt_runs, queue, screening
from onecard.data import open_dataset
from side_by_side import Program

SUFFIXES = (".py", ".rst", ".txt", ".md")  # of a folder's files, those that are read


def gathered(name: str, source: Path, work: Path) -> Path:
    """A folder of sources or documents as one file of JSON lines, a document a file; anything else as it is."""
    target = work / f"{name}.jsonl"
    if not source.is_dir() or target.exists():  # once made it stays: its data may be half prepared
        return target if source.is_dir() else source
    files = sorted(
        file
        for file in source.rglob("*")
        if file.suffix in SUFFIXES and "translations" not in file.parts
    )
    aside = target.with_suffix(".aside")
    with aside.open("w", encoding="utf-8") as out:
        for file in files:
            text = file.read_text(encoding="utf-8", errors="ignore")
            if text.strip():
                out.write(json.dumps({"text": text}) + "\n")
    return aside.replace(target)


def onecard(*words: str, until: float, idea: str | None = None) -> bool:
    """The command, ended with Ctrl-C when the time is over (it saves and can be continued); whether it finished."""
    program = (
        ["-m", "onecard"] if idea is None else [str(Path(__file__).with_name("ideas.py")), idea]
    )
    process = subprocess.Popen([sys.executable, *program, *words])
    try:
        if process.wait(timeout=max(until - time.monotonic(), 1)):
            raise SystemExit(f"`onecard {' '.join(words[:2])} …` ended with {process.returncode}")
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        process.wait()
        return False
    return True


def trained(run: Run, data: Path, out: Path, until: float, dtype: str) -> dict[str, Any] | None:
    keys = [f"--{key}={value}" for key, value in run.keys(data, out, dtype).items()]
    if not onecard("train", "--continue", "--quiet", *keys, until=until, idea=run.idea):
        return None
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {
        "dtype": dtype,
        "train_tokens": open_dataset(str(data)).splits["train"].tokens,
        "curve": [
            {"tokens": line["step"] * run.tokens_per_step, "loss": line["val_loss"]}
            for line in lines
            if line["kind"] == "eval"
        ],
    }


def nanogpt(run: Run, data: Path, checkout: str, dtype: str) -> dict[str, Any]:
    """The run by nanoGPT's own code, over the same tokens; it cannot be continued."""
    plain = data.with_name(f"{data.name}-nanogpt")
    plain.mkdir(exist_ok=True)
    splits = open_dataset(str(data)).splits
    for name in ("train", "val"):
        split = splits[name]
        np.asarray(split.read(0, split.tokens), dtype=np.uint16).tofile(plain / f"{name}.bin")
    budget, rate = BUDGETS[run.budget], run.rate
    assert rate is not None
    shape = {key: getattr(budget, key) for key in ("n_layer", "n_head", "n_embd", "batch_size")}
    program = Program(
        "nanogpt",
        **(shape | {"block_size": BLOCK, "vocab_size": 4096, "dataset": str(plain)}),
        **{"nanogpt": checkout, "seed": run.seed, "threads": 1, "max_iters": run.steps},
        **{"learning_rate": rate, "min_lr": rate / 10, "warmup_iters": run.steps // 20},
        **{"compile": True, "dtype": dtype},
        eval_windows=EVAL_TOKENS // BLOCK,
    )
    curve = []
    for point in range(1, POINTS + 1):
        done = run.steps * point // POINTS
        program.steps(done - run.steps * (point - 1) // POINTS)
        curve.append({"tokens": done * run.tokens_per_step, "loss": program.eval()})
    program.close()
    return {"dtype": dtype, "train_tokens": splits["train"].tokens, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where data and runs are kept")
    parser.add_argument("--corpus", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--budget", action="append", choices=list(BUDGETS))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--results", type=Path, required=True, help="where finished runs are kept")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so long")
    parser.add_argument("--ideas", action="store_true", help="screen all ideas of ideas.py")
    parser.add_argument("--idea", action="append", choices=list(IDEAS), help="screen this one")
    parser.add_argument(
        "--nanogpt", metavar="DIR", help="a checkout of nanoGPT: the second opponent"
    )
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    results = Results(args.results)
    corpora = dict(word.split("=", 1) for word in args.corpus)
    for name, source in corpora.items():
        data = args.work / "data" / name
        if (data / "manifest.json").exists():
            continue
        text = gathered(name, Path(source), args.work)
        prepare = ("data", str(text), "--tokenizer", "bpe:4096", "--val-fraction", "0.02")
        if not onecard(*prepare, "--out", str(data), until=until):
            return
    budgets = args.budget or list(BUDGETS)
    if args.ideas or args.idea:
        at = args.budget[0] if args.budget else SCREENED
        runs = screening(list(corpora), args.idea or list(IDEAS), at, results)
    elif args.nanogpt:
        runs = nanogpt_runs(list(corpora), budgets, results)
    else:
        runs = queue(list(corpora), budgets, results)
    for run in runs:
        results.read()
        if run.name not in results.runs:
            data = args.work / "data" / run.corpus
            if run.recipe == "nanogpt":
                found: dict[str, Any] | None = nanogpt(run, data, args.nanogpt, args.dtype)
            else:
                found = trained(run, data, args.work / run.name, until, args.dtype)
            if found is None:
                return
            results.add(run, found)
        print(f"{results.loss(run):.4f}  {run.name}", flush=True)


if __name__ == "__main__":
    main()
