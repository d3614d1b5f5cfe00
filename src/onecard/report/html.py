"""A document as one HTML page: no network, no script, light and dark by the reader's setting, fit for paper.

Path("plan.html").write_text(render(document, language("hi")), encoding="utf-8")
"""

import re
from html import escape
from itertools import groupby

from onecard.report import svg
from onecard.report.document import (
    SUMMARY,
    Block,
    Document,
    Figure,
    Figures,
    LineChart,
    Notes,
    Paragraph,
    Quantity,
    Section,
    StackedBar,
    Table,
    Tone,
)
from onecard.report.language import Language

MOST_UNEVEN = 3.0  # times the height of all the others: beside such a section half of the page would stay empty
WIDE_TABLE = 5  # columns; a table with as many is drawn across the page
COLUMN, DRAWING = 60, 12  # characters in a line of one of two columns; lines that a chart is high
SHORT_CELL = 16  # characters of a cell that is never broken into lines
LONG_CELL = 40  # characters of a cell that needs room for several words in a line
MARKS: dict[Tone | None, str] = {"good": "✓ ", "fair": "⚠\ufe0e ", "bad": "✗ ", None: ""}

# Fonts are named before system-ui, which on some Linux machines is a serif; the later ones are those that carry
# Devanagari on Linux, Windows, macOS and Android.
STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --page: #f6f7f9; --card: #fff;
  --line: #d9dee4; --good: #1a7f37; --fair: #9a6700; --bad: #cf222e; --accent: #0b6bcb;
  --c0: #2f7ed8; --c1: #1aa3a3; --c2: #4ca64c; --c3: #d98e04; --c4: #d1495b; --c5: #8e63b3; --c6: #8a8f98; --c7:
    #b08900; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4af; --page: #0f1317; --card: #181d23;
  --line: #303841; --good: #4ac26b; --fair: #d9a72c; --bad: #ff7b72; --accent: #6cb0ff;
  --c0: #5aa2f0; --c1: #35bdbd; --c2: #6cc06c; --c3: #e8a93a; --c4: #e8707f; --c5: #ab86cc; --c6: #9aa0a8; --c7:
    #d0aa30; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 2rem 1.25rem 3rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans Devanagari", "Nirmala UI",
    "Kohinoor Devanagari", "Lohit Devanagari", system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; }
h1 { font-size: 1.7rem; margin: 0; line-height: 1.3; }
h2 { font-size: 1.05rem; margin: 0 0 .6rem; color: var(--accent); }
p { margin: .4rem 0; }
.subtitle, .note, footer, th { color: var(--soft); }
.subtitle { margin: .25rem 0 1.25rem; } .answer { font-size: 1.15rem; font-weight: 600; margin: 0 0 1rem; }
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem; margin: 0 0
    .75rem; }
.headline div, section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; }
.headline div { padding: .7rem 1rem; }
.headline dt { color: var(--soft); font-size: .9rem; margin: 0; }
.headline dd { margin: 0; } .headline .value { font-size: 1.5rem; font-weight: 650; line-height: 1.35; }
.sections { columns: 2; column-gap: .75rem; margin-bottom: .75rem; }
section { padding: .9rem 1.1rem 1rem; margin: 0 0 .75rem; break-inside: avoid; overflow-wrap: break-word; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; margin: 0 0 .8rem; font-variant-numeric:
    tabular-nums; }
section > :last-child { margin-bottom: 0; } .scroll { overflow-x: auto; }
td.breaks { overflow-wrap: anywhere; min-width: 8rem; } td.long { min-width: 11rem; } .opt { white-space: nowrap; }
.wide figure { display: inline-block; vertical-align: top; width: calc(50% - .6rem); min-width: min(100%, 26rem);
    margin-right: .5rem; } .wide figure:only-of-type { display: block; width: min(100%, 40rem); margin-inline: auto; }
td, th { padding: .22rem .75rem .22rem 0; text-align: left; vertical-align: baseline; border-bottom: 1px solid
    var(--line); }
tr:last-child td { border-bottom: 0; }
th { font-weight: 500; font-size: .85rem; }
.right { text-align: right; } .right, td.short { white-space: nowrap; } td:last-child, th:last-child { padding-right: 0; }
.figures td:first-child { width: 34%; } .figures .value { font-weight: 600; text-align: right; white-space: nowrap; }
.figures .note { padding-left: .6rem; width: 40%; } .figures .formula td { border-top: 0; padding-top: 0; }
.figures .explained td { border-bottom: 0; }
code { font: .82rem/1.4 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; color: var(--soft); }
code.typed { font-size: .88em; color: inherit; }
.marked td { font-weight: 650; } .marked td:first-child::before { content: "▸ "; color: var(--accent); }
.mini { width: 100%; min-width: 4rem; height: .55rem; display: block; } td.bar { width: 30%; vertical-align: middle; }
.chart { width: 100%; height: auto; display: block; margin: .3rem 0 0; }
figure { margin: 0 0 .8rem; } figcaption { color: var(--soft); font-size: .85rem; }
ul { margin: .3rem 0 .8rem; padding-left: 1.2rem; } ul.fair { list-style: none; padding-left: 0; }
.good { color: var(--good); } .fair .mark, .value.fair { color: var(--fair); } .bad { color: var(--bad); }
.summary { border-color: var(--accent); font-size: 1.05rem; }
footer { font-size: .85rem; margin-top: 1rem; }
@media (max-width: 70rem) { .sections { columns: 1; } }
@media (max-width: 34rem) { section { overflow-x: auto; padding: .8rem .85rem .9rem; }
  body { padding: 1.25rem .75rem 2rem; } table { font-size: .85rem; } td, th { padding-right: .45rem; }
  .worded tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); } .worded .long { flex-basis: 100%; }
  .worded td, .worded th { border: 0; } .worded td:first-child, .worded th:first-child { flex: 1; }
  .figures tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--line); } .figures td { border: 0; }
  .figures tr.explained, .figures tr:last-child { border-bottom: 0; } .figures td:first-child { flex: 1; }
  .figures .note { flex-basis: 100%; padding: 0 0 .22rem; } .figures .note:empty { display: none; } }
@media print { @page { margin: 14mm; }
  :root { color-scheme: light; --ink: #000; --soft: #444; --page: #fff; --card: #fff; --line: #bbb; --good: #0b5d25;
    --fair: #7a5200; --bad: #a40e26; --accent: #003d80;
    --c0: #2f7ed8; --c1: #1aa3a3; --c2: #4ca64c; --c3: #d98e04; --c4: #d1495b; --c5: #8e63b3; --c6: #8a8f98; --c7:
    #b08900; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { padding: 0; font-size: 10.5pt; } main { max-width: none; } h1 { font-size: 16pt; }
  .headline { grid-template-columns: repeat(4, 1fr); } .headline .value { font-size: 13pt; }
  .sections { columns: 1; } .chart { max-width: 13cm; } }
"""


def render(document: Document, language: Language) -> str:
    """The whole page."""
    say = _Say(language)
    body = [f"<h1>{say(document.title)}</h1>"]
    if document.subtitle is not None:
        body.append(f'<p class="subtitle">{say(document.subtitle)}</p>')
    if document.answer is not None:
        body.append(f'<p class="answer">{_prose(language.sentence(document.answer))}</p>')
    if document.headline:
        cells = "".join(_headline(figure, say) for figure in document.headline)
        body.append(f'<dl class="headline">{cells}</dl>')
    if document.summary:
        sentences = " ".join(_prose(language.sentence(item)) for item in document.summary)
        body.append(f'<section class="summary"><h2>{say(SUMMARY)}</h2><p>{sentences}</p></section>')
    body.append(_sections(document.sections, say))
    if document.footer is not None:
        body.append(f"<footer>{say.prose(document.footer)}</footer>")
    return (
        f'<!doctype html>\n<html lang="{escape(language.locale.replace("_", "-"))}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # nothing is fetched and nothing runs, whatever a config's names hold
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{say(document.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


class _Say:
    """Words and quantities of the document in the reader's language, escaped."""

    def __init__(self, language: Language):
        self.language = language

    def __call__(self, value: object) -> str:
        return escape(self.language.value(value))  # type: ignore[arg-type]

    def prose(self, value: object) -> str:
        return _prose(self.language.value(value))  # type: ignore[arg-type]

    def beside(self, figure: Figure) -> str:
        return escape(self.language.beside(figure))


def _prose(text: str) -> str:
    """A sentence, escaped, with its commands set as code and its options kept whole."""
    commands = re.sub("`([^`]+)`", r'<code class="typed">\1</code>', escape(text))
    return re.sub(r"(?<![\w-])--[a-z][\w-]*", r'<span class="opt">\g<0></span>', commands)


def _headline(figure: Figure, say: _Say) -> str:
    beside = say.beside(figure)
    return (
        f"<div><dt>{say(figure.label)}</dt>"
        f'<dd class="value {figure.tone or ""}">{MARKS[figure.tone]}{say(figure.value)}</dd>'
        + (f'<dd class="note">{beside}</dd>' if beside else "")
        + "</div>"
    )


def _sections(sections: tuple[Section, ...], say: _Say) -> str:
    """In the order given: neighbours that need little width in two columns, the others across the page."""
    out = []
    for wide, group in groupby(sections, _is_wide):
        members = list(group)
        alone = wide or _uneven(members)
        drawn = "".join(_section(section, say, alone) for section in members)
        out.append(f'<div class="{"whole" if alone else "sections"}">{drawn}</div>')
    return "".join(out)


def _uneven(sections: list[Section]) -> bool:
    heights = sorted(_lines(section) for section in sections)
    return heights[-1] > MOST_UNEVEN * sum(heights[:-1])


def _lines(section: Section) -> int:
    """About how many lines a section is high in one of two columns."""
    lines = 1
    for block in section.blocks:
        if isinstance(block, Notes):
            lines += sum(1 + len(str(item)) // COLUMN for item in block.items)
        elif isinstance(block, Figures | Table):
            lines += 1 + len(block.rows)
        else:
            lines += 1 if isinstance(block, Paragraph) else DRAWING
    return lines


def _is_wide(section: Section) -> bool:
    return any(
        isinstance(block, Table) and len(block.columns) >= WIDE_TABLE for block in section.blocks
    )


def _section(section: Section, say: _Say, wide: bool = False) -> str:
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{say(section.title)}</h2>{''.join(_block(block, say) for block in section.blocks)}</section>"


def _block(block: Block, say: _Say) -> str:
    if isinstance(block, Figures):
        return _figures(block, say)
    if isinstance(block, Table):
        return _table(block, say)
    if isinstance(block, StackedBar):
        formula = f"<p><code>{say(block.formula)}</code></p>" if block.formula else ""
        return _figure(say(block.title), svg.stacked_bar(block, say.language)) + formula
    if isinstance(block, LineChart):
        return _figure(say(block.title), svg.line_chart(block, say.language))
    if isinstance(block, Notes):
        mark = f'<span class="mark">{MARKS[block.tone]}</span>' if block.tone else ""
        items = "".join(f"<li>{mark}{say.prose(item)}</li>" for item in block.items)
        return f'<ul class="{block.tone or "plain"}">{items}</ul>'
    assert isinstance(block, Paragraph)
    return f"<p>{say.prose(block.text)}</p>"


def _figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>"


def _figures(block: Figures, say: _Say) -> str:
    rows = []
    noted = any(figure.span or figure.note for figure in block.rows)
    for figure in block.rows:
        kind = ' class="explained"' if figure.formula else ""
        rows.append(
            f"<tr{kind}><td>{say(figure.label)}</td>"
            f'<td class="value {figure.tone or ""}">{MARKS[figure.tone]}{say(figure.value)}</td>'
            + (f'<td class="note">{say.beside(figure)}</td></tr>' if noted else "</tr>")
        )
        if figure.formula:
            rows.append(
                f'<tr class="formula"><td colspan="3"><code>{say(figure.formula)}</code></td></tr>'
            )
    return f'<table class="figures">{"".join(rows)}</table>'


def _table(table: Table, say: _Say) -> str:
    kinds = [_cell_class(table, number, say) for number in range(len(table.columns))]
    head = "".join(
        f"<th{kind}>{say(column.title)}</th>"
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    head += "<th></th>" if table.bar is not None else ""
    most = (
        max((_number(row[table.bar]) for row in table.rows), default=0.0)
        if table.bar is not None
        else 0.0
    )
    rows = []
    for number, row in enumerate(table.rows):
        cells = "".join(
            f"<td{kind}>{say(value)}</td>" for kind, value in zip(kinds, row, strict=True)
        )
        if table.bar is not None:
            strong = number in table.marked or not table.marked
            cells += f'<td class="bar">{svg.mini_bar(_number(row[table.bar]) / (most or 1.0), strong)}</td>'
        rows.append(
            f"<tr{' class=' + chr(34) + 'marked' + chr(34) if number in table.marked else ''}>{cells}</tr>"
        )
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    # on a narrow screen a sentence stands below its row: what has to be scrolled to is not read
    kind = ' class="worded"' if any("long" in kind for kind in kinds) else ""
    return f'<div class="scroll"><table{kind}>{body}</table></div>'


def _cell_class(table: Table, number: int, say: _Say) -> str:
    column = table.columns[number]
    if column.align == "right":
        return ' class="right"'
    longest = max((len(say.language.value(row[number])) for row in table.rows), default=0)
    if longest <= SHORT_CELL:
        return ' class="short"'
    if column.breaks:
        return ' class="breaks"'
    last = number == len(table.columns) - 1
    return ' class="long"' if last and longest >= LONG_CELL else ""


def _number(value: object) -> float:
    return float(value.value) if isinstance(value, Quantity) else 0.0
