"""What `onecard go` is asked, what it expects to do, and the file that lets an interrupted one go on."""

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.errors import OnecardError, UserError
from onecard.units import HOUR, show_bytes, show_count, show_duration, show_money

if TYPE_CHECKING:
    from onecard.advise.recommend import Recommendation
    from onecard.advise.small_run import SmallRun
    from onecard.cli.go_stages import Places
    from onecard.data.preparation.size import Size
    from onecard.facts.gpus import Device
    from onecard.planner import RunPlan

SCHEMA = "onecard.go/1"
FILE = "go.json"
DEFAULT_DATA = "fineweb-edu"
MORE_TOKENS = (
    1.03  # fetched than the run is expected to read: the measured machine may be a little faster
)


@dataclass(frozen=True)
class Question:
    """The options that decide what is run; another question needs another folder."""

    hours: float
    data: str | None
    recipe: str | None
    price: str | None
    budget: str | None
    device: str


@dataclass(frozen=True)
class Expectation:
    """What the stages need to know, and what the user was told."""

    hours: float  # of training, after the budget
    card: str
    source: str | None  # for `onecard data`; None where the data is prepared already
    data: str  # the prepared folder
    tokenizer: str | None
    fetch_tokens: int | None  # None: all there is
    params: int
    tokens: int
    memory_bytes: float
    train_seconds: float
    data_seconds: float
    download_bytes: int
    data_bytes: int
    kwh: float
    cost: tuple[float, str]
    loss: tuple[float, float, float] | None
    recipe: str | None = None
    price: str | None = None
    device: str = "here"

    def lines(self) -> list[str]:
        """In short, for the question that is asked once."""
        loss = (
            "no loss can be predicted for this text and size"
            if self.loss is None
            else f"expected loss {self.loss[1]:.2f} ({self.loss[0]:.2f} to {self.loss[2]:.2f})"
        )
        return [
            f"{self.card}: a model of {show_count(self.params)} parameters on {show_count(self.tokens)} tokens, "
            f"{show_bytes(self.memory_bytes)} of memory",
            f"training takes {show_duration(self.train_seconds)} and {self.kwh:.3g} kWh ({show_money(self.cost)}); {loss}",
        ]


def expect(question: Question, places: "Places") -> Expectation:
    """Find the run for this machine and time before anything is fetched."""
    from onecard.planner import resolve_device

    device = resolve_device(question.device)
    seconds = question.hours * HOUR
    choice = _choose(question, places, device, seconds)
    plan, size, source = choice.answer.plan, choice.size, choice.source
    if question.budget:
        affordable = _affordable_hours(question.budget, plan)
        if affordable < question.hours:
            cheaper = dataclasses.replace(question, hours=affordable, budget=None)
            return expect(cheaper, places)
    wanted = math.ceil(plan.tokens.total * MORE_TOKENS)
    fetch = wanted if size is None or wanted < size.tokens else None
    if source is not None:
        size = _sized(source, choice.tokenizer, fetch)
    return Expectation(
        hours=question.hours,
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
        recipe=question.recipe,
        price=question.price,
        device=question.device,
    )


def _affordable_hours(given: str, plan: "RunPlan") -> float:
    """How long the electricity lasts that the budget buys."""
    from onecard.facts.prices import parse_price

    budget = parse_price(given)
    if budget.currency != plan.energy.currency:
        raise UserError(
            f"the budget is in {budget.currency}, electricity in {plan.energy.currency}",
            hint=f"give both in one currency, such as --price 0.25{budget.currency}",
        )
    per_hour = plan.energy.cost.mid / (plan.time.total_seconds.mid / HOUR)
    return budget.per_kwh / per_hour


@dataclass(frozen=True)
class _Choice:
    """A run, and where its tokens come from."""

    answer: "Recommendation | SmallRun"
    data: str  # the prepared folder
    source: str | None = None
    tokenizer: str | None = None
    size: "Size | None" = None  # of the whole source, where that is known


def _choose(question: Question, places: "Places", device: "Device", seconds: float) -> _Choice:
    """Prepared tokens as they are; GPT-2's tokens where public runs cover the time and the text; else a tokeniser of the
    text's own, as large as suits the model."""
    from onecard.facts.datasets import known_dataset

    prepared = _prepared(question.data)
    if prepared is not None:
        covered = _covered(question, device, seconds, str(prepared))
        return _Choice(covered or _small(question, device, seconds, str(prepared)), str(prepared))
    source = question.data or DEFAULT_DATA
    known = known_dataset(source)
    size = None if known else _sized(source, None, None)
    found = _covered(question, device, seconds, question.data if size is None else size.tokens)
    if found is not None:
        if question.data is None:
            source = found.config.dataset  # the smallest sample that is enough
        return _Choice(found, _folder(places, source), source, size=size)
    text_bytes = known.tokens * known.bytes_per_token if known else size.text_bytes if size else 0
    return _with_own_tokeniser(question, places, device, seconds, source, text_bytes)


def _with_own_tokeniser(
    question: Question,
    places: "Places",
    device: "Device",
    seconds: float,
    source: str,
    text_bytes: float,
) -> _Choice:
    from onecard.advise.small_run import BYTES_PER_TOKEN, vocabulary_for

    recipe = question.recipe or "gpt2"
    vocabulary = vocabulary_for(device, seconds, text_bytes=text_bytes, recipe=recipe)
    tokens = max(1, round(text_bytes / BYTES_PER_TOKEN))
    answer = _small(question, device, seconds, tokens, vocab_size=vocabulary)
    tokenizer = f"bpe:{vocabulary}"
    size = _sized(source, tokenizer, None)
    return _Choice(answer, _folder(places, source), source, tokenizer, size)


def _small(
    question: Question, device: "Device", seconds: float, data: str | int, **changes: Any
) -> "SmallRun":
    from onecard.advise.small_run import small_run

    return small_run(
        device,
        seconds,
        data=data,
        recipe=question.recipe or "gpt2",
        changes=changes,
        price=question.price,
    )


def _covered(
    question: Question, device: "Device", seconds: float, data: str | int | None
) -> "Recommendation | None":
    """The recommended run, if the time and the text are enough for a size that public runs have."""
    from onecard.advise.budget import Budget
    from onecard.advise.recommend import recommend
    from onecard.advise.search import NotCovered

    try:
        return recommend(
            device,
            Budget(seconds=seconds),
            data=data,
            recipe=question.recipe or "gpt2",
            price=question.price,
        )
    except NotCovered:
        return None


def _folder(places: "Places", source: str) -> str:
    """Named after the source, for a known name tells what losses to expect."""
    name = Path(source).name or "text"
    return str(places.data / re.sub(r"[^\w.+-]", "-", name))


def _prepared(data: str | None) -> Path | None:
    from onecard.planner.corpus import prepared_folder

    return None if data is None else prepared_folder(data)


def _sized(source: str, tokenizer: str | None, tokens: int | None) -> "Size":
    from onecard.data.preparation.pipeline import sized

    try:
        return sized([source], None, tokens, tokenizer=tokenizer)[0]
    except OnecardError as error:
        raise with_other_text(error) from None


def with_other_text(error: OnecardError) -> OnecardError:
    """The same error, with the way that needs no network."""
    other = "`onecard go --data FILE|DIR` learns text that is here already"
    return type(error)(error.message, f"{error.hint}; {other}" if error.hint else other)


class Progress:
    """`go.json`: the question, what is expected, and which stages are done."""

    def __init__(self, root: Path, question: Question, expected: Expectation, done: list[str]):
        self.root, self.question, self.expected, self._done = root, question, expected, done

    def done(self, stage: str) -> bool:
        return stage in self._done

    def mark(self, stage: str) -> None:
        self._done.append(stage)
        self.write()

    def write(self) -> None:
        from onecard.files import write_json

        self.root.mkdir(parents=True, exist_ok=True)
        kept = {
            "schema": SCHEMA,
            "question": dataclasses.asdict(self.question),
            "expected": dataclasses.asdict(self.expected),
            "done": self._done,
        }
        write_json(self.root / FILE, kept)


def recall(root: Path, question: Question) -> Progress | None:
    """What an earlier call in this folder was to do; None where there was none."""
    from onecard.untrusted import read_json

    file = root / FILE
    if not file.is_file():
        return None
    try:
        kept = read_json(file)
        asked, expected = Question(**kept["question"]), dict(kept["expected"])
        for key in ("cost", "loss"):
            if expected[key] is not None:
                expected[key] = tuple(expected[key])
        found = Progress(root, asked, Expectation(**expected), [str(s) for s in kept["done"]])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{file} is damaged", hint="name another folder with --out, or remove that file"
        ) from None
    if asked != question:
        was = " ".join(
            f"--{name} {value}" for name, value in dataclasses.asdict(asked).items() if value
        )
        raise UserError(
            f"{root} was begun with another question ({was})",
            hint="repeat that command to go on, or name another folder with --out",
        )
    return found
