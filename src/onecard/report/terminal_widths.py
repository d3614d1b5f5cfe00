"""How wide words and columns are on a terminal, and how much width a table needs so that no word breaks."""

import unicodedata

from rich.cells import cell_len

from onecard.report.document import Column, Table

BETWEEN = 3  # cells between two columns of a table
MARK = 4  # cells of the column that marks rows
EASY = 18  # a column of words is read with ease from this width on

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


def longest_word(text: str) -> int:
    """Cells of the widest piece that must stay on one line."""
    return max(map(cell_len, text.split()), default=0)


def easy_width(table: Table, titles: list[str], cells: list[list[str]]) -> int:
    """The width from which on a table is easy to read: figures whole, words in columns of some width."""
    return sum(_easy(table, titles, cells)) + _frame(table)


def column_widths(
    table: Table, titles: list[str], cells: list[list[str]], room: int
) -> list[int] | None:
    """The width of each column; None where there is no way without breaking a word.

    Figures keep their width as long as it is possible, names and titles wrap.
    """
    room -= _frame(table)
    least = [
        _least(column, texts)
        for column, texts in zip(table.columns, _columns(titles, cells), strict=True)
    ]
    widths = [max(map(cell_len, column)) for column in _columns(titles, cells)]
    for limits in (_easy(table, titles, cells), least):
        while sum(widths) > room:
            widest = max(range(len(widths)), key=lambda i: widths[i] - limits[i])
            if widths[widest] <= limits[widest]:
                break
            widths[widest] -= 1
    return widths if sum(widths) <= room else None


def _easy(table: Table, titles: list[str], cells: list[list[str]]) -> list[int]:
    out = []
    for column, texts in zip(table.columns, _columns(titles, cells), strict=True):
        least = _least(column, texts)
        whole = max(map(cell_len, texts[1:]), default=0)
        out.append(max(least, whole) if column.align == "right" else max(least, min(whole, EASY)))
    return out


def _least(column: Column, texts: tuple[str, ...]) -> int:
    """Cells of the widest word, or fewer where words may be broken."""
    least = max(map(longest_word, texts))
    return min(least, EASY) if column.breaks else least


def _columns(titles: list[str], cells: list[list[str]]) -> list[tuple[str, ...]]:
    return list(zip(titles, *cells, strict=True))


def _frame(table: Table) -> int:
    return BETWEEN * (len(table.columns) - 1) + (MARK if table.marked else 0)
