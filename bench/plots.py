"""Plots and verdicts of docs/performance.md."""

import math
from typing import Any

COLOURS = {"nanogpt": "#b04a3a", "gpt2": "#b04a3a", "modern": "#2a6f97"}


def plot(result: dict[str, Any], key: str, label: str) -> str:
    """Loss against tokens or seconds (logarithmic), all curves, and the line that is to be reached; as SVG."""
    width, height, edge = 560, 300, 46
    curves = {
        name: [(p[key], p["loss"]) for p in result[name]] for name in COLOURS if name in result
    }
    points = [point for curve in curves.values() for point in curve]
    left, right = math.log(min(x for x, _ in points)), math.log(max(x for x, _ in points))
    low, high = min(y for _, y in points) - 0.05, max(y for _, y in points) + 0.05

    def place(x: float, y: float) -> str:
        across = edge + (math.log(x) - left) / (right - left or 1) * (width - 2 * edge)
        return f"{across:.1f},{height - edge - (y - low) / (high - low) * (height - 2 * edge):.1f}"

    def text(at: str, words: str, anchor: str = "middle", colour: str = "#444") -> str:
        x, y = at.split(",")
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{words}</text>'

    target = result["target"]
    a, b = place(math.exp(left), target), place(math.exp(right), target)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<polyline points="{a} {b}" stroke="#999" stroke-dasharray="4 4" fill="none"/>',
        text(f"{edge - 6},{a.split(',')[1]}", f"{target:.2f}", "end"),
        text(f"{width / 2},{height - 10}", label),
    ]
    for name, curve in curves.items():
        joined = " ".join(place(x, y) for x, y in curve)
        lines.append(
            f'<polyline points="{joined}" stroke="{COLOURS[name]}" stroke-width="2" fill="none"/>'
        )
        across, up = place(*curve[0]).split(",")
        lines.append(text(f"{float(across) + 6},{float(up) - 6}", name, "start", COLOURS[name]))
    for x in (math.exp(left), math.exp(right)):
        lines.append(text(f"{place(x, low).split(',')[0]},{height - edge + 16}", f"{x:,.0f}"))
    return "\n".join([*lines, "</svg>", ""])


def reached(value: float | None, goal: float, at_most: bool = False) -> str:
    if value is None:
        return "not reached"
    return "reached" if (value <= goal if at_most else value >= goal) else "**not reached**"
