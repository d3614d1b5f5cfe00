"""One run on several cards, side by side: `onecard plan CONFIG --gpu A --gpu B`.

show(cards_document([plan(config, "RTX 4070"), plan(config, "RTX 4090")]), "terminal")
"""

from onecard.messages import T
from onecard.planner import RunPlan
from onecard.report.document import Column, Document, Notes, Quantity, Table, Text, Value, always
from onecard.report.plan_summary import FITS, RANGES, device_name
from onecard.units import GIB


def cards_document(plans: list[RunPlan]) -> Document:
    first = plans[0]
    fastest = min(range(len(plans)), key=lambda place: plans[place].time.total_seconds.mid)
    columns = (
        Column(T("Card")),
        Column(T("a step"), "right"),
        Column(T("total"), "right"),
        Column(T("memory"), "right"),
        Column(T("verdict"), "right"),
        Column(T("kWh"), "right"),
        Column(T("cost"), "right"),
        Column("MFU", "right"),
    )
    shared = [remark for remark in first.warnings if all(remark in each.warnings for each in plans)]
    remarks: list[Text] = [
        *shared,
        *(
            T("{card}: {remark}", card=device_name(plan.device), remark=remark)
            for plan in plans
            for remark in plan.warnings
            if remark not in shared
        ),
    ]
    sections = [always(T("The cards"), Table(columns, tuple(map(_row, plans)), (fastest,)))]
    if remarks:
        sections.append(always(T("Remarks"), Notes(tuple(remarks))))
    return Document(
        title=T("One run, compared on {n:int} cards", n=len(plans)),
        subtitle=T(
            "{params:count} parameters on {tokens:count} tokens",
            params=first.params.total,
            tokens=first.tokens.total,
        ),
        answer=_summary(plans[fastest]),
        sections=tuple(sections),
        summary=_loss(first),
        footer=RANGES,
    )


def _row(plan: RunPlan) -> tuple[Value, ...]:
    fits, _ = FITS[plan.memory.fits]
    energy = plan.energy
    return (
        device_name(plan.device),
        Quantity(plan.time.step_seconds.mid, "duration"),
        Quantity(plan.time.total_seconds.mid, "duration"),
        T(
            "{used:.1f} of {card:.1f} GiB",
            used=plan.memory.process_bytes.mid / GIB,
            card=plan.memory.card_bytes / GIB,
        ),
        fits,
        Quantity(energy.kwh.mid, ",.1f"),
        T("{cost:money}", cost=(energy.cost.mid, energy.currency)),
        Quantity(plan.mfu.card.mid, "percent"),
    )


def _summary(fastest: RunPlan) -> Text:
    seconds = fastest.time.total_seconds
    return T(
        "The {card} is the fastest: {time:duration}, between {low:duration} and {high:duration}.",
        card=device_name(fastest.device),
        time=seconds.mid,
        low=seconds.low,
        high=seconds.high,
    )


def _loss(plan: RunPlan) -> tuple[Text, ...]:
    if plan.loss is None:
        return ()
    return (T("The loss does not depend on the card: {loss:.2f}.", loss=plan.loss.expected.mid),)
