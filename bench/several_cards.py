"""The accuracy page's table of runs on several cards: how far time and memory were off, by how the cards share the work."""

import statistics
from typing import Any

from onecard.planner.workload import Workload

NOTHING = "–"


def sharing(w: Workload) -> str:
    """How the cards of a public run share it."""
    if w.sharded:
        return "FSDP"
    return "replicated, moments split" if w.split_optimizer else "replicated"


def cards_table(rows: list[dict[str, Any]], workloads: dict[str, Workload]) -> list[str]:
    """One line for one card and one for each number of cards and way of sharing."""
    groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        work = workloads.get(row["id"])
        if row["skipped"] or row["foreign"] or work is None:
            continue
        key = (1, "one card") if work.gpus == 1 else (work.gpus, sharing(work))
        groups.setdefault(key, []).append(row)
    lines = [
        "| cards | the work is | time: rows | median | bias | in the 80 % range | memory: rows | median | in the 80 % range |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (cards, way), found in sorted(groups.items()):
        time, memory = ([r for r in found if r["kind"] == kind] for kind in ("time", "memory"))
        lines.append(f"| {cards} | {way} | {_time(time)} | {_memory(memory)} |")
    return lines


def _errors(rows: list[dict[str, Any]]) -> list[float]:
    return [r["predicted"] / r["measured"] - 1 for r in rows]


def _median(rows: list[dict[str, Any]]) -> str:
    return f"{statistics.median(map(abs, _errors(rows))):.1%}" if rows else NOTHING


def _held(rows: list[dict[str, Any]]) -> str:
    held = [r["low"] <= r["measured"] <= r["high"] for r in rows]
    return f"{sum(held) / len(held):.0%}" if rows else NOTHING


def _time(rows: list[dict[str, Any]]) -> str:
    bias = f"{statistics.median(_errors(rows)):+.1%}" if rows else NOTHING
    return f"{len(rows)} | {_median(rows)} | {bias} | {_held(rows)}"


def _memory(rows: list[dict[str, Any]]) -> str:
    return f"{len(rows)} | {_median(rows)} | {_held(rows)}"
