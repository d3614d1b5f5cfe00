"""What docs/performance.md says of the modern recipe's step, of long runs, and of rates and batches."""

from collections.abc import Mapping
from typing import Any

from bench.plots import reached


def step_cost(result: dict[str, Any]) -> list[str]:
    lines = [
        "## A step of the modern recipe beside one of GPT-2's",
        "",
        f"{result['date']}, {result['machine']['processor']}, {result['machine']['threads']} threads, by turns, medians (bench/step_cost.py). The goal is 1.1 × the "
        "share of FLOPs: matrix products as they are done, Newton–Schulz included; norms, rotation, soft cap and softmax "
        "count nothing. In brackets by the CPU's time, the steadier figure on a machine that others use.",
        "",
        "| shape | FLOPs, modern over GPT-2's | goal | eager | compiled |",
        "|---|---|---|---|---|",
    ]
    for name, row in result["shapes"].items():
        shape = row["shape"]
        words = (
            f"{shape['n_layer']}L/{shape['n_embd']}, {shape['batch_size']} × {shape['block_size']}"
        )
        words = f"{name}: {words}, vocabulary {shape['vocab_size']:,}"
        cells = [
            f"{row[mode]['ratio']:.2f} × ({row[mode]['cpu_ratio']:.2f}): {reached(row[mode]['ratio'], row['goal'], True)}"
            if mode in row
            else "not measured"
            for mode in ("eager", "compiled")
        ]
        lines.append(
            f"| {words} | {row['flops_share']:.2f} | {row['goal']:.2f} × | {' | '.join(cells)} |"
        )
    return [*lines, ""]


def soak(memory: dict[str, Any] | None, million: dict[str, Any] | None) -> list[str]:
    if memory is None and million is None:
        return []
    lines = ["## Long runs", ""]
    if memory is not None:
        held = memory["resident_bytes"]
        lines.append(
            f"A tiny model for {memory['steps']:,} steps ({memory['date']}, bench/soak.py memory): {held[0][1] / 1e6:.0f} MB resident at "
            f"the first reading, {held[-1][1] / 1e6:.0f} at the last; after the first fifth it grew by {memory['growth']:.1%} "
            f"(goal 2 %: {reached(memory['growth'], 0.02, True)}). The log is {'whole' if memory['log_whole'] else '**not whole**'}; "
            f"{memory['checkpoints']} checkpoints are kept, the best and the newest two."
        )
    if million is not None:
        lines += [
            "",
            f"Resumed at step {million['at']:,} with a log of {million['log_bytes'] / 1e6:.0f} MB, a line for each step ({million['date']}, "
            f"bench/soak.py million): a step takes {million['late_step_seconds'] * 1e3:.2f} ms, against "
            f"{million['early_step_seconds'] * 1e3:.2f} at the beginning: {million['ratio']:.2f} × (goal 1.1 ×: "
            f"{reached(million['ratio'], 1.1, True)}); {million['seconds_to_first_step']:.1f} s from the command to the first step.",
        ]
    return [*lines, ""]


def transfer(result: dict[str, Any]) -> list[str]:
    """Does one learning rate serve every width, depth and length?"""
    losses: dict[str, dict[float, float]] = {}
    for name, found in result["pieces"].items():
        size, _, rate = name.rpartition(", rate ")
        losses.setdefault(size, {})[float(rate)] = found["mean"]
    rates = sorted({rate for row in losses.values() for rate in row})
    seeds = len(next(iter(result["pieces"].values()))["losses"])
    lines = [
        "## One learning rate for every size",
        "",
        f"{result['date']}, characters, batch 8 × 64, seeds: {seeds} (bench/ablation.py --transfer). The best rate is read off the parabola "
        "through the lowest loss and its neighbours, over the logarithm of the rate.",
        "",
        f"| size and length | {' | '.join(f'{rate:g}' for rate in rates)} | best rate |",
        f"|---|{'---|' * len(rates)}---|",
    ]
    best = {size: best_rate(row) for size, row in losses.items()}
    for size, row in losses.items():
        cells = " | ".join(f"{row[rate]:.4f}" if rate in row else "–" for rate in rates)
        lines.append(f"| {size} | {cells} | {best[size]:.3f} |")
    length = next(iter(losses)).partition(", ")[2]
    sized = [rate for size, rate in best.items() if size.endswith(length)]
    spread = max(sized) / min(sized)
    return [
        *lines,
        "",
        f"Over four widths and three depths the best rate moves by a factor of {spread:.2f} (goal 2: {reached(spread, 2, True)}).",
        "",
    ]


def batches(result: dict[str, Any]) -> list[str]:
    """How many tokens a step should have, by the tokens of the run."""
    losses: dict[int, dict[int, dict[float, float]]] = {}
    for name, found in result["pieces"].items():
        tokens, batch, rate = (word.split()[-1] for word in name.replace(" tokens", "").split(", "))
        losses.setdefault(int(tokens), {}).setdefault(int(batch), {})[float(rate)] = found["mean"]
    sizes = sorted({batch for row in losses.values() for batch in row})
    lines = [
        "## How many tokens a step",
        "",
        f"{result['date']}, characters, 4L/128, rows of 64, one seed (bench/ablation.py --batches). The loss at the best of the rates 0.01, 0.02 and 0.04 "
        "(in brackets) that were run for each batch, two of them at least but for 2,048 tokens a step at the second length; the best batch is read off as the best rate is above.",
        "",
        f"| tokens | {' | '.join(f'{64 * size:,} a step' for size in sizes)} | best | its steps |",
        f"|---|{'---|' * len(sizes)}---|---|",
    ]
    for tokens, row in losses.items():
        lowest = {batch: min((loss, rate) for rate, loss in row[batch].items()) for batch in row}
        cells = [
            f"{lowest[size][0]:.4f} ({lowest[size][1]:g})" if size in lowest else "–"
            for size in sizes
        ]
        best = 64 * best_rate({batch: loss for batch, (loss, _) in lowest.items()})
        lines.append(f"| {tokens:,} | {' | '.join(cells)} | {best:,.0f} | {tokens / best:,.0f} |")
    return [
        *lines,
        "",
        "The far end is public: the best batch of the sweep of AdamW's runs that the expected loss is fitted on (docs/accuracy.md) is 273,000 tokens for 10 B and grows "
        "with the tokens' power of 0.57, which says 220, 480 and 1,060 tokens for the three lengths here. `recommend` halves a batch while the run would have fewer than 1,000 steps, "
        "and with AdamW while its expected loss falls by it, down to 65,536 tokens.",
        "",
    ]


def best_rate(losses: Mapping[float, float]) -> float:
    """The lowest point of the parabola through the best rate and its neighbours; at an edge the edge itself.

    >>> round(best_rate({0.01: 2.0, 0.02: 1.5, 0.04: 1.5, 0.08: 2.0}), 4)
    0.0283
    """
    rates = sorted(losses)
    at = rates.index(min(losses, key=losses.__getitem__))
    if at in (0, len(rates) - 1):
        return rates[at]
    left, middle, right = (losses[rate] for rate in rates[at - 1 : at + 2])
    shift = (left - right) / (2 * (left - 2 * middle + right))
    return float(rates[at] * (rates[at + 1] / rates[at]) ** shift)
