"""Plots and verdicts of docs/performance.md."""

import math
from typing import Any

Curve = list[tuple[float, float]]

COLOURS = {"nanogpt": "#b04a3a", "gpt2": "#b04a3a", "modern": "#2a6f97"}
OTHER_COLOURS = ("#2a6f97", "#b04a3a", "#4c7a34", "#7a5195", "#555555")
WIDTH, HEIGHT, EDGE = 560, 300, 46


def plot(result: dict[str, Any], key: str, label: str) -> str:
    """Loss against tokens or seconds (logarithmic), all curves, and the line that is to be reached; as SVG."""
    curves = {
        name: [(p[key], p["loss"]) for p in result[name]] for name in COLOURS if name in result
    }
    heights = [y for curve in curves.values() for _, y in curve]
    return chart(
        curves, label, result["target"], (min(heights) - 0.05, max(heights) + 0.05), COLOURS
    )


def shares_plot(curves: dict[str, Curve], label: str, goal: float) -> str:
    """Shares of the opponent's tokens against its own number of tokens; a single run is a dot."""
    colours = dict(zip(curves, OTHER_COLOURS, strict=False))
    highest = max(y for curve in curves.values() for _, y in curve)
    return chart(curves, label, goal, (0.0, max(highest, goal) * 1.2), colours)


def chart(
    curves: dict[str, Curve],
    label: str,
    target: float,
    heights: tuple[float, float],
    colours: dict[str, str],
) -> str:
    points = [point for curve in curves.values() for point in curve]
    left, right = math.log(min(x for x, _ in points)), math.log(max(x for x, _ in points))
    low, high = heights

    def place(x: float, y: float) -> str:
        across = EDGE + (math.log(x) - left) / (right - left or 1) * (WIDTH - 2 * EDGE)
        return f"{across:.1f},{HEIGHT - EDGE - (y - low) / (high - low) * (HEIGHT - 2 * EDGE):.1f}"

    def text(at: str, words: str, anchor: str = "middle", colour: str = "#444") -> str:
        x, y = at.split(",")
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    line = f"{place(math.exp(left), target)} {place(math.exp(right), target)}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<polyline points="{line}" stroke="#999" stroke-dasharray="4 4" fill="none"/>',
        *(
            text(f"{EDGE - 6},{place(math.exp(left), y).split(',')[1]}", f"{y:.2f}", "end")
            for y in (low, target, high)
            if y == target or abs(y - target) > 0.08 * (high - low)  # two numbers side by side
        ),
        text(f"{WIDTH / 2},{HEIGHT - 10}", label),
    ]
    for name, curve in curves.items():
        joined = " ".join(place(x, y) for x, y in curve)
        lines.append(
            f'<polyline points="{joined}" stroke="{colours[name]}" stroke-width="2" fill="none"/>'
        )
        if len(curve) == 1:
            across, up = joined.split(",")
            lines.append(f'<circle cx="{across}" cy="{up}" r="4" fill="{colours[name]}"/>')
        ends = [place(*point) for point in (curve[0], curve[-1])]
        lines.append(text(*_label(ends, name), colours[name]))
    for x in (math.exp(left), math.exp(right)):
        lines.append(text(f"{place(x, low).split(',')[0]},{HEIGHT - EDGE + 16}", f"{x:,.0f}"))
    return "\n".join([*lines, "</svg>", ""])


def _label(ends: list[str], name: str) -> tuple[str, str, str]:
    """Where a curve's name stands, the name and its anchor: behind its end; a curve that fills the picture has it above
    its beginning, a dot on the right before itself."""
    (begin, top), (end, bottom) = (map(float, each.split(",")) for each in ends)
    if end < WIDTH / 2:
        return f"{end + 6:.1f},{bottom + 4:.1f}", name, "start"
    if begin < WIDTH / 2:
        return f"{begin + 6:.1f},{top - 6:.1f}", name, "start"
    return f"{begin - 8:.1f},{top + 4:.1f}", name, "end"


def reached(value: float | None, goal: float, at_most: bool = False) -> str:
    if value is None:
        return "not reached"
    return "reached" if (value <= goal if at_most else value >= goal) else "**not reached**"
