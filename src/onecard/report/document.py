"""What a report says, apart from how it is shown: sections of a few kinds of blocks, quantities still typed.

    Document(
        title=T("Plan"),
        sections=(Section(T("Time"), (Figures((Figure(T("One step"), Quantity(3.9, "duration")),)),)),),
    )

A text is a `T` (or a `Note`), which each language words its own way, or a plain `str` for what no language changes: a
card's name, a config key. A quantity keeps its value and how to print it until a renderer asks for a language.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from onecard.messages import T, Words

Text = T | str
SUMMARY = T("In short")  # the heading of every summary
# green, yellow, red where there is colour; a mark where there is none
Tone = Literal["good", "fair", "bad"]


# Without repr and equality, which nobody asks of a block: writing them takes a tenth of a plan's time.
@dataclass(frozen=True, repr=False, eq=False)
class Quantity:
    """A figure: `spec` as in a template (count, int, bytes, duration, percent, power, money, when, date or ".2f")."""

    value: Any
    spec: str = ""
    unit: Text = ""

    def __str__(self) -> str:
        unit = str(self.unit)
        return Words().format_field(self.value, self.spec) + (f" {unit}" if unit else "")


Value = Quantity | T | str
NONE = "–"  # in the place of a figure that is not known


def if_known(value: float | None, spec: str) -> Value:
    return NONE if value is None else Quantity(value, spec)


@dataclass(frozen=True, repr=False, eq=False)
class Figure:
    """One row: a label, its value, and what may follow: the 80 % range, a remark, the formula for --explain."""

    label: Text
    value: Value
    span: tuple[Quantity, Quantity] | None = None
    note: Value | None = None
    formula: Text | None = None
    tone: Tone | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Figures:
    """Rows of a name and its value."""

    rows: tuple[Figure, ...]


@dataclass(frozen=True, repr=False, eq=False)
class Column:
    """A table's column."""

    title: Text
    align: Literal["left", "right"] = "left"
    breaks: bool = False  # names and text whose words may be endless: they are broken to fit


@dataclass(frozen=True, repr=False, eq=False)
class Table:
    """Rows and columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    marked: tuple[int, ...] = ()  # rows that stand out: this run among others
    bar: int | None = None  # the column that is also drawn, each row to the scale of the largest


@dataclass(frozen=True, repr=False, eq=False)
class Part:
    """One part of a stacked bar."""

    label: Text
    value: Quantity


@dataclass(frozen=True, repr=False, eq=False)
class StackedBar:
    """Parts of a whole against a limit: memory, part by part, against the card."""

    parts: tuple[Part, ...]
    limit: Quantity
    limit_label: Text
    total: Quantity
    total_label: Text
    title: Text
    formula: Text | None = None


@dataclass(frozen=True, repr=False, eq=False)
class Series:
    """One curve of a chart, with a band for its range."""

    label: Text
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = ()  # (x, low, high)


@dataclass(frozen=True, repr=False, eq=False)
class Level:
    """A horizontal line to compare a curve with: the loss of the released GPT-2."""

    label: Text
    y: float


@dataclass(frozen=True, repr=False, eq=False)
class LineChart:
    """Curves over a common axis."""

    title: Text
    series: tuple[Series, ...]
    x_label: Text
    y_label: Text
    x_spec: str = "count"
    y_spec: str = ".2f"
    log_x: bool = False
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True, repr=False, eq=False)
class Paragraph:
    """A paragraph of text."""

    text: Text


@dataclass(frozen=True, repr=False, eq=False)
class Notes:
    """A list of remarks; a warning is one that asks to be acted on."""

    items: tuple[Text, ...]
    tone: Tone | None = None


Block = Figures | Table | StackedBar | LineChart | Paragraph | Notes


@dataclass(frozen=True, repr=False, eq=False)
class Section:
    """A titled part of a document."""

    title: Text
    blocks: tuple[Block, ...]
    short: tuple[Block, ...] = ()  # what the short form shows of it; nothing leaves the section out


def always(title: Text, *blocks: Block) -> Section:
    """A section that the short form shows whole."""
    return Section(title, blocks, short=blocks)


@dataclass(frozen=True, repr=False, eq=False)
class Document:
    """One report, whatever it is shown as: terminal, Markdown, HTML."""

    title: Text
    sections: tuple[Section, ...]
    subtitle: Text | None = None
    answer: Text | None = None  # the question answered in one sentence
    headline: tuple[Figure, ...] = ()  # the few figures a person came for
    summary: tuple[Text, ...] = ()  # sentences to read aloud
    short_summary: tuple[Text, ...] | None = None  # of the short form, where it differs
    footer: Text | None = None


def shortened(document: Document) -> Document:
    """The short form: the answer, its reasons and what to do; the tables are for the full one. A document that leaves
    nothing out is its own."""
    if document.short_summary is None and all(
        each.short == each.blocks for each in document.sections
    ):
        return document
    sections = tuple(
        Section(section.title, section.short, section.short)
        for section in document.sections
        if section.short
    )
    summary = document.summary if document.short_summary is None else document.short_summary
    more = T("--full shows every figure, --explain adds formulas and sources.")
    footer = more if document.footer is None else T("{a} {b}", a=document.footer, b=more)
    return replace(document, sections=sections, summary=summary, footer=footer)
