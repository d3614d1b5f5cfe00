"""What a step of either recipe gives a card to do: kernels, library calls, bytes read and written. No card is needed.

    python -m bench.card_step [--shape small]

The trainer's own step is traced without data, compiled for a card (tests/torch/launch_oracle.py says what is counted and
how). Traced are a first micro-batch, one whose gradients are added to those that are there, and the update; a step of any
number of micro-batches is a sum of these.
Goal: each of the three at most 1.1 × GPT-2's, beyond the modern recipe's extra FLOPs. The results take the place of those in
bench/results/card_step.json; bench/performance.py makes tables of them.
"""

import argparse
import dataclasses
import datetime
import json
import sys
from pathlib import Path
from typing import Any

from bench.plots import reached

ROOT = Path(__file__).parents[1]
FILE = ROOT / "bench" / "results" / "card_step.json"
MOST = 1.1  # over the share of FLOPs
MICRO_BATCHES = (1, 64)  # one, and as many as make half a million tokens
FIGURES = ("kernels", "calls", "moved_bytes")
RECIPES = ("gpt2", "modern")

# Settings beside BASE, and the layers of a second trace, from which one layer's share is taken
BASE = {"block_size": 1024, "batch_size": 8, "vocab_size": 50304, "chunked_loss": True}
SHAPES: dict[str, tuple[dict[str, Any], int | None]] = {
    "small": ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 6),
    "whole logits": ({"n_layer": 12, "n_head": 12, "n_embd": 768, "chunked_loss": False}, None),
    # by `recommend --gpu "RTX 4070" --hours 20`
    "recommended": ({"n_layer": 15, "n_head": 15, "n_embd": 960, "chunked_loss": False}, None),
}
Counts = dict[str, float]


def traced(settings: dict[str, Any], recipe: str) -> dict[str, Any]:
    """By phase (first, next, update) and part of the step."""
    sys.path.insert(0, str(ROOT / "tests" / "torch"))
    from launch_oracle import flops_share, step_work

    from onecard.config import RunConfig
    from onecard.config.recipes import recipe_values

    own = {**recipe_values(recipe), "recipe": recipe}
    config = RunConfig.from_values({**own, **BASE, **settings})
    found: dict[str, Any] = dataclasses.asdict(step_work(config, "bfloat16"))
    return {**found, "flops": {str(n): flops_share(config, n) for n in MICRO_BATCHES}}


def measure(name: str) -> dict[str, Any]:
    settings, fewer = SHAPES[name]
    row: dict[str, Any] = {"settings": {**BASE, **settings}, "recipes": {}}
    for recipe in RECIPES:
        found = row["recipes"][recipe] = traced(settings, recipe)
        if fewer is not None:
            flat = traced({**settings, "n_layer": fewer}, recipe)
            more = minus(whole(found["next"]), whole(flat["next"]))
            found["layer"] = {key: more[key] / (settings["n_layer"] - fewer) for key in FIGURES}
    row["flops_share"] = row["recipes"]["modern"]["flops"]
    return row


def whole(parts: dict[str, Counts], without: str = "") -> Counts:
    return {key: sum(p[key] for n, p in parts.items() if n != without) for key in FIGURES}


def minus(one: Counts, other: Counts) -> Counts:
    return {key: one[key] - other[key] for key in FIGURES}


def step(found: dict[str, Any], micro_batches: int, without: str = "") -> Counts:
    """All that a step gives the card to do, or but for one part of it."""
    first, more, update = (whole(found[phase], without) for phase in ("first", "next", "update"))
    return {key: first[key] + (micro_batches - 1) * more[key] + update[key] for key in FIGURES}


def ratios(row: dict[str, Any], micro_batches: int, without: str = "") -> Counts:
    one, other = (step(row["recipes"][recipe], micro_batches, without) for recipe in RECIPES)
    return {key: other[key] / one[key] for key in FIGURES}


def section(result: dict[str, Any]) -> list[str]:
    """For docs/performance.md."""
    return [
        "## What a step gives a card to do",
        "",
        f"Counted, not timed: no card ran it. {result['date']}, torch {result['torch']} (bench/card_step.py): the trainer's own step in bf16, traced without data as it is "
        "compiled for a card; kernels, library calls and bytes of Inductor's schedule, and of what runs operation by operation (what is around the slices of "
        "the loss, sums of gradients, clipping, the update) a kernel for each operation. Library calls are matrix products and attention; bytes are what all of these read and write, each "
        "number once in each kernel, as if no cache kept it for the next. Not counted: what a kernel reads again within itself, copies of the batch, evaluation.",
        "",
        *_parts_table(result["shapes"]["small"]),
        *_verdicts(result["shapes"]),
        *_notes(result["shapes"]),
    ]


def _parts_table(row: dict[str, Any]) -> list[str]:
    lines = [
        f"{_shape_words(row)}, the loss in slices:",
        "",
        "| GPT-2's / the modern recipe's | kernels | library calls | GB | kernels | calls | bytes |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    gpt2, modern = (row["recipes"][recipe] for recipe in RECIPES)
    parts = {
        "one layer, forward and back (12 layers less 6, over 6)": (gpt2["layer"], modern["layer"]),
        "micro-batch, all but the loss": tuple(
            whole(found["next"], without="loss") for found in (gpt2, modern)
        ),
        "its loss": (gpt2["next"]["loss"], modern["next"]["loss"]),
        "update": (whole(gpt2["update"]), whole(modern["update"])),
    }
    parts |= {f"step of {n}": (step(gpt2, n), step(modern, n)) for n in MICRO_BATCHES}
    for name, (one, other) in parts.items():
        cells = [f"{one[key]:,.4g} / {other[key]:,.4g}" for key in ("kernels", "calls")]
        if min(one["kernels"], one["calls"]) >= 1000:
            cells = [f"{one[key]:,.0f} / {other[key]:,.0f}" for key in ("kernels", "calls")]
        cells.append(f"{one['moved_bytes'] / 1e9:,.4g} / {other['moved_bytes'] / 1e9:,.4g}")
        cells += [f"{other[key] / one[key]:.2f} ×" if one[key] else "–" for key in FIGURES]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _verdicts(shapes: dict[str, Any]) -> list[str]:
    lines = [
        f"The goal is {MOST} × GPT-2's beyond the extra FLOPs: {MOST} × the share of FLOPs, which is counted as in the table of step costs, Newton–Schulz in the form that a card "
        "takes. The loss in slices is alike in both recipes and would hide a costly layer: the step is therefore judged without it too.",
        "",
        "| step | micro-batches | FLOPs | goal | kernels | library calls | bytes |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    for name, row in shapes.items():
        words = f"{name}: {_shape_words(row)}" if name != "small" else _shape_words(row)
        sliced = row["settings"]["chunked_loss"]
        for n in MICRO_BATCHES:
            for without in ("", "loss") if sliced else ("",):
                share = row["flops_share"][str(n)]
                found = ratios(row, n, without)
                cells = [
                    f"{found[key]:.3f}: {reached(found[key], MOST * share, True)}"
                    for key in FIGURES
                ]
                name_of_step = words + (", without the loss" if without else "")
                lines.append(
                    f"| {name_of_step} | {n} | {share:.3f} | {MOST * share:.3f} × | {' | '.join(cells)} |"
                )
    return [*lines, ""]


def _notes(shapes: dict[str, Any]) -> list[str]:
    one = shapes["small"]["recipes"]
    sliced, kept = (
        whole(shapes[name]["recipes"]["gpt2"]["next"])["moved_bytes"] / 1e9
        for name in ("small", "whole logits")
    )
    update = whole(one["modern"]["update"])
    return [
        f"An update of Muon's is {update['kernels']:.0f} kernels and {update['calls']:.0f} library calls: matrices of one shape are orthogonalised together. It "
        f"moves {update['moved_bytes'] / 1e9:.1f} GB: the products, and an embedding and a head that are updated apart. With one micro-batch that shows, with those of half a million tokens it does not.",
        "",
        f"A micro-batch of GPT-2's moves {sliced:.1f} GB with the loss in slices and {kept:.1f} with whole logits: each slice adds its share to the head's gradient, a pass over the whole table in fp32. "
        "With whole logits GPT-2's recipe, like nanoGPT, hands them out of the compiled model, which gives them a gradient of zeros; the modern recipe does not: without that its bytes would be the larger.",
        "",
    ]


def _shape_words(row: dict[str, Any]) -> str:
    s = row["settings"]
    return f"{s['n_layer']}L/{s['n_head']}H/{s['n_embd']}, micro-batch {s['batch_size']} × {s['block_size']}, vocabulary {s['vocab_size']:,}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=list(SHAPES), action="append")
    args = parser.parse_args()
    import torch

    for name in args.shape or SHAPES:
        row = measure(name)
        earlier = json.loads(FILE.read_text(encoding="utf-8"))["shapes"] if FILE.exists() else {}
        shapes = {known: earlier[known] for known in SHAPES if known in earlier} | {name: row}
        result = {
            "bench": "card_step",
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "shapes": {known: shapes[known] for known in SHAPES if known in shapes},
        }
        FILE.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        for n in MICRO_BATCHES:
            print(name, n, ratios(row, n), f"goal {MOST * row['flops_share'][str(n)]:.3f}")


if __name__ == "__main__":
    main()
