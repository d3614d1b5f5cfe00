"""Results of evaluations and sheets of prompts as documents."""

import re
from collections.abc import Sequence

from onecard.evals.prompts import Answer, Sheet, SheetFigures
from onecard.messages import T
from onecard.report.document import (
    NONE,
    Block,
    Column,
    Document,
    Notes,
    Paragraph,
    Quantity,
    Section,
    Table,
    Text,
    Value,
    always,
)
from onecard.runs.eval_meaning import beside, chance, half_width, meaning_of
from onecard.runs.eval_results import TASK_TITLES, Figure, Result

FIGURE = {
    "acc": T("accuracy"),
    "acc_norm": T("accuracy, normalised by length"),
    "bits_per_byte": T("bits per byte"),
    "loss": T("loss, nats per token"),
    "perplexity": T("perplexity"),
}
_PROTOCOLS = {
    str(words): words
    for words in (
        T("lm-evaluation-harness, 0-shot; acc_norm by characters"),
        T("lm-evaluation-harness's lambada_openai, 0-shot; the last word by greedy tokens"),
    )
}
_WINDOWS = re.compile(r"(validation split, )?windows of (\d{1,9}) tokens, stride (\d{1,9})")
TOKENIZERS_DIFFER = T(
    "The models have different tokenisers: compare their bits per byte. A loss or a perplexity per token "
    "says nothing across tokenisers."
)


def eval_document(results: Sequence[Result], sheets: Sequence[Sheet] = ()) -> Document:
    """All results, a section for each task or text, then the sheet of prompts."""
    tasks = list(dict.fromkeys(result.task for result in results))
    sections = [_section([each for each in results if each.task == task]) for task in tasks]
    if sheets:
        sections.append(_sheet_section(sheets))
    models = dict.fromkeys([each.model for each in results] + [sheet.model for sheet in sheets])
    return Document(
        title=T("How good is it?"), subtitle=" · ".join(models), sections=tuple(sections)
    )


def protocol_words(protocol: str) -> Text:
    """A result's protocol in words that can be translated; one that is not ours as it is."""
    if (match := _WINDOWS.fullmatch(protocol)) is None:
        return _PROTOCOLS.get(protocol, protocol)
    windows = T(
        "windows of {room:int} tokens, stride {stride:int}",
        room=int(match[2]),
        stride=int(match[3]),
    )
    return T("validation split, {windows}", windows=windows) if match[1] else windows


def _section(results: Sequence[Result]) -> Section:
    first = results[0]
    text = first.task.startswith("text ")
    rows = tuple(
        (result.model if number == 0 else "", *_cells(figure))
        for result in results
        for number, figure in enumerate(result.figures)
    )
    columns = (
        Column(T("model"), breaks=True),
        Column(T("figure")),
        Column(T("value"), "right"),
        Column(T("95% interval")),
    )
    blocks: list[Block] = [Table(columns, rows)]
    known, guess = beside(first), chance(first)
    if known is not None:
        blocks.append(_known_table(known.models, guess))
    notes: list[Text] = [T("protocol: {protocol}", protocol=protocol_words(first.protocol))]
    if known is not None:
        notes.append(T("released models: {source}", source=known.source))
    for result in results:
        notes += _remarks(result, alone=len(results) == 1)
    if first.of:
        notes.append(_limited(first))
    if text and len({each.tokenizer for each in results}) > 1:
        notes.append(TOKENIZERS_DIFFER)
    blocks.append(Notes(tuple(notes)))
    title = first.task.removeprefix("text ") if text else TASK_TITLES.get(first.task, first.task)
    return always(title, *blocks)


def _remarks(result: Result, alone: bool) -> list[Text]:
    remarks: list[Text] = []
    meaning = meaning_of(result)
    if meaning is not None:
        remarks.append(
            T("{model}: {meaning}", model=result.model, meaning=meaning) if not alone else meaning
        )
    if result.truncated:
        remarks.append(
            T(
                "{model}: {n:int} contexts were longer than the model's and were cut on the left",
                model=result.model,
                n=result.truncated,
            )
        )
    return remarks


def _limited(result: Result) -> T:
    """How wide --limit makes the interval; the same for all models of a section, to a point."""
    share = next((figure.value for figure in result.figures if figure.low is not None), 0.5)
    return T(
        "{items:int} of {all:int} items: the interval is ± {width:.1f} points wide, "
        "± {whole:.1f} with all of them",
        items=result.items,
        all=result.of,
        width=100 * half_width(result.items, share),
        whole=100 * half_width(result.of or result.items, share),
    )


def _cells(figure: Figure) -> tuple[Value, ...]:
    label: Text = FIGURE.get(figure.name, figure.name)
    if figure.low is None or figure.high is None:
        return label, Quantity(figure.value, ".4g" if figure.value < 1000 else "int"), NONE
    span = T("{low:.1%} to {high:.1%}", low=figure.low, high=figure.high)
    return label, Quantity(figure.value, ".1%"), span


def _known_table(models: dict[str, dict[str, float]], guess: float | None) -> Table:
    names = list(dict.fromkeys(name for values in models.values() for name in values))
    rows: list[tuple[Value, ...]] = [
        (model, *(_known(name, values.get(name)) for name in names))
        for model, values in models.items()
    ]
    if guess is not None:
        rows.insert(0, (T("chance"), *(Quantity(guess, ".1%") for _ in names)))
    heads = (Column(FIGURE.get(name, name), "right") for name in names)
    return Table((Column(T("for comparison")), *heads), tuple(rows))


def _known(name: str, value: float | None) -> Value:
    if value is None:
        return NONE
    return Quantity(value, ".1%" if name.startswith("acc") else ".4g")


def _sheet_section(sheets: Sequence[Sheet]) -> Section:
    columns = (
        Column(T("model"), breaks=True),
        Column(T("answers")),
        Column(T("repeated four-word sequences"), "right"),
        Column(T("distinct words"), "right"),
        Column(T("answers that loop"), "right"),
        Column(T("reached the end"), "right"),
        Column(T("tokens"), "right"),
    )
    rows: list[tuple[Value, ...]] = []
    for sheet in sheets:
        rows.append((sheet.model, T("greedy"), *_sheet_cells(sheet.greedy)))
        rows.append(("", T("sampled"), *_sheet_cells(sheet.sampled)))
    blocks: list[Block] = [Table(columns, tuple(rows))]
    heads = (Column(T("model"), breaks=True), Column(T("answers")), Column(T("text"), breaks=True))
    for prompt in dict.fromkeys(answer.prompt for answer in sheets[0].answers):
        answers = tuple(
            _answer_row(sheet, answer)
            for sheet in sheets
            for answer in sheet.answers
            if answer.prompt == prompt
        )
        blocks += [Paragraph(T("Prompt: {prompt}", prompt=prompt)), Table(heads, answers)]
    return always(T("Prompts"), *blocks)


def _sheet_cells(figures: SheetFigures) -> tuple[Value, ...]:
    return (
        Quantity(figures.repeated, ".0%"),
        Quantity(figures.distinct, ".0%"),
        Quantity(figures.looping, ".0%"),
        Quantity(figures.ended, ".0%"),
        Quantity(figures.tokens, ",.0f"),
    )


def _answer_row(sheet: Sheet, answer: Answer) -> tuple[Value, ...]:
    kind = T("greedy") if answer.greedy else T("sampled")
    return sheet.model, kind, " ".join(answer.text.split()) or NONE
