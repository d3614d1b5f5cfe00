"""A recommendation as a document: the choice, why, how sensitive it is, what else there is, what it costs to rent.

show(recommend_document(recommend("RTX 4070", Budget(seconds=72_000))), "terminal")
"""

from dataclasses import replace

from onecard.advise.budget import Budget
from onecard.advise.formulas import RECOMMEND
from onecard.advise.recommend import Recommendation
from onecard.advise.runners_up import Alternative
from onecard.advise.savers import savers_of
from onecard.advise.small_run import SmallRun
from onecard.messages import T
from onecard.planner.result import RunPlan
from onecard.report.advice_parts import (
    batch_words,
    how_found,
    launch_step,
    model_headline,
    next_step,
    saver_words,
    settings,
    shape_words,
)
from onecard.report.document import (
    Block,
    Column,
    Document,
    Figures,
    LineChart,
    Notes,
    Quantity,
    Section,
    Series,
    Table,
    Text,
    Value,
    always,
)
from onecard.report.plan_summary import RANGES, device_name
from onecard.units import HOUR

KINDS = {"smaller": T("smaller"), "larger": T("larger"), "sooner": T("half the time")}
NEAR = {"smaller": T("slightly smaller"), "larger": T("slightly larger")}
LIMITS = {"memory": T("memory"), "compute": T("compute"), "data": T("data")}


def recommend_document(
    answer: Recommendation, written: str | None = None, explain: bool = False
) -> Document:
    sections = [
        always(T("Why"), Notes(tuple(answer.reasons))),
        always(T("Recommended run"), Figures(settings(answer.plan, answer.savers))),
        _sizes(answer),
        _others(answer),
    ]
    if answer.rentals is not None:
        sections.append(_rentals(answer))
    remarks: list[Text] = [*answer.notes, *answer.plan.warnings]
    if remarks:
        sections.append(always(T("Remarks"), Notes(tuple(remarks))))
    if explain:
        sections.append(how_found(RECOMMEND, answer.plan))
    return Document(
        title=T("What to run on {card}", card=device_name(answer.plan.device)),
        subtitle=asked(answer.budget),
        answer=_in_one_sentence(answer.plan),
        headline=model_headline(answer.plan),
        sections=tuple(section for section in sections if section.blocks),
        summary=_summary(answer, written),
        short_summary=(answer.sensitivity.notes[0], *_next_steps(answer, written)),
        footer=RANGES,
    )


def asked(budget: Budget) -> Text:
    if budget.loss is not None:
        return T("the quickest run to a loss of {loss:g}", loss=budget.loss)
    if budget.tokens is not None:
        return T("the best model for {tokens:count} tokens", tokens=budget.tokens)
    return T("the best model in {time:duration}", time=budget.seconds)


def _sizes(answer: Recommendation) -> Section:
    """The chart of loss against size (of time against size, when a loss is asked for), and what to make of it."""
    sensitivity = answer.sensitivity
    blocks: list[Block] = [_size_chart(answer)] if len(answer.sizes) > 2 else []
    rows: list[tuple[Value, ...]] = []
    for label, size in (
        (T("half the size"), sensitivity.half),
        (T("recommended"), None),
        (T("double the size"), sensitivity.double),
    ):
        if size is not None:
            rows.append(
                (
                    label,
                    Quantity(size.params, "count"),
                    Quantity(size.tokens, "count"),
                    Quantity(size.seconds, "duration"),
                    Quantity(size.loss, ".3f"),
                )
            )
        elif label == T("recommended"):
            plan = answer.plan
            rows.append(
                (
                    label,
                    Quantity(plan.params.total, "count"),
                    Quantity(plan.tokens.total, "count"),
                    Quantity(plan.time.total_seconds.mid, "duration"),
                    Quantity(answer.expected_loss.mid, ".3f"),
                )
            )
    marked = (1,) if sensitivity.half is not None else (0,)
    columns = (
        Column(T("Size")),
        Column(T("parameters"), "right"),
        Column(T("tokens"), "right"),
        Column(T("time"), "right"),
        Column(T("loss"), "right"),
    )
    notes: list[Text] = list(sensitivity.notes)
    if any(
        size is not None and not size.in_support for size in (sensitivity.half, sensitivity.double)
    ):
        notes.append(
            T(
                "One of these would see fewer tokens for its size than any public run: its loss is a rough estimate."
            )
        )
    blocks += [Table(columns, tuple(rows), marked=marked), Notes(tuple(notes))]
    return Section(T("How much the size matters"), tuple(blocks))


def _size_chart(answer: Recommendation) -> LineChart:
    """Loss against size; hours against size, where a loss is asked for."""
    until = answer.budget.loss is not None
    points = tuple(
        (float(size.params), size.seconds / HOUR if until else size.loss) for size in answer.sizes
    )
    return LineChart(
        title=T("Hours to that loss, by model size")
        if until
        else T("Expected loss in this budget, by model size"),
        series=(Series(T("hours") if until else T("expected loss"), points),),
        x_label=T("parameters"),
        y_label=T("hours") if until else T("loss"),
        log_x=True,
        y_spec=",.1f" if until else ".2f",
    )


def _others(answer: Recommendation) -> Section:
    columns = (
        Column(T("Runner-up")),
        Column(T("model")),
        Column(T("parameters"), "right"),
        Column(T("tokens"), "right"),
        Column(T("time"), "right"),
        Column(T("loss"), "right"),
    )
    table = Table(columns, tuple(_row(other, answer) for other in answer.runners_up))
    trades = tuple(
        T(
            "{kind} ({params:count}): {trade}",
            kind=_kind(other, answer),
            params=other.params,
            trade=other.trade,
        )
        for other in answer.runners_up
    )
    return Section(T("What else"), (table, Notes(trades)) if answer.runners_up else ())


def _kind(other: Alternative, answer: Recommendation) -> T:
    near = 0.75 < other.params / answer.plan.params.total < 1.3
    return (NEAR if near else KINDS).get(other.kind, KINDS[other.kind])


def _row(other: Alternative, answer: Recommendation) -> tuple[Value, ...]:
    return (
        _kind(other, answer),
        shape_words(other.config),
        Quantity(other.params, "count"),
        Quantity(other.tokens, "count"),
        Quantity(other.seconds, "duration"),
        Quantity(other.loss, ".3f"),
    )


def _rentals(answer: Recommendation) -> Section:
    """This card first, at the price of its electricity."""
    plan, energy = answer.plan, answer.plan.energy
    rows: tuple[tuple[Value, ...], ...] = (
        (
            device_name(plan.device),
            batch_words(plan.config),
            saver_words(answer.savers),
            Quantity(plan.time.total_seconds.mid / 3600, ",.1f"),
            T("electricity"),
            Quantity((energy.cost.mid, energy.currency), "money"),
        ),
        *(
            (
                offer.gpu,
                f"{offer.batch_size} × {offer.gradient_accumulation_steps}",
                saver_words(offer.savers),
                Quantity(offer.seconds.mid / 3600, ",.1f"),
                Quantity((offer.price, offer.currency), "money"),
                Quantity((offer.cost, offer.currency), "money"),
            )
            for offer in answer.rentals or ()
        ),
    )
    columns = (
        Column(T("Card")),
        Column(T("batch")),
        Column(T("savers")),
        Column(T("hours"), "right"),
        Column(T("per hour"), "right"),
        Column(T("total"), "right"),
    )
    prices = T(
        "Prices are typical ones of 2026 and move; they are for the card alone, without storage or the time to set it up."
    )
    table = Table(columns, rows, marked=(0,))
    return always(T("The same run on rented cards"), table, Notes((prices,)))  # --rent asked for it


def _in_one_sentence(plan: RunPlan) -> T:
    return T(
        "Train {params:count} parameters on {tokens:count} tokens: {time:duration} on {card}, {used:bytes} of its {has:bytes}.",
        params=plan.params.total,
        tokens=plan.tokens.total,
        time=plan.time.total_seconds.mid,
        card=device_name(plan.device),
        used=plan.memory.process_bytes.mid,
        has=plan.memory.card_bytes,
    )


def _summary(answer: Recommendation, written: str | None) -> tuple[Text, ...]:
    return (
        _in_one_sentence(answer.plan),
        T(
            "The expected loss is {loss:.2f}, between {low:.2f} and {high:.2f}.",
            loss=answer.expected_loss.mid,
            low=answer.expected_loss.low,
            high=answer.expected_loss.high,
        ),
        T("Its limit is {limit}.", limit=LIMITS[answer.limited_by]),
        answer.sensitivity.notes[0],
        *_next_steps(answer, written),
    )


def _next_steps(answer: Recommendation, written: str | None) -> tuple[Text, ...]:
    """What to type; with --rent, the launch on the cheapest card last."""
    steps = (next_step(answer.plan, written),)
    if not answer.rentals:
        return steps
    return (*steps, launch_step(answer.plan, answer.rentals[0], written))


def small_run_document(answer: SmallRun, written: str | None = None) -> Document:
    """A run that no public loss covers: the choice, why, and what it needs."""
    chosen = Figures(settings(answer.plan, savers_of(answer.config).names))
    sections = [
        always(T("Why"), Notes(tuple(answer.reasons))),
        always(T("Recommended run"), chosen),
    ]
    if answer.plan.warnings:
        sections.append(always(T("Remarks"), Notes(tuple(answer.plan.warnings))))
    following = next_step(answer.plan, written)
    return Document(
        title=T("What to run on {card}", card=device_name(answer.plan.device)),
        answer=_in_one_sentence(answer.plan),
        headline=model_headline(replace(answer.plan, loss=None)),  # none is predicted
        sections=tuple(sections),
        summary=(*answer.reasons, following),
        short_summary=(following,),
        footer=RANGES,
    )
