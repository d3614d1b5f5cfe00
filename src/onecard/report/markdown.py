"""A document as Markdown to paste into an issue or a notebook: tables, and charts as bars of text.

print(render(document, language("en")))
"""

import re

from onecard.report.document import (
    SUMMARY,
    Block,
    Column,
    Document,
    Figure,
    Figures,
    LineChart,
    Notes,
    Paragraph,
    Quantity,
    StackedBar,
    Table,
    Tone,
)
from onecard.report.language import Language
from onecard.report.svg import ticks

MARKS: dict[Tone | None, str] = {"good": "✓ ", "fair": "⚠ ", "bad": "✗ ", None: ""}
FULL = 30  # cells of the longest bar


def render(document: Document, language: Language) -> str:
    """The whole document; ends with a line break."""
    out = [f"# {_safe(language.text(document.title))}"]
    if document.subtitle is not None:
        out.append(_safe(language.text(document.subtitle)))
    if document.answer is not None:
        out.append(f"**{_safe(language.sentence(document.answer))}**")
    if document.headline:
        titles = [_safe(language.text(figure.label)) for figure in document.headline]
        cells = []
        for figure in document.headline:
            beside = _beside(figure, language)
            cells.append(f"**{_value(figure, language)}**" + (f"<br>{beside}" if beside else ""))
        out.append(_rows(titles, [cells], ["center"] * len(cells)))
    for section in document.sections:
        out.append(f"## {_safe(language.text(section.title))}")
        out += [_block(block, language) for block in section.blocks]
    if document.summary:
        out.append(f"## {_safe(language.text(SUMMARY))}")
        out.append("\n".join(f"- {_safe(language.text(item))}" for item in document.summary))
    if document.footer is not None:
        out.append(f"*{_safe(language.text(document.footer))}*")
    return "\n\n".join(out).replace("\u00a0", " ") + "\n"


def _block(block: Block, language: Language) -> str:
    if isinstance(block, Figures):
        return _figures(block, language)
    if isinstance(block, Table):
        titles = [_safe(language.text(column.title)) for column in block.columns]
        rows = [[_safe(language.value(value)) for value in row] for row in block.rows]
        for number in block.marked:
            rows[number] = [f"**{cell}**" for cell in rows[number]]
        return _rows(titles, rows, [column.align for column in block.columns])
    if isinstance(block, StackedBar):
        return _stacked_bar(block, language)
    if isinstance(block, LineChart):
        return _line_chart(block, language)
    if isinstance(block, Notes):
        return "\n".join(
            f"- {MARKS[block.tone]}{_safe(language.text(item))}" for item in block.items
        )
    assert isinstance(block, Paragraph)
    return _safe(language.text(block.text))


def _figures(block: Figures, language: Language) -> str:
    rows = []
    for figure in block.rows:
        beside = _beside(figure, language)
        if figure.formula:
            beside += ("<br>" if beside else "") + f"`{_cell(language.text(figure.formula))}`"
        rows.append([_safe(language.text(figure.label)), f"**{_value(figure, language)}**", beside])
    return _rows(["", "", ""], rows, ["left", "right", "left"])


def _value(figure: Figure, language: Language) -> str:
    return MARKS[figure.tone] + _safe(language.value(figure.value))


def _beside(figure: Figure, language: Language) -> str:
    return _safe(language.beside(figure))


def _stacked_bar(chart: StackedBar, language: Language) -> str:
    """The parts as a table with bars, the sum and the limit below."""
    limit = max(float(chart.limit.value), float(chart.total.value)) or 1.0
    rows = [(language.text(part.label), part.value) for part in chart.parts]
    rows += [
        (language.text(chart.total_label), chart.total),
        (language.text(chart.limit_label), chart.limit),
    ]
    drawn = [
        [_safe(name), language.quantity(value), _bar(float(value.value) / limit)]
        for name, value in rows
    ]
    for row in drawn[-2:]:
        row[:2] = [f"**{row[0]}**", f"**{row[1]}**"]
    table = _rows([_safe(language.text(chart.title)), "", ""], drawn, ["left", "right", "left"])
    return table + (f"\n\n`{language.text(chart.formula)}`" if chart.formula else "")


def _line_chart(chart: LineChart, language: Language) -> str:
    """A curve as a table of a few points: what a reader of plain text can use."""
    xs = sorted({x for series in chart.series for x, _ in series.points})
    wanted = [min(xs, key=lambda x: abs(x - tick)) for tick in ticks(xs[0], xs[-1], 5)]
    columns = (
        Column(chart.x_label, "right"),
        *(Column(series.label, "right") for series in chart.series),
    )
    rows = []
    for x in dict.fromkeys(wanted):
        row = [language.quantity(Quantity(x, chart.x_spec))]
        for series in chart.series:
            near = min(series.points, key=lambda point: abs(point[0] - x))
            row.append(language.quantity(Quantity(near[1], chart.y_spec)) if near[0] == x else "")
        rows.append(row)
    table = _rows(
        [_safe(language.text(column.title)) for column in columns], rows, ["right"] * len(columns)
    )
    levels = [
        f"{_safe(language.text(level.label))}: {language.quantity(Quantity(level.y, chart.y_spec))}"
        for level in chart.levels
    ]
    return f"*{_safe(language.text(chart.title))}*\n\n{table}" + "".join(
        f"\n\n{level}" for level in levels
    )


def _rows(titles: list[str], rows: list[list[str]], align: list[str]) -> str:
    marks = {"left": ":--", "right": "--:", "center": ":-:"}
    lines = [titles, [marks[a] for a in align], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bar(share: float) -> str:
    return "█" * max(round(share * FULL), 1 if share > 0 else 0)


def _safe(text: str) -> str:
    """Words that mean themselves in Markdown, whatever a config's names hold."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text.replace("\n", " "))


def _cell(code: str) -> str:
    return code.replace("|", "\\|").replace("`", "'").replace("\n", " ")
