"""What else there is beside the recommended run: a smaller one, a larger one, the best in half the time.

for other in runners_up(search, best, neighbours(search, best)): print(other.kind, other.difference)
"""

from dataclasses import dataclass

from onecard.advise.budget import Budget
from onecard.advise.schedule import Candidate
from onecard.advise.search import Search
from onecard.config import RunConfig
from onecard.messages import Note


@dataclass(frozen=True)
class Alternative:
    """Another run in the same budget, or in half of it, and what it trades."""

    kind: str  # smaller, larger, sooner
    config: RunConfig
    params: int
    tokens: int
    seconds: float
    loss: float
    difference: float  # nats above the recommended run
    process_bytes: float
    trade: Note


def runners_up(search: Search, best: Candidate, runs: list[Candidate]) -> list[Alternative]:
    """One smaller, one larger, and the best in half the time, each the best of its kind."""
    smaller = [run for run in runs if run.params <= 0.75 * best.params]
    larger = [run for run in runs if run.params >= 1.3 * best.params]
    others = []
    if smaller:
        others.append(_alternative("smaller", min(smaller, key=search.score), best, search))
    if larger:
        others.append(_alternative("larger", min(larger, key=search.score), best, search))
    if search.budget.seconds is not None:
        sooner = _sooner(search)
        if sooner is not None and sooner.seconds < 0.75 * best.seconds:
            others.append(_alternative("sooner", sooner, best, search))
    for run in sorted(runs, key=search.score):
        if len(others) >= 3:
            break
        if run.params != best.params and all(run.config != other.config for other in others):
            others.append(
                _alternative("smaller" if run.params < best.params else "larger", run, best, search)
            )
    return sorted(others, key=lambda other: (other.kind == "sooner", other.params))


def _sooner(search: Search) -> Candidate | None:
    assert search.budget.seconds is not None
    half = search.with_budget(Budget(seconds=search.budget.seconds / 2))
    runs = [run for shape in search.tried if (run := half.run(shape)) is not None]
    return min(runs, key=half.score, default=None)


def _alternative(kind: str, run: Candidate, best: Candidate, search: Search) -> Alternative:
    difference = run.loss - best.loss
    figures = {
        "nats": difference,
        "params": run.params,
        "tokens": run.tokens,
        "seconds": run.seconds,
    }
    if search.budget.loss is not None:
        longer = {**figures, "extra": run.seconds - best.seconds}
        trade = (
            Note("trade-smaller-loss", **longer)
            if kind == "smaller"
            else Note("trade-larger-loss", **longer)
        )
    elif kind == "smaller" and run.tokens < 1.05 * best.tokens:
        trade = Note("trade-smaller-data", **figures)
    elif kind == "smaller":
        trade = Note("trade-smaller", **figures)
    elif kind == "larger":
        trade = Note("trade-larger", **figures)
    else:
        trade = Note("trade-sooner", **figures)
    return Alternative(
        kind,
        run.config,
        run.params,
        run.tokens,
        run.seconds,
        run.loss,
        difference,
        run.tuned.memory.process_bytes.mid,
        trade,
    )
