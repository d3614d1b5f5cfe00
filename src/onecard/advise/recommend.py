"""What should I run on my card? The best run in the time, why it is that one, and what else there is.

>>> answer = recommend("RTX 4070", Budget(seconds=72_000))
>>> answer.plan.memory.fits, answer.plan.time.total_seconds.mid <= 72_000
('yes', True)
"""

from dataclasses import dataclass
from typing import Any

from onecard.advise.budget import Budget
from onecard.advise.limits import Limit, Limits, limits
from onecard.advise.rent import Rented, rented
from onecard.advise.runners_up import Alternative, runners_up
from onecard.advise.schedule import base_config
from onecard.advise.search import MOST_EPOCHS, Candidate, Search
from onecard.advise.sensitivity import Sensitivity, Size, neighbours, sensitivity, size_of
from onecard.config import GPT2_PADDED_VOCAB, RunConfig
from onecard.errors import UserError
from onecard.facts.datasets import family
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import Range, RunPlan, plan, resolve_device
from onecard.planner.corpus import Corpus, corpus_of
from onecard.planner.expected_loss import GPT2_VOCABULARY
from onecard.planner.result import as_plain
from onecard.version import __version__

SCHEMA = "onecard.recommend/1"
DEFAULT_DATA = "fineweb-edu"


@dataclass(frozen=True)
class Recommendation:
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
    rentals: list[Rented] | None

    def to_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = as_plain(self)
        return answer


def recommend(
    gpu: Device | str | None,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str = "gpt2",
    changes: dict[str, Any] | None = None,
    price: Price | str | None = None,
    rent: bool = False,
) -> Recommendation:
    """The run of lowest expected loss in the budget on that card. `changes`: config keys that are not up for choice."""
    device = resolve_device(gpu)
    search, best = chosen_run(device, budget, data=data, recipe=recipe, changes=changes)
    config = _named(best, data, budget)
    answer = plan(config, device, data=data, price=price)
    runs = neighbours(search, best)
    matters = sensitivity(search, best, runs)
    found = limits(search, best)
    return Recommendation(
        schema=SCHEMA,
        version=__version__,
        budget=budget,
        config=answer.config,
        plan=answer,
        expected_loss=best.estimate.final,
        savers=best.tuned.savers.names,
        limited_by=found.by,
        limits=found,
        reasons=[_limit_reason(search, best, found), *_choices(best)],
        runners_up=runners_up(search, best, runs),
        sensitivity=matters,
        sizes=[size_of(run) for run in runs],
        notes=_notes(search, best, _modern(search, data, changes or {})),
        rentals=rented(answer.config) if rent else None,
    )


def chosen_run(
    device: Device,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str = "gpt2",
    changes: dict[str, Any] | None = None,
) -> tuple[Search, Candidate]:
    """Only the search and its best run, without what surrounds a recommendation."""
    search = Search(device, _base(device, data, recipe, changes or {}), _corpus(data), budget)
    return search, search.best()


def recommended_plan(
    device: Device,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str = "gpt2",
    price: Price | str | None = None,
) -> RunPlan:
    """The plan of the run that `recommend` would name, without its reasons and runners-up: a third of the time."""
    _, best = chosen_run(device, budget, data=data, recipe=recipe)
    return plan(_named(best, data, budget), device, data=data, price=price)


def _corpus(data: str | int | None) -> Corpus:
    """Without --data: FineWeb-Edu, as much as there is of it."""
    if data is None:
        whole = family(DEFAULT_DATA)[-1]
        return Corpus(DEFAULT_DATA, whole.tokens, DEFAULT_DATA, whole.vocab_size)
    return corpus_of(data, like=DEFAULT_DATA)


def _base(
    device: Device, data: str | int | None, recipe: str, changes: dict[str, Any]
) -> RunConfig:
    vocabulary = _corpus(data).vocab_size
    if vocabulary is None or vocabulary in GPT2_VOCABULARY:
        vocabulary = GPT2_PADDED_VOCAB
    # The modern recipe is trained with Muon and a schedule that holds its rate until the last fifth, as its public runs are.
    modern = {"optimizer": "muon", "schedule": "wsd"} if recipe == "modern" else {}
    return base_config(device, **{"recipe": recipe, "vocab_size": vocabulary, **modern, **changes})


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


def _limit_reason(search: Search, best: Candidate, found: Limits) -> Note:
    """What to have more of, to do better, and how much better."""
    figures = {"memory": found.memory_gain, "compute": found.compute_gain, "data": found.data_gain}
    if found.by == "memory":
        return Note(
            "limit-memory-time" if search.budget.loss is not None else "limit-memory",
            card=search.device.usable_bytes,
            name=search.device.name,
            **figures,
        )
    if found.by == "data":
        return Note("limit-data", tokens=best.tokens, epochs=MOST_EPOCHS, **figures)
    if search.budget.loss is not None:
        return Note("limit-compute-loss", **figures)
    if search.budget.tokens is not None:
        return Note("limit-tokens", tokens=search.budget.tokens)
    return Note("limit-compute", **figures)


def _choices(best: Candidate) -> list[Note]:
    """Why each setting is what it is."""
    config, memory = best.config, best.tuned.memory
    notes = [
        Note(
            "choice-batch",
            batch=config.batch_size,
            used=memory.process_bytes.mid,
            card=memory.card_bytes,
            desktop=memory.desktop_bytes,
        ),
        Note("choice-total", tokens=config.tokens_per_step),
        Note(
            "choice-muon" if config.optimizer == "muon" else "choice-rate",
            rate=config.learning_rate,
        ),
    ]
    if names := best.tuned.savers.names:
        notes.append(Note("choice-savers", savers=", ".join(names)))
    else:
        notes.append(Note("choice-plain"))
    return notes


def _modern(search: Search, data: str | int | None, changes: dict[str, Any]) -> Candidate | None:
    """The best run of the modern recipe in the same budget, where the search was for GPT-2's."""
    if search.base.recipe != "gpt2" or search.base.optimizer != "adamw" or "optimizer" in changes:
        return None
    try:
        return chosen_run(
            search.device, search.budget, data=data, recipe="modern", changes=changes
        )[1]
    except UserError:
        return None


def _notes(search: Search, best: Candidate, modern: Candidate | None) -> list[Note]:
    notes = [*search.corpus.notes]
    if not best.estimate.in_support:
        notes.append(Note("short"))
    if search.corpus.family is None:
        notes.append(Note("unknown-data"))
    if modern is not None and search.budget.loss is not None:
        if modern.seconds < best.seconds:
            notes.append(Note("modern-time", time=modern.seconds, ours=best.seconds))
    elif modern is not None and modern.loss < best.loss:
        gain = best.loss - modern.loss
        notes.append(Note("modern", loss=modern.loss, ours=best.loss, gain=gain))
    if search.base.block_size != 1024:
        notes.append(Note("context"))
    return notes
