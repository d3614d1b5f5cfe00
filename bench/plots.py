"""Plots and verdicts of docs/performance.md: SVG with a logarithmic axis below, written without a library.

>>> short(2_000_896), short(10_255_100_000), short(999_424), short(12.5)
('2 M', '10.3 B', '1 M', '12.5')
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

Curve = list[tuple[float, float]]
Beside = Literal["end", "begin", "before"]

OPPONENT, OURS = "#b04a3a", "#2a6f97"
OTHER_COLOURS = (OURS, OPPONENT, "#4c7a34", "#7a5195", "#555555")
WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 20, 52  # around the curves
LINE = 14  # between two lines of text


@dataclass(frozen=True)
class Series:
    label: tuple[str, ...]  # lines of words beside it
    points: Curve
    colour: str
    joined: bool = True  # by a line
    dots: Literal["none", "end", "all"] = "none"
    hollow: bool = False  # dots of what was computed, not measured
    beside: Beside = "end"  # where its words stand; before: left of its end


@dataclass(frozen=True)
class Target:
    value: float
    label: str
    below: bool = False  # the words, of the line
    at: float = 1.0  # where the words end, as a share of the width


def plot(result: dict[str, Any], key: str, label: str) -> str:
    """Loss against tokens or seconds of nanoGPT's run and the modern recipe's, and the loss that is to be reached."""

    def curve(name: str) -> Curve:
        return [(point[key], point["loss"]) for point in result[name]]

    series = [
        Series(("nanoGPT",), curve("nanogpt"), OPPONENT, beside="begin"),
        Series(("modern recipe",), curve("modern"), OURS, beside="begin"),
    ]
    heights = [y for each in series for _, y in each.points]
    target = Target(result["target"], f"nanoGPT's end: {result['target']:.4f}", below=True)
    room = 0.1 * (max(heights) - min(heights))  # for the words below the target
    return chart(
        series, (label, "validation loss"), target, (min(heights) - room, max(heights) + room)
    )


def chart(
    series: list[Series],
    labels: tuple[str, str],
    target: Target,
    heights: tuple[float, float],
    ticks: list[float] | None = None,
) -> str:
    """`labels`: of both axes; the one below is logarithmic and says so. `ticks`: its numbers, else round ones."""
    xs = [x for each in series for x, _ in each.points]
    left, right = math.log(min(xs)), math.log(max(xs))
    margin = 0.03 * (right - left or 1)  # so that no dot lies on the axis
    left, right = left - margin, right + margin
    low, high = heights

    def across(x: float) -> float:
        return LEFT + (math.log(x) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def up(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    numbers = round_numbers(low, high)
    digits = max(0, -math.floor(math.log10(numbers[1] - numbers[0])))
    for y in numbers:
        lines.append(_line([(LEFT, up(y)), (WIDTH - RIGHT, up(y))], "#e8e8e8"))
        lines.append(_text(LEFT - 6, up(y) + 4, f"{y:.{digits}f}", "end"))
    floor = HEIGHT - BOTTOM
    for x in ticks or round_steps(min(xs), max(xs)):
        lines.append(_line([(across(x), floor), (across(x), floor + 4)], "#999"))
        lines.append(_text(across(x), floor + 17, short(x)))
    middle = (TOP + floor) / 2
    lines += [
        _line([(LEFT, floor), (WIDTH - RIGHT, floor)], "#999"),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, f"{labels[0]} (logarithmic axis)"),
        f'<g transform="rotate(-90 16 {middle:g})">{_text(16, middle, labels[1])}</g>',
        _line([(LEFT, up(target.value)), (WIDTH - RIGHT, up(target.value))], "#777", dashes="4 4"),
        _text(
            LEFT + target.at * (WIDTH - LEFT - RIGHT),
            up(target.value) + (LINE if target.below else -5),
            target.label,
            "end",
        ),
    ]
    for each in series:
        lines += _drawn(each, [(across(x), up(y)) for x, y in each.points])
    return "\n".join([*lines, "</svg>", ""])


def _drawn(series: Series, places: Curve) -> list[str]:
    lines = [_line(places, series.colour, width=2)] if series.joined and len(places) > 1 else []
    dots = {"none": [], "end": places[-1:], "all": places}[series.dots]
    fill = "white" if series.hollow else series.colour
    lines += [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{series.colour}" stroke-width="2"/>'
        for x, y in dots
    ]
    (x, y), anchor = places[-1], "start"
    if series.beside == "begin":  # above the beginning of a curve that falls
        (x, y), offset = places[0], (8.0, -4.0 - LINE * (len(series.label) - 1))
    else:
        offset = (-11.0, 4.0) if series.beside == "before" else (9.0, 4.0)
        anchor = "end" if series.beside == "before" else "start"
    return [
        *lines,
        *(
            _text(x + offset[0], y + offset[1] + LINE * at, words, anchor, series.colour)
            for at, words in enumerate(series.label)
        ),
    ]


def _line(places: Curve, colour: str, width: float = 1, dashes: str = "") -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{joined}" stroke="{colour}" stroke-width="{width:g}"{dashed} fill="none"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", colour: str = "#444") -> str:
    """With a white edge, so that it can be read across a line."""
    edge = 'stroke="white" stroke-width="3" paint-order="stroke"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" {edge}>{words}</text>'


def short(number: float) -> str:
    """With k, M or B, and two digits, or three where two are more than a hundredth off."""
    two = float(f"{number:.2g}")
    number = two if abs(two - number) <= 0.01 * number else number
    for size, letter in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def round_numbers(low: float, high: float) -> list[float]:
    """Four to ten of them in between, 1, 2 or 5 times a power of ten apart.

    >>> round_numbers(4.55, 6.35)
    [4.6, 4.8, 5.0, 5.2, 5.4, 5.6, 5.8, 6.0, 6.2]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(size * power for size in (5, 2, 1) if size * power <= (high - low) / 4)
    return [
        round(at * step, 10) for at in range(math.ceil(low / step), math.floor(high / step) + 1)
    ]


def round_steps(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten in between; over many powers these alone.

    >>> round_steps(2.4e5, 2e6)
    [500000.0, 1000000.0, 2000000.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    sizes = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    return [
        size * 10.0**power
        for power in powers
        for size in sizes
        if low <= size * 10.0**power <= high
    ]


def reached(value: float | None, goal: float, at_most: bool = False) -> str:
    if value is None:
        return "not reached"
    return "reached" if (value <= goal if at_most else value >= goal) else "**not reached**"
