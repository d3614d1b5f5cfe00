"""`recommend --review` as a document: the config in circulation beside what the same hours could give."""

from onecard.advise.recommend import Recommendation
from onecard.advise.review import Review
from onecard.messages import T
from onecard.planner.result import RunPlan
from onecard.report.advice_parts import (
    batch_words,
    fitted_name,
    model_headline,
    next_step,
    shape_words,
)
from onecard.report.document import (
    Column,
    Document,
    Notes,
    Quantity,
    Section,
    Table,
    Text,
    Value,
    always,
)
from onecard.report.plan_summary import FITS, device_name


def review_document(answer: Review, written: str | None = None) -> Document:
    rows: list[tuple[Value, ...]] = [_row(T("as it is"), answer.plan)]
    if answer.fitted is not None and answer.fitted.config != answer.plan.config:
        rows.append(_row(fitted_name(answer.plan), answer.fitted.plan))
    if answer.better is not None:
        rows.append(_better(T("better, same hours"), answer.better))
    if answer.sooner is not None:
        rows.append(_better(T("same loss, sooner"), answer.sooner))
    columns = (
        Column(""),
        Column(T("model")),
        Column(T("params"), "right"),
        Column(T("batch")),
        Column(T("verdict")),
        Column(T("time"), "right"),
        Column(T("loss"), "right"),
    )
    sections = [
        Section(T("What it is, and what would be better"), (Notes(tuple(answer.answers)),)),
        always(T("Side by side"), Table(columns, tuple(rows), marked=(0,))),
    ]
    if answer.plan.warnings:
        sections.append(always(T("Warnings"), Notes(tuple(answer.plan.warnings), "fair")))
    summary: list[Text] = [answer.answers[0]]
    if answer.better is not None and answer.plan.loss is not None:
        summary.append(
            T(
                "In the same {time:duration}, {params:count} parameters should come to {better:.2f} instead of {loss:.2f}.",
                time=answer.plan.time.total_seconds.mid,
                params=answer.better.plan.params.total,
                better=answer.better.expected_loss.mid,
                loss=answer.plan.loss.expected.mid,
            )
        )
        summary.append(next_step(answer.better.plan, written))
    return Document(
        title=T(
            "{name}, reviewed for {card}", name=answer.name, card=device_name(answer.plan.device)
        ),
        headline=model_headline(answer.plan),
        sections=tuple(sections),
        summary=tuple(summary),
    )


def _row(label: T, plan: RunPlan) -> tuple[Value, ...]:
    return (
        label,
        shape_words(plan.config),
        Quantity(plan.params.total, "count"),
        batch_words(plan.config),
        FITS[plan.memory.fits][0],
        Quantity(plan.time.total_seconds.mid, "duration"),
        Quantity(plan.loss.expected.mid, ".2f") if plan.loss else "–",
    )


def _better(label: T, answer: Recommendation) -> tuple[Value, ...]:
    return (*_row(label, answer.plan)[:-1], Quantity(answer.expected_loss.mid, ".2f"))
