"""The plots of docs/accuracy.md: predicted against measured, as SVG."""

import math
from typing import Any

COLOURS = (
    "#2563eb",
    "#dc2626",
    "#059669",
    "#d97706",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#4d7c0f",
    "#6b7280",
    "#92400e",
)


def plot(
    rows: list[dict[str, Any]],
    groups: dict[str, str],
    title: str,
    unit: str,
    logarithmic: bool = True,
) -> str:
    """Predicted against measured, both axes alike; one colour a group; the diagonal is a perfect prediction."""
    points = [
        (r["measured"], r["predicted"], groups[r["id"]], r["id"]) for r in rows if not r["skipped"]
    ]
    scale = math.log10 if logarithmic else float
    low = min(scale(min(m, p)) for m, p, _, _ in points)
    high = max(scale(max(m, p)) for m, p, _, _ in points)
    pad = (high - low) * 0.04
    low, high = low - pad, high + pad
    left, size, names = 64, 440, sorted({g for _, _, g, _ in points})

    def place(value: float) -> float:
        return (scale(value) - low) / (high - low) * size

    if logarithmic:
        ticks = [
            m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)
        ]
    else:
        ticks = [x / 10 for x in range(math.floor(low * 10), math.ceil(high * 10) + 1, 2)]
    ticks = [t for t in ticks if low <= scale(t) <= high]
    total = left + size + 210, max(size + 84, 60 + 15 * len(names))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        f'<rect width="{total[0]}" height="{total[1]}" fill="white"/>',
        f'<text x="{left}" y="18" font-size="14">{title}</text>',
        f'<line x1="{left}" y1="{30 + size}" x2="{left + size}" y2="30" stroke="#999" stroke-dasharray="4"/>',
        f'<rect x="{left}" y="30" width="{size}" height="{size}" fill="none" stroke="#333"/>',
    ]
    for tick, at in ((tick, place(tick)) for tick in ticks):
        across, up = left + at, 34 + size - at
        parts += [
            f'<text x="{across:.1f}" y="{size + 46}" text-anchor="middle">{tick:g}</text>',
            f'<text x="{left - 6}" y="{up:.1f}" text-anchor="end">{tick:g}</text>',
        ]
    parts += [
        f'<text x="{left + size / 2}" y="{size + 66}" text-anchor="middle">measured, {unit}</text>',
        f'<text x="14" y="{30 + size / 2}" text-anchor="middle" transform="rotate(-90 14 {30 + size / 2})">predicted, {unit}</text>',
    ]
    for measured, predicted, group, id in points:
        colour = COLOURS[names.index(group) % len(COLOURS)]
        parts.append(
            f'<circle cx="{left + place(measured):.1f}" cy="{30 + size - place(predicted):.1f}" r="3.5" fill="{colour}" '
            f'fill-opacity="0.7"><title>{id} {group}: {predicted:.4g} for {measured:.4g}</title></circle>'
        )
    for i, name in enumerate(names):
        colour, at = COLOURS[i % len(COLOURS)], 40 + 15 * i
        parts += [
            f'<circle cx="{left + size + 16}" cy="{at}" r="3.5" fill="{colour}"/>',
            f'<text x="{left + size + 26}" y="{at + 4}">{name}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
