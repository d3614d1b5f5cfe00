"""Tokens to a loss at several lengths: the modern recipe against the GPT-2 recipe with its rate tuned at each length.

    python bench/lengths.py --work DIR --corpus prose=prose.parquet --corpus code=FOLDER [--budget small] [--minutes 170]
    python bench/lengths.py … --ideas [--idea "momentum 0.9"]     the ideas of ideas.py, at a quarter of the smallest budget (or --budget)
    python bench/lengths.py … --nanogpt DIR                       nanoGPT's own code at the GPT-2 recipe's best rate

The protocol is in docs/LOG.md ("Lengths that count"). Each corpus gets a BPE of 4,096 trained on it; every run is a call of
`onecard train --continue` in a folder of its own below DIR, one after another, so a script that was stopped goes on where
it was. What is finished is kept in results/lengths.json, run by run; runs that are there are not made again.
The GPT-2 recipe's rate is doubled or halved until the best is neither the lowest nor the highest (at the larger
budgets over a part of the tokens); the modern recipe runs as
`recipe = "modern"` brings it, at shares of the other's tokens, each with a whole schedule.
"""

import argparse
import datetime
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from ideas import IDEAS

KEPT = Path(__file__).parent / "results" / "lengths.json"
POINTS = 8  # evaluations along a run; an idea has the last one alone
EVAL_TOKENS = 81_920
BLOCK = 256
RATES = (2e-3, 1e-3, 4e-3)  # the GPT-2 recipe's first three, the likeliest first
GOAL_SHARE = 0.25  # of the tokens; more of them are run with the first seed alone, for the curve
SCREENED = "small"  # the budget at which ideas are tried
SUFFIXES = (".py", ".rst", ".txt", ".md")  # of a folder's files, those that are read


@dataclass(frozen=True)
class Budget:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int
    tokens: int
    seeds: tuple[int, ...]
    shares: tuple[float, ...]  # of the tokens, for the modern recipe
    tuned_at: float  # the share of the tokens at which the GPT-2 recipe's rates are compared


BUDGETS = {
    # 983,040 parameters outside embeddings and head; 3,145,728; 4,915,200
    "small": Budget(5, 4, 128, 8, 2_000_000, (1, 2, 3), (0.125, 0.25, 0.5, 1.0), 1.0),
    "middle": Budget(4, 4, 256, 16, 8_000_000, (1,), (0.125, 0.25), 0.25),
    "large": Budget(4, 5, 320, 16, 16_000_000, (1,), (0.125, 0.25), 0.125),
}


@dataclass(frozen=True)
class Run:
    corpus: str
    budget: str
    recipe: str
    rate: float | None  # None: as the recipe brings it
    share: float
    seed: int
    idea: str | None = None  # of ideas.py

    @property
    def name(self) -> str:
        rate = "" if self.rate is None else f"-{self.rate:g}"
        idea = "" if self.idea is None else "-" + re.sub("[^a-z0-9.]+", "_", self.idea)
        what = f"{self.recipe}{rate}{idea}-share{self.share:g}-seed{self.seed}"
        return f"{self.corpus}/{self.budget}/{what}"

    @property
    def changed(self) -> dict[str, Any]:
        """The keys of its idea."""
        return {} if self.idea is None else IDEAS[self.idea][0]

    @property
    def tokens_per_step(self) -> int:
        return self.changed.get("batch_size", BUDGETS[self.budget].batch_size) * BLOCK

    @property
    def steps(self) -> int:
        return round(BUDGETS[self.budget].tokens * self.share / self.tokens_per_step)

    def keys(self, data: Path, out: Path, dtype: str) -> dict[str, Any]:
        budget, steps = BUDGETS[self.budget], self.steps
        keys: dict[str, Any] = {
            "out_dir": out,
            "dataset": data,
            "recipe": self.recipe,
            "n_layer": budget.n_layer,
            "n_head": budget.n_head,
            "n_embd": budget.n_embd,
            "block_size": BLOCK,
            "batch_size": budget.batch_size,
            "gradient_accumulation_steps": 1,
            "max_iters": steps,
            "lr_decay_iters": steps,
            "seed": self.seed,
            "eval_interval": -(-steps // (1 if self.idea else POINTS)),
            "eval_iters": EVAL_TOKENS // self.tokens_per_step,
            "chunked_loss": True,  # the same loss, sooner
            "log_interval": 50,
            "sample_interval": 10**9,
            "compile": True,  # 0.7 of an eager step (step_cost.py)
            "device": "cpu",
            "dtype": dtype,
        }
        if self.rate is not None:
            keys |= {
                "learning_rate": self.rate,
                "min_lr": self.rate / 10,
                "warmup_iters": steps // 20,
            }
        return {**keys, **self.changed}


class Results:
    """Finished runs by name; written after each one."""

    def __init__(self, path: Path):
        self.path = path
        self.runs: dict[str, Any] = {}
        self.read()

    def read(self) -> None:
        """Another call of this script may have added some."""
        if self.path.exists():
            self.runs |= json.loads(self.path.read_text())

    def loss(self, run: Run) -> float:
        return self.runs[run.name]["curve"][-1]["loss"]

    def add(self, run: Run, found: dict[str, Any]) -> None:
        self.read()
        self.runs[run.name] = {**vars(run), "date": datetime.date.today().isoformat(), **found}
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(self.runs, indent=1, sort_keys=True) + "\n")
        os.replace(aside, self.path)


def tried(corpus: str, budget: str, results: Results) -> Iterator[Run]:
    """The GPT-2 recipe at its rates, first seed, until the best one has a neighbour on both sides."""
    rates = list(RATES)

    def run(rate: float) -> Run:
        return replace(opponent(corpus, budget, rate), share=BUDGETS[budget].tuned_at)

    for rate in rates:  # grows while it is read
        yield run(rate)
        if rate == rates[-1]:
            best = min(rates, key=lambda each: results.loss(run(each)))
            if best in (min(rates), max(rates)):
                rates.append(best / 2 if best == min(rates) else best * 2)


def opponent(corpus: str, budget: str, rate: float, seed: int | None = None) -> Run:
    return Run(corpus, budget, "gpt2", rate, 1.0, seed or BUDGETS[budget].seeds[0])


def best_rate(corpus: str, budget: str, results: Results) -> float:
    """The GPT-2 recipe's, of those that were tried."""
    rows = [
        (row["curve"][-1]["loss"], row["rate"])
        for row in results.runs.values()
        if (row["corpus"], row["budget"], row["recipe"]) == (corpus, budget, "gpt2")
        and (row["seed"], row["share"]) == (BUDGETS[budget].seeds[0], BUDGETS[budget].tuned_at)
    ]
    if not rows:
        raise SystemExit(f"the GPT-2 recipe's rate is not known for {corpus}, {budget}")
    return min(rows)[1]


def screening(corpora: list[str], ideas: list[str], budget: str, results: Results) -> Iterator[Run]:
    """Each idea at a quarter of the tokens, and on the next corpus and seed while it is ahead of the recipe on each corpus."""
    for seed in BUDGETS[budget].seeds:
        for corpus in corpora:
            plain = Run(corpus, budget, "modern", None, GOAL_SHARE, seed)
            yield plain
            for idea in ideas:
                if all(lead >= 0 for lead in leads(idea, budget, results).values()):
                    yield replace(plain, idea=idea)


def leads(idea: str, budget: str, results: Results) -> dict[str, float]:
    """By corpus: by how much the idea's loss is lower than the recipe's, the mean of the seeds that ran."""
    found: dict[str, list[float]] = {}
    for row in results.runs.values():
        if (row["idea"], row["budget"]) == (idea, budget):
            run = Run(**{field.name: row[field.name] for field in fields(Run)})
            lead = results.loss(replace(run, idea=None)) - results.loss(run)
            found.setdefault(run.corpus, []).append(lead)
    return {corpus: mean(each) for corpus, each in found.items()}


def queue(corpora: list[str], budgets: list[str], results: Results) -> Iterator[Run]:
    """All corpora with the first seed, then with the next, the likeliest rate first: what there is when time runs out says
    something of each."""
    for budget in budgets:
        seeds, shares = BUDGETS[budget].seeds, BUDGETS[budget].shares
        for seed in seeds:
            for corpus in corpora:
                for share in shares:
                    if share <= GOAL_SHARE:
                        yield Run(corpus, budget, "modern", None, share, seed)
                if seed == seeds[0]:
                    yield from tried(corpus, budget, results)
                yield opponent(corpus, budget, best_rate(corpus, budget, results), seed)
        for corpus in corpora:
            for share in shares:
                yield Run(corpus, budget, "modern", None, share, seeds[0])


def second_opponent(corpora: list[str], budgets: list[str], results: Results) -> Iterator[Run]:
    for budget in budgets:
        for corpus in corpora:
            rate, seed = best_rate(corpus, budget, results), BUDGETS[budget].seeds[0]
            yield Run(corpus, budget, "nanogpt", rate, 1.0, seed)


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
        "curve": [
            {"tokens": line["step"] * run.tokens_per_step, "loss": line["val_loss"]}
            for line in lines
            if line["kind"] == "eval"
        ],
    }


def nanogpt(run: Run, data: Path, checkout: str) -> dict[str, Any]:
    """The run by nanoGPT's own code, over the same tokens; it cannot be continued."""
    import numpy as np

    from onecard.data import open_dataset
    from side_by_side import Program

    plain = data.with_name(f"{data.name}-nanogpt")
    plain.mkdir(exist_ok=True)
    for name in ("train", "val"):
        split = open_dataset(str(data)).splits[name]
        np.asarray(split.read(0, split.tokens), dtype=np.uint16).tofile(plain / f"{name}.bin")
    budget, rate = BUDGETS[run.budget], run.rate
    assert rate is not None
    shape = {key: getattr(budget, key) for key in ("n_layer", "n_head", "n_embd", "batch_size")}
    program = Program(
        "nanogpt",
        **(shape | {"block_size": BLOCK, "vocab_size": 4096, "dataset": str(plain)}),
        **{"nanogpt": checkout, "seed": run.seed, "threads": 1, "max_iters": run.steps},
        **{"learning_rate": rate, "min_lr": rate / 10, "warmup_iters": run.steps // 20},
        eval_windows=EVAL_TOKENS // BLOCK,
    )
    curve = []
    for point in range(1, POINTS + 1):
        done = run.steps * point // POINTS
        program.steps(done - run.steps * (point - 1) // POINTS)
        curve.append({"tokens": done * run.tokens_per_step, "loss": program.eval()})
    program.close()
    return {"curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where data and runs are kept")
    parser.add_argument("--corpus", action="append", required=True, metavar="NAME=PATH")
    parser.add_argument("--budget", action="append", choices=list(BUDGETS))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--results", type=Path, default=KEPT, help="where finished runs are kept")
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
        runs = second_opponent(list(corpora), budgets, results)
    else:
        runs = queue(list(corpora), budgets, results)
    for run in runs:
        results.read()
        if run.name not in results.runs:
            data = args.work / "data" / run.corpus
            if run.recipe == "nanogpt":
                found: dict[str, Any] | None = nanogpt(run, data, args.nanogpt)
            else:
                found = trained(run, data, args.work / run.name, until, args.dtype)
            if found is None:
                return
            results.add(run, found)
        print(f"{results.loss(run):.4f}  {run.name}", flush=True)


if __name__ == "__main__":
    main()
