"""Write docs/accuracy.md and its plots: the tables of accuracy.py and loss_accuracy.py, cross-validated.

python bench/accuracy_page.py [--check]
"""

import contextlib
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from fit.losses import TABLES as LOSS_ENDINGS  # noqa: E402
from fit.runs import ALL_TABLES, UNFITTED, read_runs  # noqa: E402

from bench import (  # noqa: E402
    accuracy,
    accuracy_peers,
    accuracy_summary,
    blind_losses,
    loss_accuracy,
    noise_floor,
    score,
    unseen,
)
from bench.several_cards import cards_table  # noqa: E402

PAGE, IMAGES = ROOT / "docs" / "accuracy.md", ROOT / "docs" / "images"
LOSS_TABLES = (
    *(f"public_losses{ending}.csv" for ending in LOSS_ENDINGS),
    "public_curves.csv",
    "public_curves_2.csv",
    "public_curves_3.csv",
)
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


def answer(main: Any, *words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*words, "--json"])
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


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
    height = max(size + 84, 60 + 15 * len(names))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + size + 210}" height="{height}" font-family="sans-serif" font-size="11">',
        f"<title>{title}</title>",
        f'<rect width="{left + size + 210}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18" font-size="14">{title}</text>',
        f'<line x1="{left}" y1="{30 + size}" x2="{left + size}" y2="30" stroke="#999" stroke-dasharray="4"/>',
        f'<rect x="{left}" y="30" width="{size}" height="{size}" fill="none" stroke="#333"/>',
    ]
    for tick in ticks:
        at = place(tick)
        parts.append(
            f'<text x="{left + at:.1f}" y="{size + 46}" text-anchor="middle">{tick:g}</text>'
        )
        parts.append(
            f'<text x="{left - 6}" y="{34 + size - at:.1f}" text-anchor="end">{tick:g}</text>'
        )
    parts.append(
        f'<text x="{left + size / 2}" y="{size + 66}" text-anchor="middle">measured, {unit}</text>'
    )
    parts.append(
        f'<text x="14" y="{30 + size / 2}" text-anchor="middle" transform="rotate(-90 14 {30 + size / 2})">predicted, {unit}</text>'
    )
    for measured, predicted, group, id in points:
        colour = COLOURS[names.index(group) % len(COLOURS)]
        parts.append(
            f'<circle cx="{left + place(measured):.1f}" cy="{30 + size - place(predicted):.1f}" r="3.5" fill="{colour}" '
            f'fill-opacity="0.7"><title>{id} {group}: {predicted:.4g} for {measured:.4g}</title></circle>'
        )
    for i, name in enumerate(names):
        parts.append(
            f'<circle cx="{left + size + 16}" cy="{40 + 15 * i}" r="3.5" fill="{COLOURS[i % len(COLOURS)]}"/>'
        )
        parts.append(f'<text x="{left + size + 26}" y="{44 + 15 * i}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def table(
    families: dict[str, dict[str, Any]],
    last: dict[str, dict[str, Any]],
    keys: tuple[str, str],
    show: Any,
) -> list[str]:
    lines = [
        "| family | rows | median | 90th percentile | bias | in the 80 % range |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in [*families.items(), *last.items()]:
        bias = each.get("bias", each.get("bias_nats"))
        held = "–" if each["coverage"] is None else f"{each['coverage']:.0%}"
        lines.append(
            f"| {name} | {each['n']} | {show(each[keys[0]])} | {show(each[keys[1]])} | {show(bias)} | {held} |"
        )
    return lines


def main() -> int:
    tables = [ROOT / "fit" / "data" / name for name in ALL_TABLES]
    held_out = answer(accuracy.main, *map(str, tables), "--cross-validate", "--quality", "AB")
    losses = answer(
        loss_accuracy.main,
        *(str(ROOT / "fit" / "data" / name) for name in LOSS_TABLES),
        "--cross-validate",
    )
    names = (*ALL_TABLES, *UNFITTED)
    runs = [run for name in names for run in read_runs(ROOT / "fit" / "data" / name)]
    cards = {run.id: run.device.name for run in runs if run.device}
    workloads = {run.id: run.workload for run in runs if run.workload}
    IMAGES.mkdir(parents=True, exist_ok=True)
    pictures = {
        "accuracy-time.svg": plot(
            [r for r in held_out["rows"] if r["kind"] == "time"],
            cards,
            "Seconds a step, families never seen",
            "s",
        ),
        "accuracy-memory.svg": plot(
            [r for r in held_out["rows"] if r["kind"] == "memory"], cards, "Peak memory", "GB"
        ),
        "accuracy-loss.svg": plot(
            [r for r in losses["rows"] if r["kind"] == "end"],
            {r["id"]: r["family"] for r in losses["rows"]},
            "Final loss, families never seen",
            "nats",
            logarithmic=False,
        ),
    }
    page = PAGE.with_name("accuracy_words.md").read_text(encoding="utf-8")
    share, nats = score.percent, score.nats_text
    time, memory = held_out["time"], held_out["memory"]
    ends = {f: each["loss"] for f, each in losses["families"].items()}
    keys, nat_keys = (
        ("median_abs_error", "p90_abs_error"),
        ("median_abs_error_nats", "p90_abs_error_nats"),
    )

    def held(rows: list[dict[str, Any]]) -> str:
        low, high = score.coverage_interval(rows)
        return f"The range's own range, families drawn again: {low:.0%} to {high:.0%}."

    def of_kind(kind: str) -> str:
        return held([r for r in held_out["rows"] if r["kind"] == kind and not r["foreign"]])

    geforce, median = accuracy_summary.geforce_times(held_out["rows"], cards)
    of_geforce = f" GeForce RTX cards alone: {geforce} rows, median {share(median)}."

    def peer(kind: str) -> dict[str, Any]:
        found = held_out["peers"].get("llm_analysis")
        return {"llm-analysis, given MFU 50 %": found[kind]} if found else {}

    if "llm_analysis" not in held_out["peers"]:
        print(f"without the line for llm-analysis: {accuracy_peers.PEER_INSTALL}")

    def rows(scores: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
        return table(*scores, nat_keys, nats)

    blocks = {
        "SHORT": accuracy_summary.lines(held_out, losses, cards),
        "TIME": [
            *table(
                time["families"],
                {
                    "**all**": time,
                    "**PyTorch**": time["pytorch"],
                    "a single MFU of 40 %": held_out["peers"]["single_mfu"]["time"],
                    **peer("time"),
                },
                keys,
                share,
            ),
            "",
            f"Mean of the families' medians: {share(time['mean_of_family_medians'])}; of PyTorch's: "
            f"{share(time['pytorch']['mean_of_family_medians'])}. " + of_kind("time") + of_geforce,
        ],
        "MEMORY": [
            *table(
                memory["families"],
                {"**all**": memory, "**PyTorch**": memory["pytorch"], **peer("memory")},
                keys,
                share,
            ),
            "",
            f"Mean of the families' medians, PyTorch: {share(memory['pytorch']['mean_of_family_medians'])}. "
            + of_kind("memory"),
        ],
        "NOISE": noise_floor.lines(),
        "UNSEEN": unseen.lines(),
        "CARDS": cards_table(held_out["rows"], workloads),
        "LOSS": [
            *table(
                ends,
                {
                    "**all**": losses["loss"],
                    "**without quality C**": losses["trusted"],
                    "the best constant": losses["baselines"]["constant"],
                    "the nearest known run": losses["baselines"]["nearest_known_run"],
                },
                nat_keys,
                nats,
            ),
            "",
            f"Mean of the families' medians, without quality C: {nats(losses['trusted']['mean_of_family_medians_nats'])} nats; the best "
            f"constant {nats(losses['baselines']['constant']['mean_of_family_medians_nats'])}, the nearest known run "
            f"{nats(losses['baselines']['nearest_known_run']['mean_of_family_medians_nats'])}. "
            + held([r for r in losses["rows"] if r["kind"] == "end" and r["quality"] != "C"]),
        ],
        **{f"BLIND {batch.name}": rows(blind_losses.batch(batch)) for batch in unseen.BATCHES},
        "TABLES": rows(({}, blind_losses.left_out())),
        "CURVES": [*table(losses["curve_families"], {"**all**": losses["curves"]}, nat_keys, nats)],
    }
    for name, lines in blocks.items():
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    made = {PAGE: page, **{IMAGES / name: text for name, text in pictures.items()}}
    if "--check" in sys.argv:
        stale = [
            path.name
            for path, text in made.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        print(
            f"stale: {', '.join(stale)}" if stale else "docs/accuracy.md is what the scripts make"
        )
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {len(pictures)} plots")
    return 0


if __name__ == "__main__":
    sys.exit(main())
