"""The runs below a folder, a row each: `onecard runs`.

show(runs_document(list_runs(["."])), "terminal")
"""

from functools import reduce
from typing import Any

from onecard.messages import Plural, T
from onecard.report.document import (
    NONE,
    Column,
    Document,
    Quantity,
    Table,
    Text,
    Value,
    always,
    if_known,
)
from onecard.runs.eval_results import TASK_TITLES

EMPTY = T("No runs here yet; `onecard train CONFIG` makes one.")
STATES = {
    "running": T("running"),
    "finished": T("finished"),
    "stopped": T("stopped"),
    "dead": T("dead"),
}


def runs_document(rows: list[dict[str, Any]]) -> Document:
    evaluated = any(row["evals"] for row in rows)
    columns = (
        Column(T("Run"), breaks=True),
        Column(T("State")),
        Column(T("Step"), "right"),
        Column(T("Loss"), "right"),
        Column(T("Hours"), "right"),
        Column(T("Cost"), "right"),
        *([Column(T("Evaluations"))] if evaluated else []),
    )
    cells = tuple((*_cells(row), *([_evals(row)] if evaluated else [])) for row in rows)
    title = Plural("{n:int} run", "{n:int} runs", n=len(rows))
    return Document(title=T("Runs"), sections=(always(title, Table(columns, cells)),))


def _cells(row: dict[str, Any]) -> tuple[Value, ...]:
    step, most = row["step"], row["max_steps"]
    known: Value = T("{step:int} / {most:int}", step=step, most=most) if most else NONE
    return (
        row["path"],
        STATES[row["state"]],
        NONE if step is None else known if most else Quantity(step, "int"),
        if_known(row["loss"], ".4f"),
        if_known(row["hours"], ".2f"),
        NONE if row["cost"] is None else Quantity((row["cost"], row["currency"]), "money"),
    )


def _evals(row: dict[str, Any]) -> Text:
    """The newest figure of each task, shares as such."""
    parts: list[Text] = []
    for task, figure in row["evals"].items():
        name = TASK_TITLES.get(task, task.removeprefix("text "))
        share = figure["figure"].startswith("acc")
        value = Quantity(figure["value"], ".1%" if share else ".3f")
        parts.append(T("{name} {value}", name=name, value=value))
    return reduce(lambda some, more: T("{some}, {more}", some=some, more=more), parts or [NONE])
