"""`recommend --fit` as a document: the config before and after, and the other ways that fit."""

from onecard.advise.fit import Fitted
from onecard.advise.savers import savers_of
from onecard.messages import T
from onecard.planner.result import RunPlan
from onecard.report.advice_parts import (
    batch_words,
    fitted_name,
    model_headline,
    next_step,
    saver_words,
)
from onecard.report.document import Column, Document, Notes, Quantity, Section, Table, Value, always
from onecard.report.plan_summary import FITS, device_name


def fit_document(answer: Fitted, written: str | None = None) -> Document:
    columns = (
        Column(""),
        Column(T("batch")),
        Column(T("savers")),
        Column(T("memory"), "right"),
        Column(T("verdict")),
        Column(T("per step"), "right"),
        Column(T("total"), "right"),
    )
    before_after = Table(
        columns,
        (_row(T("as it was"), answer.before), _row(fitted_name(answer.before), answer.plan)),
        marked=(1,),
    )
    others: tuple[tuple[Value, ...], ...] = tuple(
        (
            saver_words(other.savers),
            f"{other.batch_size} × {other.gradient_accumulation_steps}",
            Quantity(other.process_bytes, "bytes"),
            Quantity(other.step_seconds, "duration"),
        )
        for other in answer.runners_up
    )
    reasons = Notes(tuple(answer.reasons))
    sections = [
        Section(
            T("The same model, before and after"), (before_after, reasons), short=(before_after,)
        )
    ]
    if others:
        titles = (
            Column(T("savers")),
            Column(T("batch")),
            Column(T("memory"), "right"),
            Column(T("per step"), "right"),
        )
        sections.append(Section(T("Other ways that fit"), (Table(titles, others),)))
    if answer.plan.warnings:
        sections.append(always(T("Remarks"), Notes(tuple(answer.plan.warnings))))
    return Document(
        title=T("The fastest way that fits on {card}", card=device_name(answer.plan.device)),
        headline=model_headline(answer.plan),
        sections=tuple(sections),
        summary=(*answer.reasons, next_step(answer.plan, written)),
    )


def _row(label: T, plan: RunPlan) -> tuple[Value, ...]:
    return (
        label,
        batch_words(plan.config),
        saver_words(savers_of(plan.config).names),
        Quantity(plan.memory.process_bytes.mid, "bytes"),
        FITS[plan.memory.fits][0],
        Quantity(plan.time.step_seconds.mid, "duration"),
        Quantity(plan.time.total_seconds.mid, "duration"),
    )
