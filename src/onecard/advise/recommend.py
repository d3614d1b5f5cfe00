"""What should I run on my card? The best run in the time, why it is that one, and what else there is.

>>> answer = recommend("RTX 4070", Budget(seconds=72_000))
>>> answer.plan.memory.fits, answer.plan.time.total_seconds.mid <= 72_000
('yes', True)
"""

from dataclasses import dataclass
from typing import Any

from onecard.advise.budget import Budget
from onecard.advise.limits import Limit, Limits, limits
from onecard.advise.recipe_choice import DEFAULT_DATA, Rival, choose
from onecard.advise.rent import Rented, rented
from onecard.advise.runners_up import Alternative, runners_up
from onecard.advise.schedule import Candidate
from onecard.advise.search import MOST_EPOCHS, Search
from onecard.advise.sensitivity import Sensitivity, Size, neighbours, sensitivity, size_of
from onecard.config import RunConfig
from onecard.facts.card_names import short_name
from onecard.facts.datasets import family
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import Range, RunPlan, plan, resolve_device
from onecard.planner.loss_settings import best_rate, loss_fit, rate_left
from onecard.planner.memory import reserve
from onecard.planner.result import JsonAnswer
from onecard.version import __version__

SCHEMA = "onecard.recommend/1"
WORTH_SAYING = 0.02  # nats


@dataclass(frozen=True)
class Recommendation(JsonAnswer):
    schema: str
    version: str
    budget: Budget
    config: RunConfig
    plan: RunPlan
    expected_loss: Range
    savers: list[str]
    limited_by: Limit
    limits: Limits
    reasons: list[Note]
    runners_up: list[Alternative]
    sensitivity: Sensitivity
    sizes: list[Size]
    notes: list[Note]
    other_recipe: Rival | None  # its best run in the same budget
    recipe_gain: Range | None  # nats by which the recommended run should end below that one
    rentals: list[Rented] | None


def recommend(
    gpu: Device | str | None,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str | None = None,
    changes: dict[str, Any] | None = None,
    price: Price | str | None = None,
    rent: bool = False,
) -> Recommendation:
    """The run of lowest expected loss in the budget on that card, of either recipe where none is asked for. `changes`: config
    keys that are not up for choice."""
    device = resolve_device(gpu)
    contest = choose(device, budget, data=data, recipe=recipe, changes=changes)
    search, best, why = contest.search, contest.best, contest.notes()
    config = _named(best, data, budget)
    answer = plan(config, device, data=data, price=price)
    runs = neighbours(search, best)
    matters = sensitivity(search, best, runs)
    bounds = limits(search, best)
    return Recommendation(
        schema=SCHEMA,
        version=__version__,
        budget=budget,
        config=answer.config,
        plan=answer,
        expected_loss=best.estimate.final,
        savers=best.tuned.savers.names,
        limited_by=bounds.by,
        limits=bounds,
        reasons=[
            *([] if recipe else why),
            _limit_reason(search, best, bounds),
            *_choices(best, device),
        ],
        runners_up=runners_up(search, best, runs),
        sensitivity=matters,
        sizes=[size_of(run) for run in runs],
        notes=[*_notes(search, best), *(why if recipe else [])],
        other_recipe=contest.rival,
        recipe_gain=contest.gain,
        rentals=rented(answer.config) if rent else None,
    )


def recommended_plan(
    search: Search,
    budget: Budget,
    *,
    data: str | int | None = None,
    price: Price | str | None = None,
) -> RunPlan:
    """The plan of the run that `recommend` would name of the search's recipe, without its reasons and runners-up. `data`: that of
    the search."""
    best = search.with_budget(budget).best()
    return plan(_named(best, data, budget), search.device, data=data, price=price)


def _named(best: Candidate, data: str | int | None, budget: Budget) -> RunConfig:
    """The config as a person gets it, checked, with the data set's name (the smallest sample that is enough) and the
    hours given, which the trainer then keeps to."""
    name = best.config.dataset
    if data is None:
        samples = family(DEFAULT_DATA)
        enough = next(
            (sample for sample in samples if sample.tokens >= 0.98 * best.tokens), samples[-1]
        )
        name = enough.aliases[0]
    elif isinstance(data, str) and name != DEFAULT_DATA:
        name = data
    hours = None if budget.hours is None else float(f"{budget.hours:.4g}")
    return best.config.replace(dataset=name, max_hours=hours)


def _limit_reason(search: Search, best: Candidate, bounds: Limits) -> Note:
    """What to have more of, to do better, and how much better."""
    figures = {
        "memory": bounds.memory_gain,
        "compute": bounds.compute_gain,
        "data": bounds.data_gain,
    }
    if bounds.by == "memory":
        return Note(
            "limit-memory-time" if search.budget.loss is not None else "limit-memory",
            card=search.device.usable_bytes,
            name=short_name(search.device.name),
            **figures,
        )
    if bounds.by == "data":
        return Note("limit-data", tokens=best.tokens, epochs=MOST_EPOCHS, **figures)
    if search.budget.loss is not None:
        return Note("limit-compute-loss", **figures)
    if search.budget.tokens is not None:
        return Note("limit-tokens", tokens=search.budget.tokens)
    return Note("limit-compute", **figures)


def _choices(best: Candidate, device: Device) -> list[Note]:
    """Why each setting is what it is."""
    config, memory = best.config, best.tuned.memory
    total = "choice-total" if config.optimizer == "muon" else "choice-swept"
    notes = [
        Note(
            "choice-batch",
            batch=config.batch_size,
            used=memory.process_bytes.mid,
            card=memory.card_bytes,
            reserve=reserve(device, memory.desktop_bytes),
        ),
        Note(total, tokens=config.tokens_per_step),
        _rate(best),
    ]
    if names := best.tuned.savers.names:
        notes.append(Note("choice-savers", savers=", ".join(names)))
    else:
        notes.append(Note("choice-plain"))
    return notes


def _rate(best: Candidate) -> Note:
    """GPT-2's usual rate is below what a public sweep found best; how its blocks take more at every size is not known."""
    config, estimate, fit = best.config, best.estimate, loss_fit()
    if config.optimizer == "muon":
        return Note("choice-muon", rate=config.learning_rate)
    better = best_rate(estimate.size, estimate.tokens, fit)
    gain = rate_left(config, estimate.size, estimate.tokens, estimate.recipe, fit)
    if gain < WORTH_SAYING:
        return Note("choice-rate", rate=config.learning_rate)
    return Note("choice-rate-low", rate=config.learning_rate, best=better, gain=gain)


def _notes(search: Search, best: Candidate) -> list[Note]:
    notes = []
    if not best.estimate.in_support:
        notes.append(Note("short"))
    if search.corpus.family is None:
        notes.append(Note("unknown-data"))
    if search.base.block_size != 1024:
        notes.append(Note("context"))
    return notes
