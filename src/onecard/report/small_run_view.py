"""A run that no public loss covers, as a document: the choice, why, and what it needs."""

from dataclasses import replace

from onecard.advise.savers import savers_of
from onecard.advise.small_run import SmallRun
from onecard.messages import T
from onecard.report.advice_parts import model_headline, next_step, settings
from onecard.report.document import Document, Figures, Notes, Section, Text
from onecard.report.plan_summary import device_name
from onecard.report.plan_words import RANGES


def small_run_document(answer: SmallRun, written: str | None = None) -> Document:
    chosen = (Figures(settings(answer.config, savers_of(answer.config).names)),)
    why = (Notes(tuple(answer.reasons)),)
    sections = [
        Section(T("Why"), why, short=why),
        Section(T("Recommended run"), chosen, short=chosen),
    ]
    if remarks := tuple[Text, ...](answer.plan.warnings):
        sections.append(Section(T("Remarks"), (Notes(remarks),), short=(Notes(remarks),)))
    following = next_step(answer.plan, written)
    return Document(
        title=T("What to run on {card}", card=device_name(answer.plan.device)),
        headline=model_headline(replace(answer.plan, loss=None)),  # none is predicted
        sections=tuple(sections),
        summary=(*answer.reasons, following),
        short_summary=(following,),
        footer=RANGES,
    )
