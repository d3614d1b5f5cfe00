"""What should I run on my card? The best run in the time, why it is that one, and what else there is.

>>> answer = recommend("RTX 4070", Budget(seconds=72_000))
>>> answer.plan.memory.fits, answer.plan.time.total_seconds.mid <= 72_000
('yes', True)
"""

from dataclasses import dataclass
from typing import Any, Literal

from onecard.advise.rent import Rented, rented
from onecard.advise.search import MOST_EPOCHS, Budget, Candidate, Search, base_config
from onecard.advise.sensitivity import FLAT, Sensitivity, Size, neighbours, sensitivity, size_of
from onecard.advise.shapes import Shape
from onecard.config import GPT2_PADDED_VOCAB, RunConfig
from onecard.facts.datasets import family
from onecard.facts.gpus import Device
from onecard.facts.prices import Price
from onecard.messages import Note
from onecard.planner import Range, RunPlan, plan, resolve_device
from onecard.planner.corpus import Corpus, corpus_of
from onecard.planner.loss import GPT2_VOCABULARY
from onecard.planner.result import as_plain
from onecard.version import __version__

SCHEMA = "onecard.recommend/1"
DEFAULT_DATA = "fineweb-edu"

Limit = Literal["memory", "compute", "data"]


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
    config = _named(best, data)
    answer = plan(config, device, data=data, price=price)
    runs = neighbours(search, best)
    matters = sensitivity(search, best, runs)
    limit = _limit(search, best)
    return Recommendation(
        schema=SCHEMA,
        version=__version__,
        budget=budget,
        config=answer.config,
        plan=answer,
        expected_loss=best.estimate.final,
        savers=best.tuned.savers.names,
        limited_by=limit,
        reasons=_reasons(search, best, limit),
        runners_up=_runners_up(search, best, runs),
        sensitivity=matters,
        sizes=[size_of(run) for run in runs],
        notes=_notes(search, best),
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


def _named(best: Candidate, data: str | int | None) -> RunConfig:
    """The config as a person gets it, checked, with the data set's name: the smallest sample that is enough."""
    name = best.config.dataset
    if data is None:
        samples = family(DEFAULT_DATA)
        enough = next(
            (sample for sample in samples if sample.tokens >= 0.98 * best.tokens), samples[-1]
        )
        name = enough.aliases[0]
    elif isinstance(data, str) and name != DEFAULT_DATA:
        name = data
    return best.config.replace(dataset=name)


def _limit(search: Search, best: Candidate) -> Limit:
    """What to have more of, to do better: memory if an endless card would; data if the tokens ran out before the time."""
    ideal = min(search.ideal.values())
    gap = FLAT if search.budget.loss is None else 0.1 * best.seconds
    if ideal < search.score(best) - gap:
        return "memory"
    shape = Shape(best.config.n_layer, best.config.n_embd)
    if search.budget.loss is None and best.tokens > 0.98 * search.most_tokens(shape):
        return "data"
    return "compute"


def _reasons(search: Search, best: Candidate, limit: Limit) -> list[Note]:
    device, budget = search.device, search.budget
    said = []
    if limit == "memory":
        said.append(
            Note(
                "limit-memory",
                "memory is what limits it: with more than the {card:bytes} of the {name}, a larger "
                "model or a larger micro-batch would do better in the same time",
                card=device.usable_bytes,
                name=device.name,
            )
        )
    elif limit == "data":
        said.append(
            Note(
                "limit-data",
                "data is what limits it: past {tokens:count} tokens ({epochs} times over the set, or "
                "further than public runs of its size go) more time would buy little",
                tokens=best.tokens,
                epochs=MOST_EPOCHS,
            )
        )
    elif budget.loss is not None:
        said.append(
            Note(
                "limit-compute-loss",
                "compute is what limits it: a smaller model would need more tokens than it saves, a "
                "larger one more time for each",
            )
        )
    elif budget.tokens is not None:
        said.append(
            Note(
                "limit-tokens",
                "the largest model that {tokens:count} tokens are enough for (Chinchilla's optimum); a larger "
                "one would spend its time better on more tokens",
                tokens=budget.tokens,
            )
        )
    else:
        said.append(
            Note(
                "limit-compute",
                "compute is what limits it: in that time a larger model would see too few tokens, and a "
                "smaller one would learn too little from each",
            )
        )
    c, m = best.config, best.tuned.memory
    said.append(
        Note(
            "choice-batch",
            "micro-batch {batch}: the fastest that fits, with {used:bytes} of the {card:bytes} and "
            "{desktop:bytes} kept for the desktop",
            batch=c.batch_size,
            used=m.process_bytes.mid,
            card=m.card_bytes,
            desktop=m.desktop_bytes,
        )
    )
    said.append(
        Note(
            "choice-total",
            "{tokens:int} tokens a step, as runs of this size and length want",
            tokens=c.tokens_per_step,
        )
    )
    said.append(
        Note(
            "choice-muon",
            "learning rate {rate:g}: Muon's own, whatever the size",
            rate=c.learning_rate,
        )
        if c.optimizer == "muon"
        else Note(
            "choice-rate",
            "learning rate {rate:g}: that of the size (GPT-3, table 2.1)",
            rate=c.learning_rate,
        )
    )
    if names := best.tuned.savers.names:
        said.append(
            Note(
                "choice-savers",
                "memory savers: {savers}; they pay for themselves here",
                savers=", ".join(names),
            )
        )
    else:
        said.append(Note("choice-plain", "no memory saver is worth its cost here"))
    return said


def _notes(search: Search, best: Candidate) -> list[Note]:
    said = search.corpus.notes
    if not best.estimate.in_support:
        said.append(
            Note("short", "no public run is this short for its size: take the loss as a guess")
        )
    if search.corpus.family is None:
        said.append(
            Note(
                "unknown-data",
                "no public losses are on this data: the sizes are ranked as if it were FineWeb",
            )
        )
    if search.base.recipe == "gpt2" and search.base.optimizer == "adamw":
        said.append(
            Note(
                "modern",
                "--recipe modern makes each token go further; see what it recommends for the same hours",
            )
        )
    if search.base.block_size != 1024:
        said.append(
            Note("context", "the expected loss has no term for the context: public runs have 1024")
        )
    return said


def _runners_up(search: Search, best: Candidate, runs: list[Candidate]) -> list[Alternative]:
    """One smaller, one larger, and the best in half the time, each the best of its kind."""
    smaller = [run for run in runs if run.params <= 0.75 * best.params]
    larger = [run for run in runs if run.params >= 1.3 * best.params]
    found = []
    if smaller:
        found.append(_alternative("smaller", min(smaller, key=search.score), best, search))
    if larger:
        found.append(_alternative("larger", min(larger, key=search.score), best, search))
    if search.budget.seconds is not None:
        sooner = _sooner(search)
        if sooner is not None and sooner.seconds < 0.75 * best.seconds:
            found.append(_alternative("sooner", sooner, best, search))
    for run in sorted(runs, key=search.score):
        if len(found) >= 3:
            break
        if run.params != best.params and all(run.config != other.config for other in found):
            found.append(
                _alternative("smaller" if run.params < best.params else "larger", run, best, search)
            )
    return found


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
            Note(
                "trade-smaller-loss",
                "cheaper to use afterwards; takes {extra:duration} longer to get there",
                **longer,
            )
            if kind == "smaller"
            else Note(
                "trade-larger-loss",
                "fewer tokens, each slower; takes {extra:duration} longer to get there",
                **longer,
            )
        )
    elif kind == "smaller" and run.tokens < 1.05 * best.tokens:
        trade = Note(
            "trade-smaller-data",
            "cheaper to use afterwards and sooner done, for {nats:.3f} nats",
            **figures,
        )
    elif kind == "smaller":
        trade = Note(
            "trade-smaller",
            "cheaper to use afterwards and more tokens seen, for {nats:.3f} nats",
            **figures,
        )
    elif kind == "larger":
        trade = Note(
            "trade-larger", "better with every further hour, for {nats:.3f} nats now", **figures
        )
    else:
        trade = Note(
            "trade-sooner", "what the other half of the time would buy: {nats:.3f} nats", **figures
        )
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
