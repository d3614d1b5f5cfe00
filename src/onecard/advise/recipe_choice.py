"""Which recipe: GPT-2's or the modern one, by the loss that the best run of each should reach in the same budget.

    contest = choose(card, Budget(seconds=72_000))
    contest.best.config.recipe, contest.gain  # the winner, and by how many nats, with its range

The lower expected loss wins, but for a modern run that public runs do not cover where they cover GPT-2's (`covered`). The range
of the difference, a length that no public run of the modern recipe has, and what the choice costs (llama.cpp and nanoGPT cannot
load the modern model) are in the answer. Text that no public run read is judged as the text whose losses the search borrows: on
every text where the recipes were compared, the modern one leads. Each is compared as it would be run, GPT-2's at its careful
learning rate; what a bolder one may gain is in the same sentence.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from onecard.advise.budget import Budget
from onecard.advise.own_runs import other_text
from onecard.advise.schedule import Candidate, base_config
from onecard.advise.search import Search
from onecard.config import GPT2_PADDED_VOCAB, RunConfig
from onecard.config.recipes import recipe_values
from onecard.errors import UserError
from onecard.facts.datasets import family
from onecard.facts.gpus import Device
from onecard.messages import Note
from onecard.planner import Range
from onecard.planner.corpus import Corpus, corpus_of
from onecard.planner.expected_loss import GPT2_VOCABULARY
from onecard.planner.loss_settings import loss_fit, rate_left
from onecard.units import HOUR

DEFAULT_DATA = "fineweb-edu"
OTHER = {"gpt2": "modern", "modern": "gpt2"}
WORTH_SAYING = 0.01  # nats
NEAR = 2  # public runs of half to twice a size count as runs of that size


@dataclass(frozen=True)
class Rival:
    """The best run of the other recipe in the same budget."""

    recipe: str
    config: RunConfig
    params: int
    tokens: int
    seconds: float
    loss: Range


@dataclass(frozen=True)
class Contest:
    """The run that was chosen, and the best one of the other recipe, where there is one."""

    search: Search
    best: Candidate
    other: Candidate | None
    asked: str | None  # the recipe, where it was not up for choice

    @property
    def rival(self) -> Rival | None:
        if self.other is None:
            return None
        run = self.other
        return Rival(
            run.config.recipe, run.config, run.params, run.tokens, run.seconds, run.estimate.final
        )

    @cached_property
    def gain(self) -> Range | None:
        """Nats by which the chosen run should end below the other recipe's."""
        return None if self.other is None else gain_of(self.best, self.other)

    def notes(self) -> list[Note]:
        """Why this recipe, or what the other one would give; and what follows from the modern one."""
        reasons = [note for note in (self._why(),) if note is not None]
        if self.best.config.shape.modern:
            reasons.append(Note("modern-exports"))
            reasons += self._grounds()
        return [*reasons, *self._length()]

    def _grounds(self) -> list[Note]:
        """What the modern recipe's gain rests on: public runs of that size, and of which text."""
        if self.other is None or self.search.budget.loss is not None:
            return []
        if self.search.corpus.family is None:
            return [other_text()]
        known, size = loss_fit()["modern_runs"], self.best.estimate.size
        sizes = known["sizes"]
        near = sum(size / NEAR <= each <= size * NEAR for each in sizes)
        figures = {"runs": len(sizes), "low": sizes[0], "high": sizes[-1]}
        if near:
            shortest, longest = public_lengths()
            figures |= {"sources": known["sources"], "shortest": shortest, "longest": longest}
            return [Note("recipe-runs", near=near, **figures)]
        return [Note("recipe-runs-far", **figures)]

    def _length(self) -> list[Note]:
        """Where the modern run, chosen or not, is of a length that no public run of its recipe has: what its gain rests on there."""
        if self.other is None or self.search.budget.loss is not None:
            return []
        modern = self.best if self.best.config.shape.modern else self.other
        shortest, longest = public_lengths()
        if modern.tokens > longest:
            return [Note("recipe-length-beyond", longest=longest)]
        if modern.tokens >= shortest:
            return []
        ours = loss_fit()["modern_runs"]["own_tokens"]
        figures = {"shortest": shortest, "first": ours[0], "last": ours[-1]}
        return [Note("recipe-length-below", **figures)]

    def _why(self) -> Note | None:
        if self.other is None or self.gain is None:
            return None
        theirs = self.other.config.recipe
        figures: dict[str, Any]
        if self.search.budget.loss is not None:
            figures = {"recipe": theirs, "time": self.other.seconds, "ours": self.best.seconds}
            return Note("recipe-time", **figures)
        gain, rate = self.gain, {"rate": self._rate()}
        if (
            self.asked is None
            and not self.best.config.shape.modern
            and not covered(self.other, self.best)
        ):
            return Note("recipe-unproven", ours=self.best.loss, loss=self.other.loss)
        if self.asked is None and self.best.config.shape.modern:
            figures = {"loss": self.other.loss, "tokens": self.other.tokens, **rate}
            return Note("recipe-modern", gain=gain.mid, low=gain.low, high=gain.high, **figures)
        figures = {"recipe": theirs, "loss": self.other.loss, "ours": self.best.loss, **rate}
        lower = Range(-gain.high, -gain.mid, -gain.low)
        if gain.mid >= 0:
            return Note("other-higher", gain=gain.mid, low=gain.low, high=gain.high, **figures)
        return Note("other-lower", gain=lower.mid, low=lower.low, high=lower.high, **figures)

    def _rate(self) -> Note | str:
        """The same difference without what GPT-2's careful rate costs: the end of the sentence that has the difference."""
        if self.other is None:
            return ""
        pair = (self.best, self.other)
        modern, gpt2 = pair if self.best.config.shape.modern else pair[::-1]
        left, lead = careful(gpt2), gpt2.loss - modern.loss
        if left < WORTH_SAYING:
            return ""
        return Note("recipe-rate", gain=math.copysign(1, lead) * (lead - left))


def choose(
    device: Device,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str | None = None,
    changes: dict[str, Any] | None = None,
) -> Contest:
    """The best run of the recipe asked for; of either, where none is. The other's best comes along."""
    first = recipe or "gpt2"
    fixed = changes or {}
    search, best = chosen_run(device, budget, data=data, recipe=first, changes=fixed)
    rival = None
    if "optimizer" not in fixed:  # which is part of a recipe
        try:
            rival = chosen_run(device, budget, data=data, recipe=OTHER[first], changes=fixed)
        except UserError:
            rival = None
    if rival is None:
        return Contest(search, best, None, recipe)
    if recipe is None and wins(rival[0], rival[1], best):
        return Contest(rival[0], rival[1], best, None)
    return Contest(search, best, rival[1], recipe)


def wins(search: Search, modern: Candidate, gpt2: Candidate) -> bool:
    """Whether the modern recipe is the better one, as far as the evidence reaches."""
    if not covered(modern, gpt2):
        return False
    if search.budget.loss is not None:
        return modern.seconds < gpt2.seconds
    return modern.loss < gpt2.loss


def covered(modern: Candidate, gpt2: Candidate) -> bool:
    """Whether public runs say as much of the modern run as of GPT-2's, by size and tokens a parameter. Where they say nothing of
    either, onecard's own runs of few tokens a parameter speak for the modern one. A run shorter or longer than every public
    one of the modern recipe is not refused, for then more hours would give a worse loss: the answer says what is known at its
    length, and the gain's range is wider (`gain_of`)."""
    return modern.estimate.in_support or not gpt2.estimate.in_support


def gain_of(ours: Candidate, theirs: Candidate) -> Range:
    """Nats by which one run should end below another of the other recipe. Its range: how far the difference was off for public
    projects that published both recipes, twice that at lengths that no public run of the modern one has; and, since the two
    runs are of different sizes, for those that published several."""
    fit, middle = loss_fit(), theirs.loss - ours.loss
    modern = ours if ours.config.shape.modern else theirs
    shortest, longest = public_lengths()
    times = 1 if shortest <= modern.tokens <= longest else 2
    wide = math.hypot(times * fit["recipe_spread"], fit["size_spread"])
    return Range(middle - wide, middle, middle + wide)


def public_lengths() -> tuple[float, float]:
    """The fewest and the most tokens of a public run of the modern recipe."""
    lengths = loss_fit()["modern_runs"]["tokens"]
    return lengths[0], lengths[-1]


def careful(run: Candidate) -> float:
    """Nats that a run's learning rate costs against the best one: reported beside the gain, which is of the runs as they would be."""
    known = run.estimate
    return max(0.0, rate_left(run.config, known.size, known.tokens, known.recipe, loss_fit()))


def chosen_run(
    device: Device,
    budget: Budget,
    *,
    data: str | int | None = None,
    recipe: str = "gpt2",
    changes: dict[str, Any] | None = None,
) -> tuple[Search, Candidate]:
    """The search among runs of one recipe, and its best run."""
    search = Search(device, _base(device, data, recipe, changes or {}), corpus_for(data), budget)
    return search, search.best()


def search_of(device: Device, data: str | int | None = None, recipe: str = "gpt2") -> Search:
    """A search to keep for many budgets: most of its work, tuning each shape to the card, is the same for all of them."""
    return Search(device, _base(device, data, recipe, {}), corpus_for(data), Budget(seconds=HOUR))


def corpus_for(data: str | int | None) -> Corpus:
    """Without a data set: FineWeb-Edu, as much as there is of it."""
    if data is None:
        whole = family(DEFAULT_DATA)[-1]
        return Corpus(DEFAULT_DATA, whole.tokens, DEFAULT_DATA, whole.vocab_size)
    return corpus_of(data, like=DEFAULT_DATA)


def _base(
    device: Device, data: str | int | None, recipe: str, changes: dict[str, Any]
) -> RunConfig:
    vocabulary = corpus_for(data).vocab_size
    if vocabulary is None or vocabulary in GPT2_VOCABULARY:
        vocabulary = GPT2_PADDED_VOCAB
    own = {**recipe_values(recipe), "recipe": recipe, "vocab_size": vocabulary}
    return base_config(device, **{**own, **changes})
