"""How well anybody could predict the public runs' time: families that ran the same project's code on the same card, held against
one another. docs/accuracy.md has what this prints.

    python bench/noise_floor.py

*Repeated*: a family is predicted by what the other families of its card and code took, each corrected for shape and batch by the
model: neither card nor code has to be modelled. *In hindsight*: the one factor for that card and code that suits its families
best, chosen with all of them known. A model that is given card, code and configuration, and nothing of the machine, can be
expected to reach the first, and not to beat the second.
"""

import csv
import math
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.runs import Run, all_runs  # noqa: E402
from fit.speed_problem import measured_seconds, tested  # noqa: E402

from bench.score import percent  # noqa: E402
from onecard.planner.workload import Workload  # noqa: E402

RESIDUALS = ROOT / "fit" / "speed_residuals.csv"
Families = dict[str, float]  # the middle log(measured / predicted) of each
Groups = dict[tuple[str, str], Families]  # by card and code


def groups(column: str) -> Groups:
    """Families of one card and code, where there are two or more; predictions are those of a column of the residuals."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    with RESIDUALS.open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            families = found.setdefault((row["card"], row["code"]), {})
            miss = math.log(float(row["measured_seconds"]) / float(row[column]))
            families.setdefault(row["family"], []).append(miss)
    return {
        place: {family: statistics.median(misses) for family, misses in families.items()}
        for place, families in sorted(found.items())
        if len(families) > 1
    }


def repeated(families: Families, name: str) -> float:
    return statistics.median(miss for other, miss in families.items() if other != name)


def in_hindsight(families: Families, name: str) -> float:
    return statistics.median(families.values())


def ours(families: Families, name: str) -> float:
    return 0.0


def errors(found: Groups, expected: Callable[[Families, str], float]) -> list[float]:
    """Of each family in each group, relative to what was measured."""
    return [
        abs(math.exp(expected(families, name) - miss) - 1)
        for families in found.values()
        for name, miss in families.items()
    ]


def same_work(runs: Iterable[Run]) -> list[tuple[str, float, list[str]]]:
    """Rows of several families with the same card, code, model, context, micro-batch and number of cards: how far their rates
    lie apart. Accumulation may differ, and the vocabulary's padding: it is the rate of tokens that is compared."""
    found: dict[tuple[str, Workload], dict[str, list[float]]] = {}
    for run in filter(tested, runs):
        assert run.workload is not None
        assert run.device is not None
        w = run.workload
        alike = replace(w, accumulation=1, vocab_size=-(-w.vocab_size // 64), optimizer="")
        rates = found.setdefault((run.device.name, alike), {})
        rate = w.tokens * w.accumulation * w.gpus / measured_seconds(run)
        rates.setdefault(run.family, []).append(rate)
    answer = []
    for (card, w), rates in found.items():
        if len(rates) > 1:
            middles = [statistics.median(each) for each in rates.values()]
            cards = f"{w.gpus} × {card}" if w.gpus > 1 else card
            shape = f"{w.n_layer} layers of {w.n_embd}, {w.batch_size} × {w.block_size}"
            name = f"{cards}, {w.stack}: {shape}"
            answer.append((name, max(middles) / min(middles), sorted(rates)))
    return sorted(answer, key=lambda row: -row[1])


def lines() -> list[str]:
    fitted, held_out = groups("fitted_seconds"), groups("held_out_seconds")
    table = ["| card | code | families | slowest over fastest |", "|---|---|---|---|"]
    for (card, code), families in fitted.items():
        apart = math.exp(max(families.values()) - min(families.values()))
        table.append(f"| {card} | {code} | {', '.join(families)} | {apart:.2f} |")
    rows = [
        ("our prediction, the family left out", errors(held_out, ours)),
        ("repeated: other families of that card and code", errors(fitted, repeated)),
        ("in hindsight: the best factor for that card and code", errors(fitted, in_hindsight)),
    ]
    summary = [
        "| families of one card and code | families | mean error | median |",
        "|---|---|---|---|",
    ]
    for name, found in rows:
        mean, middle = statistics.mean(found), statistics.median(found)
        summary.append(f"| {name} | {len(found)} | {percent(mean)} | {percent(middle)} |")
    twice = ["| the same work | families | fastest over slowest |", "|---|---|---|"]
    for name, apart, names in same_work(all_runs()):
        twice.append(f"| {name} | {', '.join(names)} | {apart:.2f} |")
    return [*summary, "", *table, "", *twice]


if __name__ == "__main__":
    print("\n".join(lines()))
