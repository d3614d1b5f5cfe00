"""What `onecard go` expects to do: the run for this machine and budget, and where its tokens come from."""

import dataclasses
import math
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onecard.advise.budget import Budget
from onecard.advise.no_run import NotCovered
from onecard.advise.recipe_choice import DEFAULT_DATA
from onecard.advise.recommend import Recommendation, recommend
from onecard.advise.small_run import BYTES_PER_TOKEN, SmallRun, small_run, vocabulary_for
from onecard.cli import parser_of
from onecard.cli.go_record import Expectation, Question
from onecard.cli.go_stages import Places
from onecard.cli.recommend import budget_of
from onecard.config import parse_overrides
from onecard.data.preparation.pipeline import sized
from onecard.data.preparation.size import Size
from onecard.errors import OnecardError, UserError
from onecard.facts.datasets import known_dataset
from onecard.facts.gpus import Device
from onecard.facts.prices import parse_money
from onecard.planner import RunPlan, resolve_device
from onecard.planner.corpus import prepared_folder
from onecard.units import HOUR

# fetched than the run is expected to read: the measured machine may be a little faster
MORE_TOKENS = 1.03


def for_what_torch_can_use(question: Question) -> tuple[Question, str | None]:
    """The question for the CPU where this torch cannot use the card, which training will find too; why, in a sentence."""
    from onecard.facts.here import here

    if question.device != "here" or find_spec("torch") is None or here().kind == "cpu":
        return question, None
    from onecard.model.machine import choose_device, unseen_card

    device = choose_device("auto")
    if device.type != "cpu":
        return question, None
    return dataclasses.replace(question, device="cpu"), unseen_card(device, "auto")


def expect(question: Question, places: Places) -> Expectation:
    """Find the run for this machine and time before anything is fetched."""
    device = resolve_device(question.device)
    choice = _choose(question, places, device)
    plan, size, source = choice.answer.plan, choice.size, choice.source
    if question.budget:
        affordable = _affordable_hours(question.budget, plan)
        if affordable < plan.time.total_seconds.mid / HOUR:
            limit = ("hours", f"{affordable:.4g}")
            return expect(dataclasses.replace(question, limit=limit, budget=None), places)
    wanted = math.ceil(plan.tokens.total * MORE_TOKENS)
    part = size is None or (wanted < size.tokens and not size.indivisible)
    fetch = wanted if part else None
    if source is not None:
        size = _sized(source, choice.tokenizer, fetch)
    return Expectation(
        words=question.words,
        card=device.name,
        source=source,
        data=choice.data,
        tokenizer=choice.tokenizer,
        fetch_tokens=fetch if source is not None else None,
        params=plan.params.total,
        tokens=plan.tokens.total,
        memory_bytes=plan.memory.process_bytes.mid,
        train_seconds=plan.time.total_seconds.mid,
        data_seconds=size.seconds if size and source else 0.0,
        download_bytes=size.download_bytes if size and source else 0,
        data_bytes=size.out_bytes if size and source else 0,
        kwh=plan.energy.kwh.mid,
        cost=(plan.energy.cost.mid, plan.energy.currency),
        loss=dataclasses.astuple(plan.loss.expected) if plan.loss else None,
        device=question.device,
    )


def _affordable_hours(given: str, plan: RunPlan) -> float:
    """How long the electricity lasts that the budget buys."""
    amount, currency = parse_money(given)
    if currency != plan.energy.currency:
        raise UserError(
            f"the budget is in {currency}, electricity in {plan.energy.currency}",
            hint=f"give both in one currency, such as --price 0.25{currency}",
        )
    per_hour = plan.energy.cost.mid / (plan.time.total_seconds.mid / HOUR)
    return amount / per_hour


@dataclass(frozen=True)
class _Choice:
    """A run, and where its tokens come from."""

    answer: Recommendation | SmallRun
    data: str  # the prepared folder
    source: str | None = None
    tokenizer: str | None = None
    size: Size | None = None  # of the whole source, where that is known


def _choose(question: Question, places: Places, device: Device) -> _Choice:
    """Prepared tokens as they are; GPT-2's tokens where public runs cover the time and the text; else a tokeniser of the
    text's own, as large as suits the model."""
    prepared = None if question.data is None else prepared_folder(question.data)
    if prepared is not None:
        covered = _covered(question, device, str(prepared))
        return _Choice(covered or _small(question, device, str(prepared)), str(prepared))
    source = question.data or DEFAULT_DATA
    known = known_dataset(source)
    size = None if known else _sized(source, None, None)
    choice = _covered(question, device, question.data if size is None else size.tokens)
    if choice is not None:
        if question.data is None:
            source = choice.config.dataset  # the smallest sample that is enough
        return _Choice(choice, _folder(places, source), source, size=size)
    text_bytes = known.tokens * known.bytes_per_token if known else size.text_bytes if size else 0
    return _with_own_tokeniser(question, places, device, source, text_bytes)


def _with_own_tokeniser(
    question: Question, places: Places, device: Device, source: str, text_bytes: float
) -> _Choice:
    seconds = _seconds(question)
    vocabulary = vocabulary_for(device, seconds, text_bytes=text_bytes, recipe=question.recipe)
    tokens = max(1, round(text_bytes / BYTES_PER_TOKEN))
    answer = _small(question, device, tokens, vocab_size=vocabulary)
    tokenizer = f"bpe:{vocabulary}"
    size = _sized(source, tokenizer, None)
    return _Choice(answer, _folder(places, source), source, tokenizer, size)


def _small(question: Question, device: Device, data: str | int, **changes: Any) -> SmallRun:
    return small_run(
        device,
        _seconds(question),
        data=data,
        recipe=question.recipe,
        changes={**changes, **parse_overrides(list(question.overrides))},
        price=question.price,
    )


def _covered(question: Question, device: Device, data: str | int | None) -> Recommendation | None:
    """The recommended run, if the time and the text are enough for a size that public runs have."""
    budget = _budget(question)
    try:
        return recommend(
            device,
            budget,
            data=data,
            recipe=question.recipe,
            changes=parse_overrides(list(question.overrides)),
            price=question.price,
        )
    except NotCovered:
        if budget.seconds is None:
            raise
        return None


def _budget(question: Question) -> Budget:
    return budget_of(parser_of("recommend").parse_args(question.words))


def _seconds(question: Question) -> float:
    seconds = _budget(question).seconds
    assert seconds is not None, "tokens and losses are for runs that public losses cover"
    return seconds


def _folder(places: Places, source: str) -> str:
    """Named after the source, for a known name tells what losses to expect."""
    name = Path(source).name or "text"
    return str(places.data / re.sub(r"[^\w.+-]", "-", name))


def _sized(source: str, tokenizer: str | None, tokens: int | None) -> Size:
    try:
        return sized([source], None, tokens, tokenizer=tokenizer)[0]
    except OnecardError as error:
        raise with_other_text(error) from None


def with_other_text(error: OnecardError) -> OnecardError:
    """The same error, with the way that needs no network."""
    other = "`onecard go --data FILE|DIR` learns text that is here already"
    return type(error)(error.message, f"{error.hint}; {other}" if error.hint else other)
