"""A document for the terminal: panels in one column at 80, two from 120 on; in colour, without, or in plain ASCII.

    print(render(document, language("en"), width=80, color=True))

Rich draws boxes and measures cells; the layout of rows is ours, so that a formula can follow its figure.
"""

import io
import unicodedata
from collections.abc import Iterable
from itertools import zip_longest

from rich import box
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text as Line

from onecard.report import terminal_charts as charts
from onecard.report.document import (
    SUMMARY,
    Bars,
    Block,
    Document,
    Figure,
    Figures,
    LineChart,
    Notes,
    Paragraph,
    Section,
    StackedBar,
    Table,
    Text,
    Tone,
)
from onecard.report.language import Language
from onecard.report.plain import plain

TWO_COLUMNS = 120  # from this width on
WIDEST = 160  # a line longer than this is hard to follow
NARROWEST = 40
# Rich breaks lines at no-break spaces, and counts no cell for Devanagari's spacing marks (ा ि ी ो …), to which glibc,
# tmux and most terminals give one. Until the lines are laid out, private characters of one cell stand for them.
_KEPT = {"\u00a0": "\ue000"} | {
    chr(code): chr(code - 0x900 + 0xE100)
    for code in range(0x900, 0x980)
    if unicodedata.category(chr(code)) == "Mc"
}
LAID_OUT = str.maketrans(_KEPT)
RESTORED = str.maketrans(
    {private: char if char != "\u00a0" else " " for char, private in _KEPT.items()}
)
NOTE, FORMULA, FRAME = "dim", "italic dim", "bright_black"
TONES: dict[Tone | None, str] = {
    "good": "bold green",
    "fair": "bold yellow",
    "bad": "bold red",
    None: "bold",
}
MARKS: dict[Tone | None, str] = {"good": "✓ ", "fair": "! ", "bad": "✗ ", None: ""}


def render(
    document: Document, language: Language, width: int, color: bool, encoding: str = "utf-8"
) -> str:
    """The whole document as text, lines no wider than `width`."""
    width = max(NARROWEST, min(width, WIDEST))
    page = _Page(language, color, encoding, width)
    return page.draw(document)


class _Page:
    def __init__(self, language: Language, color: bool, encoding: str, width: int):
        self.language = language
        self.color = color
        self.encoding = encoding
        self.width = width
        self.ascii = plain("╭█✓", encoding) != "╭█✓"
        self.box = box.ASCII if self.ascii else box.ROUNDED
        self.console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=color,
            color_system="256" if color else None,
            legacy_windows=False,
            safe_box=False,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )

    def draw(self, document: Document) -> str:
        lines: list[list[Segment]] = []
        title = Line().append(self.say(document.title), "bold")
        if document.subtitle is not None:
            title.append("\n").append(self.say(document.subtitle), NOTE)
        lines += self._lines(title, self.width)
        if document.headline:
            lines += self._lines(self._headline(document.headline), self.width)
        lines += self._columns([self._panel(section) for section in document.sections])
        if document.summary:
            words = Line(
                " ".join(self._kept(self.language.sentence(item)) for item in document.summary)
            )
            lines += self._lines(self._framed(words, SUMMARY, "cyan"), self.width)
        if document.footer is not None:
            lines += self._lines(Line(self.say(document.footer), NOTE), self.width)
        return "\n".join(self._string(line) for line in lines).translate(RESTORED) + "\n"

    def say(self, value: object) -> str:
        return self._kept(self.language.value(value))  # type: ignore[arg-type]

    def _kept(self, words: str) -> str:
        """Words ready to be laid out."""
        return plain(words, self.encoding).translate(LAID_OUT)

    # layout

    def _lines(self, what: RenderableType, width: int) -> list[list[Segment]]:
        return self.console.render_lines(what, self.console.options.update(width=width), pad=True)

    def _string(self, line: list[Segment]) -> str:
        if not self.color:
            return "".join(segment.text for segment in line).rstrip()
        return "".join(
            segment.style.render(segment.text, color_system=ColorSystem.EIGHT_BIT)
            if segment.style
            else segment.text
            for segment in line
        ).rstrip(" ")

    def _columns(self, panels: list[RenderableType]) -> list[list[Segment]]:
        """One column, or two of about equal height, each read downward in the order given."""
        if self.width < TWO_COLUMNS or len(panels) < 2:
            return [line for panel in panels for line in self._lines(panel, self.width)]
        half = (self.width - 1) // 2
        drawn = [self._lines(panel, half) for panel in panels]
        heights = [len(lines) for lines in drawn]
        split = min(range(1, len(drawn)), key=lambda i: max(sum(heights[:i]), sum(heights[i:])))
        left = [line for lines in drawn[:split] for line in lines]
        right = [line for lines in drawn[split:] for line in lines]
        empty = [Segment(" " * half)]
        rows = max(len(left), len(right))
        left += [empty] * (rows - len(left))
        right += [empty] * (rows - len(right))
        gap = Segment(" " * (self.width - 2 * half))
        return [[*a, gap, *b] for a, b in zip(left, right, strict=True)]

    def _headline(self, figures: Iterable[Figure]) -> RenderableType:
        grid = Grid(
            box=self.box,
            expand=True,
            show_header=False,
            border_style="cyan" if self.color else "",
            padding=(0, 1),
        )
        cells = []
        for figure in figures:
            grid.add_column(justify="center", ratio=1)
            cell = Line().append(self.say(figure.label) + "\n", NOTE)
            cell.append(self._marked(figure), TONES[figure.tone])
            below = self._beside(figure)
            cell.append("\n" + below, NOTE)
            cells.append(cell)
        grid.add_row(*cells)
        return grid

    def _panel(self, section: Section) -> RenderableType:
        inner = (self.width if self.width < TWO_COLUMNS else (self.width - 1) // 2) - 4
        blocks: list[RenderableType] = []
        for number, block in enumerate(section.blocks):
            if number:
                blocks.append(Line(""))
            blocks.append(self._block(block, inner))
        return self._framed(Group(*blocks), section.title, FRAME)

    def _framed(self, inside: RenderableType, title: Text, border: str) -> RenderableType:
        heading = Line(self.say(title), "bold cyan" if self.color else "bold")
        return Panel(
            inside,
            title=heading,
            title_align="left",
            box=self.box,
            border_style=border if self.color else "",
            padding=(0, 1),
        )

    # blocks

    def _block(self, block: Block, width: int) -> RenderableType:
        if isinstance(block, Figures):
            return self._figures(block.rows, width)
        if isinstance(block, Table):
            return self._table(block, width)
        if isinstance(block, StackedBar):
            return charts.stacked_bar(block, width, self.say, self.color, self.ascii)
        if isinstance(block, Bars):
            return charts.bars(block, width, self.say, self.color, self.ascii)
        if isinstance(block, LineChart):
            return charts.line_chart(block, width, self.say, self.color, self.ascii)
        if isinstance(block, Notes):
            return self._notes(block, width)
        assert isinstance(block, Paragraph)
        return Line(self.say(block.text))

    def _marked(self, figure: Figure) -> str:
        return plain(MARKS[figure.tone], self.encoding) + self.say(figure.value)

    def _beside(self, figure: Figure) -> str:
        """What stands beside a value: its range, then its remark."""
        pieces = [self._kept(self.language.span(*figure.span))] if figure.span else []
        if figure.note is not None:
            pieces.append(self.say(figure.note))
        return " · ".join(pieces) if not self.ascii else "; ".join(pieces)

    def _figures(self, rows: tuple[Figure, ...], width: int) -> RenderableType:
        labels = [Line(self.say(row.label)) for row in rows]
        values = [Line(self._marked(row), TONES[row.tone]) for row in rows]
        first = min(max(label.cell_len for label in labels), width * 2 // 5)
        usual = max(12, width // 6)  # a date or a rate may be wider; it then runs on to the right
        second = max((value.cell_len for value in values if value.cell_len <= usual), default=usual)
        room = width - first - second - 4
        out: list[Line] = []
        for row, label, value in zip(rows, labels, values, strict=True):
            beside = Line(self._beside(row), NOTE)
            below = Line("")
            if value.cell_len > second:
                value.style = ""
                value.stylize(TONES[row.tone])
                out += self._across(
                    (label, first), (value.append("  ").append_text(beside), width - first - 2)
                )
            else:
                if room < 16 and beside.cell_len > room:  # no room at the side: on lines of its own
                    below, beside = beside, below
                value.pad_left(second - value.cell_len)
                out += self._across((label, first), (value, second), (beside, max(room, 1)))
            if below.plain:
                out += self._across((Line(""), 2), (below, width - 4))
            if row.formula:
                out += self._across(
                    (Line(""), 2),
                    (Line("= " + plain(row.formula, self.encoding), FORMULA), width - 4),
                )
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

    def _table(self, table: Table, width: int) -> RenderableType:
        grid = Grid(
            box=box.ASCII2 if self.ascii else box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1),
            header_style=NOTE,
            border_style=NOTE if self.color else "",
        )
        said = [[self.say(value) for value in row] for row in table.rows]
        titles = [self.say(column.title) for column in table.columns]
        if table.marked:  # a narrow column of its own, so that long names wrap under themselves
            grid.add_column("", width=1)
        widths = column_widths(table, titles, said, width - (4 if table.marked else 0))
        for title, column, fixed in zip(titles, table.columns, widths, strict=True):
            grid.add_column(title, justify=column.align, overflow="fold", width=fixed)
        taken = sum(max(map(cell_len, cells)) + 3 for cells in zip(titles, *said, strict=True))
        room = width - taken - (4 if table.marked else 0) if table.bar is not None else 0
        bars = charts.column(table, min(room, 30), self.color, self.ascii) if room >= 6 else None
        if bars:
            grid.add_column()
        for number, row in enumerate(said):
            mark = (
                [Line(plain("▸", self.encoding) if number in table.marked else "")]
                if table.marked
                else []
            )
            cells = mark + [Line(cell) for cell in row] + ([bars[number]] if bars else [])
            grid.add_row(*cells, style="bold" if number in table.marked else "")
        return grid

    def _notes(self, notes: Notes, width: int) -> RenderableType:
        mark = plain("• " if notes.tone is None else MARKS[notes.tone], self.encoding)
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


def column_widths(
    table: Table, titles: list[str], said: list[list[str]], room: int
) -> list[int | None]:
    """The width of each column where they do not all have room: figures stay whole, names and titles wrap.

    None leaves it to the renderer: all is well, or there is too little room even so.
    """
    cells = [max(map(cell_len, column), default=1) for column in zip(*said, strict=True)] or [
        1
    ] * len(titles)
    natural = [max(cell_len(title), cell) for title, cell in zip(titles, cells, strict=True)]
    words = [max((cell_len(word) for word in title.split()), default=1) for title in titles]
    room -= 3 * (len(titles) - 1)
    wraps = [i for i, column in enumerate(table.columns) if column.align == "left"]
    if sum(natural) <= room or not wraps:
        return [None] * len(titles)
    for least in (
        words,
        [1] * len(titles),
    ):  # whole words in the titles of figures; else even those are broken
        widths = [natural[i] if i in wraps else max(cells[i], least[i]) for i in range(len(titles))]
        while sum(widths) > room and max(widths[i] for i in wraps) > 7:
            widths[max(wraps, key=lambda i: widths[i])] -= 1
        if sum(widths) <= room:
            return list(widths)
    return [None] * len(titles)
