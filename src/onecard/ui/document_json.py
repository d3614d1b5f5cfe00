"""A report's document as JSON in the reader's words, for the page to lay out: what the commands say, figure by figure.

document_json(plan_document(plan), language("es"))["headline"][0]
"""

from typing import Any

import onecard.report.document as doc
from onecard.report.language import Language


def document_json(document: doc.Document, language: Language) -> dict[str, Any]:
    """Title, answer, headline, summary and sections; every text is finished, only charts keep their numbers."""
    return {
        "title": language.text(document.title),
        "subtitle": language.text(document.subtitle) if document.subtitle is not None else "",
        "answer": language.sentence(document.answer) if document.answer is not None else "",
        "headline": [figure_json(figure, language) for figure in document.headline],
        "summary": [language.sentence(item) for item in document.summary],
        "sections": [_section(section, language) for section in document.sections],
        "footer": language.text(document.footer) if document.footer is not None else "",
    }


def figure_json(figure: doc.Figure, language: Language) -> dict[str, Any]:
    return {
        "label": language.text(figure.label),
        "value": language.value(figure.value),
        "raw": _raw(figure.value),
        "beside": language.beside(figure),
        "tone": figure.tone,
        "formula": language.text(figure.formula) if figure.formula else "",
    }


def _section(section: doc.Section, language: Language) -> dict[str, Any]:
    return {
        "title": language.text(section.title),
        "blocks": [block_json(block, language) for block in section.blocks],
    }


def block_json(block: doc.Block, language: Language) -> dict[str, Any]:
    """One block, named by its kind."""
    if isinstance(block, doc.Figures):
        return {"kind": "figures", "rows": [figure_json(row, language) for row in block.rows]}
    if isinstance(block, doc.Table):
        return _table(block, language)
    if isinstance(block, doc.StackedBar):
        return _stacked_bar(block, language)
    if isinstance(block, doc.LineChart):
        return _line_chart(block, language)
    if isinstance(block, doc.Notes):
        return {
            "kind": "notes",
            "items": [language.text(item) for item in block.items],
            "tone": block.tone,
        }
    assert isinstance(block, doc.Paragraph)
    return {"kind": "paragraph", "text": language.text(block.text)}


def _table(table: doc.Table, language: Language) -> dict[str, Any]:
    return {
        "kind": "table",
        "columns": [
            {"title": language.text(column.title), "align": column.align, "breaks": column.breaks}
            for column in table.columns
        ],
        "rows": [[language.value(value) for value in row] for row in table.rows],
        "marked": list(table.marked),
    }


def _stacked_bar(block: doc.StackedBar, language: Language) -> dict[str, Any]:
    return {
        "kind": "stacked",
        "title": language.text(block.title),
        "parts": [_part(part.label, part.value, language) for part in block.parts],
        "limit": _part(block.limit_label, block.limit, language),
        "total": _part(block.total_label, block.total, language),
    }


def _line_chart(chart: doc.LineChart, language: Language) -> dict[str, Any]:
    return {
        "kind": "lines",
        "title": language.text(chart.title),
        "x_label": language.text(chart.x_label),
        "y_label": language.text(chart.y_label),
        "log_x": chart.log_x,
        "series": [
            {
                "label": language.text(series.label),
                "points": [list(point) for point in series.points],
                "band": [list(point) for point in series.band],
            }
            for series in chart.series
        ],
        "levels": [{"label": language.text(level.label), "y": level.y} for level in chart.levels],
    }


def _part(label: Any, value: doc.Quantity, language: Language) -> dict[str, Any]:
    return {
        "label": language.text(label),
        "value": language.quantity(value),
        "raw": float(value.value),
    }


def _raw(value: Any) -> float | None:
    """The number itself, where the figure is one."""
    plain = value.value if isinstance(value, doc.Quantity) else None
    if isinstance(plain, tuple):  # an amount of money
        plain = plain[0]
    return float(plain) if isinstance(plain, int | float) else None
