"""What `onecard go` is about to do, as a document: the stages with their time, download and disk, and what comes of it."""

from typing import TYPE_CHECKING

from onecard.cli.go_stages import planned_stages
from onecard.messages import T
from onecard.report.document import Column, Document, Figure, Quantity, Section, Table, Value

if TYPE_CHECKING:
    from onecard.cli.go_record import Expectation

_TITLES = (T("Time"), T("Download"), T("Disk"))


def go_document(expected: "Expectation") -> Document:
    rows = tuple(
        (
            stage.what,
            Quantity(stage.seconds, "duration"),
            _size(stage.download_bytes),
            _size(stage.disk_bytes),
        )
        for stage in planned_stages(expected)
    )
    columns = (Column(T("Stage")), *(Column(title, "right") for title in _TITLES))
    return Document(
        title=T("What will happen"),
        subtitle=expected.card,
        headline=_headline(expected),
        sections=(Section(T("Stages"), (Table(columns, rows),)),),
        summary=(
            T("Training takes the time that was asked for; the other stages are not included."),
            T("Measured first, the run is planned again: its size may change."),
            *(
                []
                if expected.loss is not None
                else [T("No loss can be predicted for this text and size.")]
            ),
        ),
    )


def _headline(expected: "Expectation") -> tuple[Figure, ...]:
    figures = [
        Figure(
            T("Model"),
            Quantity(expected.params, "count"),
            note=T("{tokens:count} tokens", tokens=expected.tokens),
        ),
        Figure(T("Memory"), Quantity(expected.memory_bytes, "bytes")),
        Figure(T("Training"), Quantity(expected.train_seconds, "duration")),
    ]
    if expected.loss is not None:
        low, middle, high = (Quantity(value, ".2f") for value in expected.loss)
        figures.append(Figure(T("Loss"), middle, span=(low, high)))
    energy = T("{kwh:.3g} kWh", kwh=expected.kwh)
    figures.append(Figure(T("Electricity"), Quantity(expected.cost, "money"), note=energy))
    return tuple(figures)


def _size(size: float) -> Value:
    return Quantity(size, "bytes") if size else "–"
