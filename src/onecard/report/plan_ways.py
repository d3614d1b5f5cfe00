"""The plan's section on several cards: each way of sharing the model out, its memory, its step, and the exchange apart."""

from onecard.messages import T
from onecard.planner.result import RunPlan
from onecard.report.document import Column, Notes, Quantity, Section, Table
from onecard.report.plan_summary import FITS

_MEANING = T(
    "none: every card has all. grads: each has its part of the gradients, the moments and the fp32 weights. full: the "
    "weights in use are gathered layer by layer too. Exchange is all that a step sends; its work hides some of it."
)


def ways_section(plan: RunPlan) -> Section:
    rows = tuple(
        (
            way.shard,
            Quantity(way.process_bytes, "bytes"),
            FITS[way.fits][0],
            Quantity(way.step_seconds.mid, "duration"),
            Quantity(way.exchange_seconds, "duration"),
            Quantity(way.waiting_seconds, "duration"),
        )
        for way in plan.ways
    )
    columns = (
        Column(T("shard")),
        Column(T("memory of a card"), "right"),
        Column(T("fits")),
        Column(T("one step"), "right"),
        Column(T("exchange"), "right"),
        Column(T("waited for"), "right"),
    )
    title = T("Several cards: what they share out")
    if not rows:
        return Section(title, ())
    table = Table(columns, rows)
    return Section(title, (table, Notes((_MEANING,))), short=(table,))
