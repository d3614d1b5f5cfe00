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
from length_rules import BUDGETS, EVAL_TOKENS, TOKENS_GOAL, end_loss, opponents_best_rate

POINTS = 8  # evaluations along a run; an idea has the last one alone
BLOCK = 256
RATES = (2e-3, 1e-3, 4e-3)  # the GPT-2 recipe's first three, the likeliest first
SCREENED = "small"  # the budget at which ideas are tried
WINDOWS = "spread"  # where the trainer's validation windows lie; before 18 November 2026 the first ones of the text


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
        return end_loss(self.runs[run.name])

    def add(self, run: Run, found: dict[str, Any]) -> None:
        self.read()
        date = datetime.date.today().isoformat()
        self.runs[run.name] = {**vars(run), "date": date, "windows": WINDOWS, **found}
        aside = self.path.with_suffix(".aside")
        aside.write_text(json.dumps(self.runs, indent=1, sort_keys=True) + "\n")
        os.replace(aside, self.path)


def tried(corpus: str, budget: str, results: Results) -> Iterator[Run]:
    """The GPT-2 recipe at its rates, first seed, until the best one has a neighbour on both sides."""
    for rate in RATES:
        yield opponent(corpus, budget, rate)
    while True:
        best, tuned = opponents_best_rate(of_corpus(corpus, budget, results))
        if tuned or best is None:
            return
        for rate in (best / 2, best * 2):  # the one that is there already is not run again
            yield opponent(corpus, budget, rate)


def opponent(corpus: str, budget: str, rate: float, seed: int | None = None) -> Run:
    return Run(corpus, budget, "gpt2", rate, 1.0, seed or BUDGETS[budget].seeds[0])


def of_corpus(corpus: str, budget: str, results: Results) -> list[dict[str, Any]]:
    return [
        row for row in results.runs.values() if (row["corpus"], row["budget"]) == (corpus, budget)
    ]


def known_best_rate(corpus: str, budget: str, results: Results) -> float:
    """The GPT-2 recipe's, of those that were tried."""
    best, _ = opponents_best_rate(of_corpus(corpus, budget, results))
    if best is None:
        raise SystemExit(f"the GPT-2 recipe's rate is not known for {corpus}, {budget}")
    return best


def screening(corpora: list[str], ideas: list[str], budget: str, results: Results) -> Iterator[Run]:
    """Each idea at a quarter of the tokens, and on the next corpus and seed while it is ahead of the recipe on each corpus."""
    for seed in BUDGETS[budget].seeds:
        for corpus in corpora:
            plain = Run(corpus, budget, "modern", None, TOKENS_GOAL, seed)
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
                    if share <= TOKENS_GOAL:  # more tokens: the first seed alone, for the curve
                        yield Run(corpus, budget, "modern", None, share, seed)
                if seed == seeds[0]:
                    yield from tried(corpus, budget, results)
                yield opponent(corpus, budget, known_best_rate(corpus, budget, results), seed)
        for corpus in corpora:
            for share in shares:
                yield Run(corpus, budget, "modern", None, share, seeds[0])


def nanogpt_runs(corpora: list[str], budgets: list[str], results: Results) -> Iterator[Run]:
    """The second opponent: nanoGPT's own code at the GPT-2 recipe's best rate."""
    for budget in budgets:
        for corpus in corpora:
            rate, seed = known_best_rate(corpus, budget, results), BUDGETS[budget].seeds[0]
            yield Run(corpus, budget, "nanogpt", rate, 1.0, seed)
