"""Charts in characters: a stacked bar, the bars beside a table, and a curve in braille dots.

Parts of a bar differ by colour, and where there is none by the grain of the block; the legend shows the same mark.
"""

import math
from collections.abc import Callable
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text as Line

from onecard.report.document import LineChart, Quantity, StackedBar, Table

Say = Callable[[object], str]

# Mid tones of the 256-colour cube: read on dark and on light grounds, and apart from each other for the colour-blind.
COLORS = (
    "color(33)",
    "color(37)",
    "color(71)",
    "color(172)",
    "color(167)",
    "color(97)",
    "color(245)",
    "color(136)",
)
GRAINS = "█▓▒░▞▤▪◦"
LETTERS = "#=%+:o~."
DIM = "dim"


def stacked_bar(
    chart: StackedBar, width: int, say: Say, color: bool, ascii_only: bool
) -> RenderableType:
    """One bar to the scale of the card, then its legend with sizes and shares."""
    limit, total = float(chart.limit.value), float(chart.total.value)
    scale = max(limit, total)
    filled = _cells([float(part.value.value) for part in chart.parts], scale, width)
    bar = Line()
    for number, cells in enumerate(filled):
        bar.append(_mark(number, color, ascii_only) * cells, _style(number, color))
    edge = min(round(limit / scale * width), width)
    bar.append(("." if ascii_only else "·") * max(edge - bar.cell_len, 0), DIM)
    lines: list[RenderableType] = [bar]
    if total > limit:  # the card ends inside the bar: say where
        end = say(chart.limit)
        text = f"{'^' if ascii_only else '▲'} {say(chart.limit_label)} {end}"
        lines.append(
            Line(
                " " * min(max(edge - 1, 0), max(width - cell_len(text), 0)) + text,
                "bold red" if color else "bold",
            )
        )
    names = [say(part.label) for part in chart.parts]
    sizes = [say(part.value) for part in chart.parts]
    wide, tall = max(map(cell_len, names)), max(map(cell_len, sizes))
    each = wide + tall + 4
    columns = 2 if 2 * each + 3 <= width else 1
    rows = math.ceil(len(names) / columns)
    for row in range(rows):
        line = Line()
        for column in range(columns):
            number = row + column * rows
            if number < len(names):
                if column:
                    line.append("   ")
                line.append(_mark(number, color, ascii_only) + " ", _style(number, color))
                line.append(names[number] + " " * (wide - cell_len(names[number])) + "  ")
                line.append(" " * (tall - cell_len(sizes[number])) + sizes[number], "bold")
        lines.append(line)
    if chart.formula:
        lines.append(Line("= " + say(chart.formula), "italic dim"))
    return Group(*lines)


def column(table: Table, room: int, color: bool, ascii_only: bool) -> list[Line]:
    """The bars beside a table's rows, for its column `bar`."""
    assert table.bar is not None
    values = [
        float(cell.value) if isinstance(cell := row[table.bar], Quantity) else 0.0
        for row in table.rows
    ]
    most = max(values) or 1.0
    out = []
    for number, value in enumerate(values):
        cells = max(round(value / most * room), 1 if value > 0 else 0)
        strong = number in table.marked or not table.marked
        style = COLORS[0 if strong else 6] if color else "not bold"
        out.append(Line(("#" if ascii_only else "━" if strong else "─") * cells, style))
    return out


def line_chart(
    chart: LineChart, width: int, say: Say, color: bool, ascii_only: bool, rows: int = 8
) -> RenderableType:
    """The curves in dots of two by four to a cell (one by one in ASCII), axes labelled at their ends."""
    points = [point for series in chart.series for point in series.points]
    across = [_x(x, chart.log_x) for x, _ in points]
    ys = [y for _, y in points] + [level.y for level in chart.levels]
    low, high = min(ys), max(ys)
    top, bottom = say(Quantity(high, chart.y_spec)), say(Quantity(low, chart.y_spec))
    margin = max(cell_len(top), cell_len(bottom))
    columns = max(width - margin - 2, 10)
    dots_x, dots_y = (1, 1) if ascii_only else (2, 4)
    wide, tall = columns * dots_x, rows * dots_y
    grid: dict[tuple[int, int], int] = {}
    for number, series in enumerate(chart.series):
        for column in range(wide):
            at = min(across) + (max(across) - min(across)) * column / max(wide - 1, 1)
            value = _at(series.points, at, chart.log_x)
            if value is not None:
                up = round((value - low) / ((high - low) or 1) * (tall - 1))
                grid[column, tall - 1 - up] = number
    for number, level in enumerate(chart.levels, len(chart.series)):
        up = round((level.y - low) / ((high - low) or 1) * (tall - 1))
        for column in range(0, wide, 3):
            grid.setdefault((column, tall - 1 - up), number)
    lines: list[RenderableType] = [Line(say(chart.title), DIM)]
    axis = "|" if ascii_only else "│"
    for row in range(rows):
        label = top if row == 0 else bottom if row == rows - 1 else ""
        line = Line(" " * (margin - cell_len(label)) + label + " " + axis, DIM)
        for column in range(columns):
            line.append(*_cell(grid, column, row, color, ascii_only))
        lines.append(line)
    corner = "+" if ascii_only else "└"
    lines.append(Line(" " * (margin + 1) + corner + ("-" if ascii_only else "─") * columns, DIM))
    start, end = (
        say(Quantity(x, chart.x_spec))
        for x in (min(x for x, _ in points), max(x for x, _ in points))
    )
    middle = say(chart.x_label)
    gap = max(columns - cell_len(start) - cell_len(end) - cell_len(middle), 2)
    lines.append(
        Line(
            " " * (margin + 2) + start + " " * (gap // 2) + middle + " " * (gap - gap // 2) + end,
            DIM,
        )
    )
    named = [*(series.label for series in chart.series), *(level.label for level in chart.levels)]
    if len(named) > 1:
        marks = [
            Line("* " if ascii_only else "━ ", _style(number, color)).append(say(name), DIM)
            for number, name in enumerate(named)
        ]
        lines += _side_by_side(marks, " " * (margin + 2), width)
    return Group(*lines)


def _side_by_side(parts: list[Line], indent: str, width: int) -> list[Line]:
    """As many to a line as fit; none is broken."""
    lines = [Line(indent)]
    for part in parts:
        empty = lines[-1].plain == indent
        if not empty and lines[-1].cell_len + 3 + part.cell_len > width:
            lines.append(Line(indent))
            empty = True
        lines[-1].append("" if empty else "   ").append(part)
    return lines


# Unicode braille
_DOTS = {
    (0, 0): 1,
    (0, 1): 2,
    (0, 2): 4,
    (1, 0): 8,
    (1, 1): 16,
    (1, 2): 32,
    (0, 3): 64,
    (1, 3): 128,
}


def _cell(
    grid: dict[tuple[int, int], int], column: int, row: int, color: bool, ascii_only: bool
) -> tuple[str, str]:
    if ascii_only:
        number = grid.get((column, row))
        return (" ", "") if number is None else (LETTERS[number % len(LETTERS)], "")
    lit = [
        (bit, grid[key])
        for (x, y), bit in _DOTS.items()
        if (key := (column * 2 + x, row * 4 + y)) in grid
    ]
    if not lit:
        return " ", ""
    return chr(0x2800 + sum(bit for bit, _ in lit)), _style(min(number for _, number in lit), color)


def _x(value: float, log: bool) -> float:
    return math.log(max(value, 1e-300)) if log else value


def _at(points: tuple[tuple[float, float], ...], at: float, log: bool) -> float | None:
    """The curve's height at `at`, between the points around it; None outside of them."""
    for (x0, y0), (x1, y1) in pairwise(points):
        a, b = _x(x0, log), _x(x1, log)
        if a - 1e-9 <= at <= b + 1e-9:
            return y0 if a == b else y0 + (y1 - y0) * (at - a) / (b - a)
    return points[0][1] if len(points) == 1 else None


def _cells(sizes: list[float], scale: float, width: int) -> list[int]:
    """Whole cells for each part, summing as the parts do; what is there at all gets at least one."""
    ends, total = [0], 0.0
    for size in sizes:
        total += size
        ends.append(max(round(total / scale * width), ends[-1] + (1 if size > 0 else 0)))
    over = ends[-1] - width
    cells = [b - a for a, b in pairwise(ends)]
    while over > 0:  # the ones that were granted a cell took it from the largest
        cells[cells.index(max(cells))] -= 1
        over -= 1
    return cells


def _mark(number: int, color: bool, ascii_only: bool) -> str:
    if ascii_only:
        return LETTERS[number % len(LETTERS)]
    return "█" if color else GRAINS[number % len(GRAINS)]


def _style(number: int, color: bool) -> str:
    return COLORS[number % len(COLORS)] if color else ""
