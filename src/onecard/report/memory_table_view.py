"""The table by memory class as a document, to be pinned to the wall."""

from onecard.advise.memory_table import MemoryTable, Row
from onecard.messages import T
from onecard.planner.memory.savers import SAVERS
from onecard.report.document import Column, Document, Notes, Quantity, Table, Text, Value, always
from onecard.report.recommend_view import asked

LETTERS = {saver.name: saver.letter for saver in SAVERS}


def memory_table_document(answer: MemoryTable) -> Document:
    saving = any(row.savers for row in answer.rows)
    recipes = sorted({row.recipe for row in answer.rows})
    columns = (
        Column("GB", "right"),
        Column(T("card")),
        Column(T("shape")),
        Column(T("params"), "right"),
        Column(T("batch")),
        *((Column(T("savers")),) if saving else ()),
        Column(T("per step"), "right"),
        Column(T("10 B tokens"), "right"),
        Column(T("loss"), "right"),
    )
    notes: list[Text] = [
        T(
            "Each row is {asked} on that card; heads are 64 wide, the context is 1024, parameters are the true total.",
            asked=asked(answer.budget),
        ),
        T(
            "Shape is layers × width, batch is micro-batch × accumulation. Loss is expected at the end, on {data}.",
            data=answer.dataset,
        ),
        T("10 B tokens: the hours that this model would take for them, however long that is."),
        T("`onecard recommend --gpu NAME` has the reasons, the runners-up and the config."),
    ]
    if len(recipes) == 1:
        notes.insert(1, T("The recipe of every row is {recipe}.", recipe=recipes[0]))
    else:
        cards = ", ".join(row.gpu for row in answer.rows if row.recipe == "modern")
        notes.insert(1, T("The recipe is modern on {cards}, else gpt2.", cards=cards))
    if saving:
        savers = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
        notes.append(T("Savers: {savers}.", savers=savers))
    table = Table(columns, tuple(_row(row, saving) for row in answer.rows))
    return Document(
        title=T("What to run, by the memory of the card"),
        subtitle=asked(answer.budget),
        sections=(always(T("By memory"), table, Notes(tuple(notes))),),
    )


def _row(row: Row, saving: bool) -> tuple[Value, ...]:
    return (
        Quantity(row.memory_gb, "int"),
        row.gpu,
        f"{row.n_layer}×{row.n_embd}",
        Quantity(row.params, "count"),
        f"{row.batch_size}×{row.gradient_accumulation_steps}",
        *((" ".join(LETTERS[name] for name in row.savers) or "–",) if saving else ()),
        Quantity(row.step_seconds, "duration"),
        Quantity(row.hours_10b, ",.0f", T("h")),
        Quantity(row.loss, ".2f"),
    )
