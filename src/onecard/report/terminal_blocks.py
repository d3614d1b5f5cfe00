"""The blocks of a document as Rich draws them: figures, tables and notes; charts are in terminal_charts.

The layout of rows is ours, so that a formula can follow its figure and no word breaks.
"""

from collections.abc import Callable
from itertools import zip_longest

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text as Line

from onecard.report import terminal_charts as charts
from onecard.report.document import (
    Block,
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
from onecard.report.terminal_widths import BETWEEN, MARK, column_widths, easy_width, longest_word

NOTE, FORMULA = "dim", "italic dim"
TONES: dict[Tone | None, str] = {
    "good": "bold green",
    "fair": "bold yellow",
    "bad": "bold red",
    None: "bold",
}
MARKS: dict[Tone | None, str] = {"good": "✓ ", "fair": "! ", "bad": "✗ ", None: ""}
LEAST_BESIDE = 16  # cells for a remark beside its figure; with less it goes below
LEAST_CHART = 40


class Blocks:
    """Draws blocks in one language; `kept` prepares words for Rich."""

    def __init__(
        self,
        console: Console,
        language: Language,
        kept: Callable[[str], str],
        color: bool,
        ascii_only: bool,
    ):
        self.console = console
        self.language = language
        self.kept = kept
        self.color = color
        self.ascii = ascii_only

    def say(self, value: object) -> str:
        return self.kept(self.language.value(value))  # type: ignore[arg-type]

    def draw(self, block: Block, width: int) -> RenderableType:
        if isinstance(block, Figures):
            return self.figures(block.rows, width)
        if isinstance(block, Table):
            return self._table(block, width)
        if isinstance(block, StackedBar):
            return charts.stacked_bar(block, width, self.say, self.color, self.ascii)
        if isinstance(block, LineChart):
            return charts.line_chart(block, width, self.say, self.color, self.ascii)
        if isinstance(block, Notes):
            return self._notes(block, width)
        assert isinstance(block, Paragraph)
        return Line(self.say(block.text))

    def needed(self, block: Block) -> int:
        """The width that a block needs to be read with ease."""
        if isinstance(block, Table):
            return easy_width(block, *self._cells(block))
        if isinstance(block, Figures):
            return max(
                longest_word(self.say(row.label))
                + max(longest_word(self.marked(row)), longest_word(self.beside(row)))
                + 2
                for row in block.rows
            )
        if isinstance(block, StackedBar | LineChart):
            return LEAST_CHART
        items = block.items if isinstance(block, Notes) else (block.text,)
        return max(longest_word(self.say(item)) for item in items) + 2

    def marked(self, figure: Figure) -> str:
        return self.kept(MARKS[figure.tone]) + self.say(figure.value)

    def beside(self, figure: Figure) -> str:
        """What stands beside a value: its range, then its remark."""
        pieces = [self.kept(self.language.span(*figure.span))] if figure.span else []
        if figure.note is not None:
            pieces.append(self.say(figure.note))
        return " · ".join(pieces) if not self.ascii else "; ".join(pieces)

    def figures(self, rows: tuple[Figure, ...], width: int) -> RenderableType:
        labels = [Line(self.say(row.label)) for row in rows]
        values = [Line(self.marked(row), TONES[row.tone]) for row in rows]
        words = max(longest_word(label.plain) for label in labels)
        first = max(words, min(max(label.cell_len for label in labels), width * 2 // 5))
        usual = max(12, width // 6)  # a date or a rate may be wider; it then runs on to the right
        second = max((value.cell_len for value in values if value.cell_len <= usual), default=usual)
        room = width - first - second - 4
        numbers = any(isinstance(row.value, Quantity) for row in rows)
        out: list[Line] = []
        for row, label, value in zip(rows, labels, values, strict=True):
            beside = Line(self.beside(row), NOTE)
            below = Line("")
            crowded = room < LEAST_BESIDE or longest_word(beside.plain) > room
            if value.cell_len > second:
                value.style = ""
                value.stylize(TONES[row.tone])
                run_on = value.append("  ").append_text(beside)
                out += self._across((label, first), (run_on, width - first - 2))
            else:
                if crowded and beside.cell_len > room:  # on lines of its own
                    below, beside = beside, below
                if numbers:  # end below each other, words begin so
                    value.pad_left(second - value.cell_len)
                out += self._across((label, first), (value, second), (beside, max(room, 1)))
            if below.plain:
                out += self._across((Line(""), 2), (below, width - 4))
            if row.formula:
                formula = Line("= " + self.say(row.formula), FORMULA)
                out += self._across((Line(""), 2), (formula, width - 4))
        return _joined(out)

    def _across(self, *cells: tuple[Line, int]) -> list[Line]:
        """Cells beside each other, two spaces apart, each wrapped to its width; lighter than a table a row."""
        wrapped = [
            [cell] if cell.cell_len <= width else list(cell.wrap(self.console, width))
            for cell, width in cells
        ]
        lines = []
        for row in zip_longest(*wrapped):
            line = Line()
            for number, (cell, (_, width)) in enumerate(zip(row, cells, strict=True)):
                shown = cell if cell is not None else Line("")
                shown.rstrip()
                line.append("  " if number else "").append_text(shown)
                if number + 1 < len(cells):
                    line.append(" " * (width - shown.cell_len))
            lines.append(line)
        return lines

    def _cells(self, table: Table) -> tuple[list[str], list[list[str]]]:
        return (
            [self.say(column.title) for column in table.columns],
            [[self.say(value) for value in row] for row in table.rows],
        )

    def _table(self, table: Table, width: int) -> RenderableType:
        titles, rows = self._cells(table)
        widths = column_widths(table, titles, rows, width)
        if widths is None:
            return self._records(table, titles, rows, width)
        grid = Grid(
            box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1),
            header_style=NOTE,
            border_style=NOTE if self.color else "",
        )
        if table.marked:  # a narrow column of its own, so that long names wrap under themselves
            grid.add_column("", width=1)
        for title, column, fixed in zip(titles, table.columns, widths, strict=True):
            grid.add_column(title, justify=column.align, overflow="fold", width=fixed)
        room = width - sum(widths) - BETWEEN * len(widths) - (MARK if table.marked else 0)
        drawn = table.bar is not None and room >= 6
        bars = charts.column(table, min(room, 30), self.color, self.ascii) if drawn else None
        if bars:
            grid.add_column()
        for number, row in enumerate(rows):
            strong = number in table.marked
            mark = [Line(self.kept("▸") if strong else "")] if table.marked else []
            cells = mark + [Line(cell) for cell in row] + ([bars[number]] if bars else [])
            grid.add_row(*cells, style="bold" if strong else "")
        return grid

    def _records(
        self, table: Table, titles: list[str], rows: list[list[str]], width: int
    ) -> RenderableType:
        """A table too wide for the page: a paragraph for each row, its first cell as heading."""
        out: list[RenderableType] = []
        separator = "; " if self.ascii else " · "
        for number, (head, *rest) in enumerate(rows):
            strong = number in table.marked
            mark = self.kept("▸") + " " if strong else ""
            title = f"{titles[0]}: " if titles[0] and cell_len(titles[0]) < width // 2 else ""
            if head:  # else it continues with what the row above is of
                out.append(Line(mark + title + head, "bold" if strong else ""))
            pieces = [
                f"{title}: {cell}" if title else cell
                for title, cell in zip(titles[1:], rest, strict=True)
                if cell
            ]
            lines = Line(separator.join(pieces), NOTE).wrap(self.console, width - 2)
            out.append(_joined([Line("  ").append_text(line) for line in lines]))
        return Group(*out)

    def _notes(self, notes: Notes, width: int) -> RenderableType:
        mark = self.kept("• " if notes.tone is None else MARKS[notes.tone])
        out: list[Line] = []
        for item in notes.items:
            for number, line in enumerate(
                Line(self.say(item)).wrap(self.console, width - len(mark))
            ):
                line.rstrip()
                start = Line().append(" " * len(mark) if number else mark, TONES[notes.tone])
                out.append(start.append_text(line))
        return _joined(out)


def _joined(lines: list[Line]) -> Line:
    """Lines that are laid out already."""
    whole = Line("\n").join(lines)
    whole.no_wrap = True
    return whole
