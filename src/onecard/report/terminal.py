"""A document for the terminal: panels in one column, or two where there is room; in colour, without, or in plain ASCII.

    print(render(document, language("en"), width=80, color=True))

Rich draws boxes and measures cells. Lines break between words only: a section that needs more than half of the width
gets all of it.
"""

import io
from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.color import ColorSystem
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table as Grid
from rich.text import Text as Line

from onecard.report.document import SUMMARY, Document, Figure, Section, Text
from onecard.report.language import Language
from onecard.report.plain import plain
from onecard.report.terminal_blocks import NOTE, TONES, Blocks
from onecard.report.terminal_widths import LAID_OUT, RESTORED, longest_word

TWO_COLUMNS = 120  # from this width on
WIDEST = 160  # a line longer than this is hard to follow
NARROWEST = 40
FRAME = "bright_black"


def render(
    document: Document, language: Language, width: int, color: bool, encoding: str = "utf-8"
) -> str:
    """The whole document as text, lines no wider than `width`."""
    width = max(NARROWEST, min(width, WIDEST))
    return _Page(language, color, encoding, width).draw(document)


class _Page:
    def __init__(self, language: Language, color: bool, encoding: str, width: int):
        self.language = language
        self.color = color
        self.encoding = encoding
        self.width = width
        ascii_only = plain("╭█✓", encoding) != "╭█✓"
        self.box = box.ASCII if ascii_only else box.ROUNDED
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
        self.blocks = Blocks(self.console, language, self._kept, color, ascii_only)

    def draw(self, document: Document) -> str:
        title = Line().append(self.say(document.title), "bold")
        if document.subtitle is not None:
            title.append("\n").append(self.say(document.subtitle), NOTE)
        if document.answer is not None:
            title.append("\n").append(self._sentences([document.answer]), "bold cyan")
        lines = self._lines(title, self.width)
        if document.headline:
            lines += self._lines(self._headline(document.headline), self.width)
        lines += self._columns(document.sections)
        if document.summary:
            words = Line(self._sentences(document.summary))
            lines += self._lines(self._framed(words, SUMMARY, "cyan"), self.width)
        if document.footer is not None:
            lines += self._lines(Line(self.say(document.footer), NOTE), self.width)
        return "\n".join(self._string(line) for line in lines).translate(RESTORED) + "\n"

    def say(self, value: object) -> str:
        return self._kept(self.language.value(value))  # type: ignore[arg-type]

    def _sentences(self, items: Iterable[Text]) -> str:
        return " ".join(self._kept(self.language.sentence(item)) for item in items)

    def _kept(self, words: str) -> str:
        """Words ready to be laid out."""
        return plain(words, self.encoding).translate(LAID_OUT)

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

    def _columns(self, sections: tuple[Section, ...]) -> list[list[Segment]]:
        """In the order given: neighbours that need little width in two columns, the others across the page."""
        half = (self.width - 1) // 2
        pairs = self.width >= TWO_COLUMNS

        def narrow(section: Section) -> bool:
            return pairs and max(map(self.blocks.needed, section.blocks)) <= half - 4

        lines: list[list[Segment]] = []
        for small, group in groupby(sections, narrow):
            members = list(group)
            if small and len(members) > 1:
                lines += self._side_by_side(members, half)
            else:
                for section in members:
                    lines += self._lines(self._panel(section, self.width), self.width)
        return lines

    def _side_by_side(self, sections: list[Section], half: int) -> list[list[Segment]]:
        """Two columns of about equal height, each read downward."""
        drawn = [self._lines(self._panel(section, half), half) for section in sections]
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

    def _headline(self, figures: tuple[Figure, ...]) -> RenderableType:
        """The answers in a row of boxes; one below another where a word is wider than its box."""
        texts = [
            (self.say(figure.label), self.blocks.marked(figure), self.blocks.beside(figure))
            for figure in figures
        ]
        room = (self.width - 1) // len(figures) - 3
        if max(longest_word(text) for cell in texts for text in cell) > room:
            rows = self.blocks.figures(figures, self.width - 4)
            return Panel(
                rows, box=self.box, border_style="cyan" if self.color else "", padding=(0, 1)
            )
        grid = Grid(
            box=self.box,
            expand=True,
            show_header=False,
            border_style="cyan" if self.color else "",
            padding=(0, 1),
        )
        for _ in figures:
            grid.add_column(justify="center", ratio=1)
        # three rows, not three lines a cell: where one is wrapped, values still stand beside values
        labels, values, below = zip(*texts, strict=True)
        grid.add_row(*(Line(label, NOTE) for label in labels))
        tones = (TONES[figure.tone] for figure in figures)
        grid.add_row(*map(Line, values, tones))
        if any(below):
            grid.add_row(*(Line(words, NOTE) for words in below))
        return grid

    def _panel(self, section: Section, width: int) -> RenderableType:
        blocks: list[RenderableType] = []
        for number, block in enumerate(section.blocks):
            if number:
                blocks.append(Line(""))
            blocks.append(self.blocks.draw(block, width - 4))
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
