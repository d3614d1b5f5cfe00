"""`onecard tune` before it starts, as a document: the conversations, the settings with their reasons, what to expect."""

from onecard.messages import Plural, T
from onecard.planner.result import RunPlan
from onecard.report.document import (
    Column,
    Document,
    Figure,
    Figures,
    Notes,
    Quantity,
    Section,
    Table,
    Text,
    Value,
)
from onecard.report.plan_summary import FITS
from onecard.tune.plan import TuningPlan


def tune_document(planned: TuningPlan, run: RunPlan | None) -> Document:
    """`run` is the plan of the same config on the device that will train; None where there is none."""
    prepared = planned.prepared
    counted = T(
        "{all:int} conversations, {distinct:int} distinct",
        all=planned.conversations,
        distinct=planned.distinct,
    )
    headline = [
        Figure(T("Conversations"), counted),
        Figure(
            T("Tokens"),
            Quantity(prepared.tokens, "count"),
            note=T("{share:percent} of them are learned from", share=prepared.learned_share),
        ),
        Figure(
            T("Passes"),
            Quantity(planned.epochs, ".3g"),
            note=Plural(
                "{steps:int} steps of {n:int} sequence",
                "{steps:int} steps of {n:int} sequences",
                steps=planned.config.max_iters,
                n=planned.config.sequences_per_step,
            ),
        ),
        *_machine(run),
    ]
    notes: tuple[Text, ...] = (planned.expectation, *planned.notes)
    return Document(
        title=T("Tuning {base} on conversations", base=planned.base.source),
        headline=tuple(headline),
        sections=(
            Section(T("What to expect"), (Notes(notes),), (Notes(notes),)),
            Section(T("Data"), (Figures(_data(planned)), *_files(planned))),
            Section(T("Settings and why"), (_settings(planned),)),
        ),
    )


def _machine(run: RunPlan | None) -> list[Figure]:
    if run is None:
        return []
    span = run.time.total_seconds
    low, high = Quantity(span.low, "duration"), Quantity(span.high, "duration")
    return [
        Figure(T("Time"), Quantity(span.mid, "duration"), span=(low, high)),
        Figure(
            T("Memory"),
            Quantity(run.memory.process_bytes.mid, "bytes"),
            note=FITS[run.memory.fits][0],
        ),
    ]


def _data(planned: TuningPlan) -> tuple[Figure, ...]:
    prepared, room = planned.prepared, planned.config.block_size
    own = prepared.windows - prepared.base_windows
    return (
        Figure(T("Trained on"), Quantity(prepared.train, "int", T("conversations"))),
        Figure(T("Held out"), Quantity(prepared.held_out, "int", T("conversations"))),
        Figure(T("Learned from"), Quantity(prepared.learned, "int", T("tokens"))),
        Figure(
            T("Windows"),
            Quantity(own, "int"),
            note=T("{share:percent} of them filled", share=prepared.tokens / (own * room)),
        ),
        Figure(T("Windows of the base's text"), Quantity(prepared.base_windows, "int")),
    )


def _files(planned: TuningPlan) -> list[Table]:
    if len(planned.files) < 2:
        return []
    columns = (Column(T("file")), Column(T("share"), "right"), Column(T("passes"), "right"))
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (name, Quantity(share, "percent"), Quantity(passes, ".2f"))
        for name, share, passes in zip(
            planned.files, planned.prepared.shares, planned.prepared.epochs, strict=True
        )
    )
    return [Table(columns, rows)]


def _settings(planned: TuningPlan) -> Table:
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (choice.key, _shown(getattr(planned.config, choice.key, choice.value)), choice.why)
        for choice in planned.choices
    )
    return Table((Column(T("setting")), Column(T("value"), "right"), Column(T("why"))), rows)


def _shown(value: float | bool) -> str:
    return str(value) if isinstance(value, bool) else f"{value:g}"
