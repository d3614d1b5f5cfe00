"""What limits the best run: whether more memory, more time or more data would lower its loss, and by how much.

bounds = limits(search, best)
bounds.by, bounds.memory_gain
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from onecard.advise.budget import Budget
from onecard.advise.savers import with_memory
from onecard.advise.schedule import Candidate
from onecard.advise.search import Search
from onecard.units import GIB

Limit = Literal["memory", "compute", "data"]
FLAT = 0.01  # nats: less than runs of one recipe differ by; seven times the noise between seeds
MORE_MEMORY = 4  # times the card's
MORE_TIME = 2  # times the budget
LONGER = 0.1  # of the time to a loss: less is not worth another card


@dataclass(frozen=True)
class Limits:
    """Gains in nats; in seconds where the budget is a loss to reach. None: does not apply to the budget."""

    by: Limit
    memory_gain: float  # with four times the memory
    compute_gain: float | None  # with twice the time
    data_gain: float | None  # with as much text as could be used


def limits(search: Search, best: Candidate) -> Limits:
    """The same search with more of each; what lowers the loss decides."""
    memory = _gain(best, search, _with_more_memory(search))
    if search.budget.loss is not None:
        return Limits("memory" if memory > LONGER * best.seconds else "compute", memory, None, None)
    if search.budget.seconds is None:
        return Limits("memory" if memory > FLAT else "compute", memory, None, None)
    longer = search.with_budget(Budget(seconds=MORE_TIME * search.budget.seconds))
    compute = _gain(best, search, longer)
    data = 0.0 if search.corpus.tokens is None else _gain(best, search, _with_endless_data(search))
    return Limits(_largest(memory, compute, data), memory, compute, data)


def _largest(memory: float, compute: float, data: float) -> Limit:
    """Where it brings something at all: data if it brings more than time; memory if it brings half as much as either."""
    if memory > FLAT and memory > max(compute, data) / 2:
        return "memory"
    return "data" if data > FLAT and data > compute else "compute"


def _gain(best: Candidate, search: Search, other: Search) -> float:
    return max(0.0, search.score(best) - other.score(other.best()))


def _with_more_memory(search: Search) -> Search:
    device = with_memory(search.device, MORE_MEMORY * search.device.memory_bytes / GIB)
    return Search(device, search.base, search.corpus, search.budget)


def _with_endless_data(search: Search) -> Search:
    return search.with_corpus(dataclasses.replace(search.corpus, tokens=None))
