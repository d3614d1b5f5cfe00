"""Charts as small inline SVG: a stacked bar, a curve with its band.

Ink follows the page (currentColor), fills are CSS variables `--c0` … `--c7` with a value to fall back on, so that one
drawing serves light, dark and paper.

    stacked_bar(chart, language)  →  '<svg viewBox="0 0 500 …" role="img" …>…</svg>'
"""

import math
import unicodedata
from collections.abc import Callable
from html import escape

from onecard.report.document import LineChart, Quantity, Series, StackedBar
from onecard.report.language import Language

WIDTH = 500
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 10.0, 44.0  # a line chart's margins
COLORS = ("#2f7ed8", "#1aa3a3", "#4ca64c", "#d98e04", "#d1495b", "#8e63b3", "#8a8f98", "#b08900")
LETTER = 7.0  # a letter's usual width at that size
FONT = 'font-family="inherit" font-size="13" fill="currentColor"'


def fill(number: int) -> str:
    return f"var(--c{number % len(COLORS)}, {COLORS[number % len(COLORS)]})"


def _svg(height: float, title: str, about: str, body: list[str]) -> str:
    """The drawing with its name and its content in words, for those who hear it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" class="chart">'
        f"<title>{escape(title)}</title><desc>{escape(about)}</desc>{''.join(body)}</svg>"
    )


def _letters(words: str) -> int:
    """About how many letters wide: marks above and below (Devanagari's े, ु, ्) take no room."""
    return sum(unicodedata.category(char) != "Mn" for char in words)


def _text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {FONT}{extra}>{escape(words)}</text>'
    )


def stacked_bar(chart: StackedBar, language: Language) -> str:
    """The parts from left to right, the card's size as a frame around them, a legend below."""
    limit = float(chart.limit.value)
    total = sum(float(part.value.value) for part in chart.parts)
    scale = WIDTH / max(limit, total, 1e-300)
    body, x, labels = [], 0.0, []
    for number, part in enumerate(chart.parts):
        wide = float(part.value.value) * scale
        label = f"{language.text(part.label)}: {language.quantity(part.value)}"
        labels.append(label)
        body.append(
            f'<rect x="{x:.1f}" y="4" width="{max(wide, 0.5):.1f}" height="34" fill="{fill(number)}">'
            f"<title>{escape(label)}</title></rect>"
        )
        x += wide
    body.append(
        f'<rect x="0.5" y="4.5" width="{limit * scale - 1:.1f}" height="33" fill="none" stroke="currentColor"/>'
    )
    edge = limit * scale
    caption = f"{language.text(chart.limit_label)} {language.quantity(chart.limit)}"
    body.append(
        f'<path d="M{min(edge, WIDTH - 1):.1f} 2V46" stroke="currentColor" stroke-width="2"/>'
    )
    body.append(
        _text(
            edge - 4 if edge > WIDTH / 2 else edge + 4,
            56,
            caption,
            "end" if edge > WIDTH / 2 else "start",
        )
    )
    y = 80.0
    names = max(_letters(language.text(part.label)) for part in chart.parts) * LETTER
    values = max(_letters(language.quantity(part.value)) for part in chart.parts) * LETTER
    columns = 2 if names + values + 45 < WIDTH / 2 else 1
    for number, part in enumerate(chart.parts):
        column, row = number % columns, number // columns
        left, base = column * WIDTH / 2, y + row * 22
        body.append(
            f'<rect x="{left + 1:.1f}" y="{base - 10:.1f}" width="12" height="12" fill="{fill(number)}"/>'
        )
        body.append(_text(left + 20, base, language.text(part.label)))
        body.append(
            _text(
                left + 30 + names + values,
                base,
                language.quantity(part.value),
                "end",
                ' font-weight="600"',
            )
        )
    height = y + math.ceil(len(chart.parts) / columns) * 22 - 8
    return _svg(height, language.text(chart.title), "; ".join([*labels, caption]), body)


def line_chart(chart: LineChart, language: Language, height: float = 260) -> str:
    """Curves over a light grid; the band of a range behind its curve; levels dashed across."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [end for series in chart.series for _, low, high in series.band for end in (low, high)]
    ys += [level.y for level in chart.levels]
    y_ticks = ticks(min(ys), max(ys), 5)
    low, high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))
    first, last = min(xs), max(xs)
    span = _across(last, chart.log_x) - _across(first, chart.log_x) or 1.0

    def at(x: float, y: float) -> str:
        across = LEFT + (_across(x, chart.log_x) - _across(first, chart.log_x)) / span * (
            WIDTH - LEFT - RIGHT
        )
        up = height - BOTTOM - (y - low) / ((high - low) or 1.0) * (height - BOTTOM - TOP)
        return f"{across:.1f} {up:.1f}"

    x_ticks = (
        log_ticks(first, last)
        if chart.log_x
        else [x for x in ticks(first, last, 5) if first <= x <= last]
    )
    body = _grid(chart, language, (first, last, low), (x_ticks, y_ticks), at)
    for number, series in enumerate(chart.series):
        body += _curve(series, number, at)
    body += _levels(chart, language, (first, last), at)
    body.append(
        _text((LEFT + WIDTH - RIGHT) / 2, height - 6, language.text(chart.x_label), "middle")
    )
    turned = f"translate(16 {(height - BOTTOM + TOP) / 2:.0f}) rotate(-90)"
    body.append(_text(0, 0, language.text(chart.y_label), "middle", f' transform="{turned}"'))
    if len(chart.series) > 1:
        legend, height = _legend(chart, language, height)
        body += legend
    return _svg(height, language.text(chart.title), _about(chart, language), body)


def _grid(
    chart: LineChart,
    language: Language,
    corner: tuple[float, float, float],
    tick_values: tuple[list[float], list[float]],
    at: Callable[[float, float], str],
) -> list[str]:
    """A light line and a number at each tick of y, a number at each of x; `corner` is the first x, the last, the lowest y."""
    (first, last, low), (x_ticks, y_ticks) = corner, tick_values
    body = []
    for y in y_ticks:
        body.append(
            f'<path d="M{at(first, y)}L{at(last, y)}" stroke="currentColor" opacity="0.15"/>'
        )
        body.append(
            _text(
                LEFT - 8,
                float(at(first, y).split()[1]) + 4,
                language.quantity(Quantity(y, chart.y_spec)),
                "end",
            )
        )
    base = float(at(first, low).split()[1])
    for x in x_ticks:
        across = float(at(x, low).split()[0])
        anchor = "end" if across > WIDTH - 40 else "middle"
        body.append(_text(across, base + 18, language.quantity(Quantity(x, chart.x_spec)), anchor))
    return body


def _levels(
    chart: LineChart,
    language: Language,
    ends: tuple[float, float],
    at: Callable[[float, float], str],
) -> list[str]:
    """The levels, dashed from the first x to the last, each with its name."""
    first, last = ends
    body = []
    for number, level in enumerate(chart.levels, len(chart.series)):
        line = f"M{at(first, level.y)}L{at(last, level.y)}"
        body.append(
            f'<path d="{line}" stroke="{fill(number)}" stroke-dasharray="6 4" stroke-width="1.5" fill="none"/>'
        )
        body.append(
            _text(
                WIDTH - RIGHT,
                float(at(last, level.y).split()[1]) - 5,
                language.text(level.label),
                "end",
            )
        )
    return body


def _legend(chart: LineChart, language: Language, top: float) -> tuple[list[str], float]:
    """The names of the curves from `top` down, as many to a line as fit; and where they end."""
    body, left = [], LEFT + 8
    for number, series in enumerate(chart.series):
        name = language.text(series.label)
        if number and left + 20 + _letters(name) * LETTER > WIDTH:
            left, top = LEFT + 8, top + 18
        body.append(
            f'<rect x="{left:.0f}" y="{top + 4:.0f}" width="14" height="4" fill="{fill(number)}"/>'
        )
        body.append(_text(left + 20, top + 10, name))
        left += _letters(name) * LETTER + 48
    return body, top + 18


def _about(chart: LineChart, language: Language) -> str:
    """The chart in words: where each curve begins and ends."""
    return "; ".join(
        f"{language.text(series.label)}: {language.quantity(Quantity(series.points[0][1], chart.y_spec))} → "
        f"{language.quantity(Quantity(series.points[-1][1], chart.y_spec))}"
        for series in chart.series
    )


def _curve(series: Series, number: int, at: Callable[[float, float], str]) -> list[str]:
    out = []
    if series.band:
        edge = [at(x, high) for x, _, high in series.band] + [
            at(x, low) for x, low, _ in reversed(series.band)
        ]
        out.append(f'<path d="M{"L".join(edge)}Z" fill="{fill(number)}" opacity="0.18"/>')
    path = "L".join(at(x, y) for x, y in series.points)
    out.append(
        f'<path d="M{path}" fill="none" stroke="{fill(number)}" stroke-width="2.5" stroke-linejoin="round"/>'
    )
    return out


def mini_bar(share: float, strong: bool) -> str:
    """A bar inside a table's cell, `share` of its width."""
    wide = min(max(share, 0.0), 1.0) * 100
    rect = (
        f'<rect width="{wide:.1f}" height="8" fill="{fill(0)}" opacity="{1 if strong else 0.45}"/>'
    )
    return f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" class="mini" aria-hidden="true">{rect}</svg>'


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round values from below `low` to above `high`: about so many.

    >>> ticks(3.52, 5.2, 5)
    [3.5, 4.0, 4.5, 5.0, 5.5]
    """
    if high <= low:
        return [low]
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * k for k in (1, 2, 5, 10) if size * k >= rough * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(start, end + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between the ends; with fewer than two of them, the ends themselves."""
    powers = [10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return powers if len(powers) > 1 else [low, high]


def _across(x: float, log: bool) -> float:
    return math.log(max(x, 1e-300)) if log else x
