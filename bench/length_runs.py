"""Which runs bench/lengths.py makes, in which order, and what is kept of them."""

import datetime
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from ideas import IDEAS

POINTS = 8  # evaluations along a run; an idea has the last one alone
EVAL_TOKENS = 81_920
BLOCK = 256
RATES = (2e-3, 1e-3, 4e-3)  # the GPT-2 recipe's first three, the likeliest first
GOAL_SHARE = 0.25  # of the tokens; more of them are run with the first seed alone, for the curve
SCREENED = "small"  # the budget at which ideas are tried
WINDOWS = "spread"  # where the trainer's validation windows lie; before 18 November 2026 the first ones of the text


@dataclass(frozen=True)
class Budget:
    n_layer: int
    n_head: int
    n_embd: int
    batch_size: int
    tokens: int
    seeds: tuple[int, ...]
    shares: tuple[float, ...]  # of the tokens, for the modern recipe


BUDGETS = {
    # 983,040 parameters outside embeddings and head; 3,145,728; 4,915,200
    "small": Budget(5, 4, 128, 8, 2_000_000, (1, 2, 3), (0.125, 0.25, 0.5, 1.0)),
    "middle": Budget(4, 4, 256, 16, 8_000_000, (1,), (0.125, 0.25)),
    "large": Budget(4, 5, 320, 16, 16_000_000, (1,), (0.125, 0.25, 0.3)),  # 0.25 does not reach it
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
        if any(row.get("windows") != WINDOWS for row in self.runs.values()):
            raise SystemExit(
                f"{self.path} holds runs that were judged by other validation windows; name another file with --results"
            )

    def loss(self, run: Run) -> float:
        return self.runs[run.name]["curve"][-1]["loss"]

    def add(self, run: Run, found: dict[str, Any]) -> None:
        self.read()
        date = datetime.date.today().isoformat()
        self.runs[run.name] = {**vars(run), "date": date, "windows": WINDOWS, **found}
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(self.runs, indent=1, sort_keys=True) + "\n")
        os.replace(aside, self.path)


def tried(corpus: str, budget: str, results: Results) -> Iterator[Run]:
    """The GPT-2 recipe at its rates, first seed, until the best one has a neighbour on both sides."""
    rates = list(RATES)
    for rate in rates:  # grows while it is read
        yield opponent(corpus, budget, rate)
        if rate == rates[-1]:
            best = min(rates, key=lambda each: results.loss(opponent(corpus, budget, each)))
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
        and (row["seed"], row["share"]) == (BUDGETS[budget].seeds[0], 1)
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
