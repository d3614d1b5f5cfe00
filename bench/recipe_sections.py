"""What docs/performance.md says of long runs, and of the modern recipe's rates and batches."""

from collections.abc import Mapping
from typing import Any

from bench.plots import reached
from bench.soak_rules import MOST_GROWTH, growth
from onecard.planner.loss_settings import loss_fit


def soak(memory: dict[str, Any] | None, million: dict[str, Any] | None) -> list[str]:
    if memory is None and million is None:
        return []
    lines = ["## Long runs", ""]
    if memory is not None:
        held = memory["resident_bytes"]
        took = f" in {duration(memory['seconds'])}" if "seconds" in memory else ""
        lines.append(
            f"A tiny model for {memory['steps']:,} steps{took} ({memory['date']}, bench/soak.py memory): {held[0][1] / 1e6:.0f} MB resident at "
            f"the first reading, before the run begins, {held[-1][1] / 1e6:.0f} at the last one kept; {growth_words(memory)}. The log is "
            f"{'whole' if memory['log_whole'] else '**not whole**'}; {memory['checkpoints']} checkpoints are kept, the best and the newest two."
        )
    if million is not None:
        lines += [
            "",
            f"Resumed at step {million['at']:,} with a log of {million['log_bytes'] / 1e6:.0f} MB, a line for each step ({million['date']}, "
            f"bench/soak.py million). The run has not lived through those steps: bench/soak.py wrote the log and set the step of a checkpoint "
            f"of a short run. A step takes {million['late_step_seconds'] * 1e3:.2f} ms, against "
            f"{million['early_step_seconds'] * 1e3:.2f} at the beginning: {million['ratio']:.2f} × (goal 1.1 ×: "
            f"{reached(million['ratio'], 1.1, True)}); {million['seconds_to_first_step']:.1f} s from the command to the first step.",
        ]
    return [*lines, ""]


def growth_words(memory: dict[str, Any]) -> str:
    """Results before 19 November 2026 kept some readings and not the last one, which their growth is computed with."""
    kept = growth(memory["resident_bytes"], memory["steps"])
    verdict = f"(goal {MOST_GROWTH:.0%}: {reached(memory['growth'], MOST_GROWTH, True)})"
    if round(kept, 4) == round(memory["growth"], 4):
        return f"after the first fifth it grew by {kept:.2%} {verdict}"
    return (
        f"after the first fifth it grew by {kept:.2%} by the readings that were kept, and by {memory['growth']:.1%} to the last one, "
        f"which was not kept {verdict}"
    )


def duration(seconds: float) -> str:
    """
    >>> duration(100), duration(4000)
    ('1.7 minutes', '1.1 hours')
    """
    return f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds / 60:.1f} minutes"


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
    best = {size: lowest_point(row) for size, row in losses.items()}
    for size, row in losses.items():
        cells = " | ".join(f"{row[rate]:.4f}" if rate in row else "–" for rate in rates)
        lines.append(f"| {size} | {cells} | {best[size]:.3f} |")
    shape, _, length = next(iter(losses)).partition(", ")  # the one that the others differ from
    sized = [rate for name, rate in best.items() if name.endswith(f", {length}")]
    spread = max(sized) / min(sized)
    long = {name.partition(", ")[2]: best[name] for name in best if name.startswith(f"{shape}, ")}
    highest, lowest = (each(long, key=long.__getitem__) for each in (max, min))
    return [
        *lines,
        "",
        f"Over four widths and three depths the best rate moves by a factor of {spread:.2f} (goal 2: {reached(spread, 2, True)}). Over "
        f"lengths, which the goal does not cover, it moves by {long[highest] / long[lowest]:.1f} ×: {long[highest]:.3f} at {highest}, "
        f"{long[lowest]:.3f} at {lowest}. So the recipe's one rate is not the best one at every length.",
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
    untuned = []
    for tokens, row in losses.items():
        lowest = {batch: min((loss, rate) for rate, loss in row[batch].items()) for batch in row}
        cells = [
            f"{lowest[size][0]:.4f} ({lowest[size][1]:g})" if size in lowest else "–"
            for size in sizes
        ]
        by_batch = {float(batch): loss for batch, (loss, _) in lowest.items()}
        best, (batch_word, steps_word) = 64 * lowest_point(by_batch), edge_words(by_batch)
        lines.append(
            f"| {tokens:,} | {' | '.join(cells)} | {batch_word}{best:,.0f} | {steps_word}{tokens / best:,.0f} |"
        )
        highest = max(rate for found in row.values() for rate in found)
        if all(rate == highest for _, rate in lowest.values()):
            untuned.append(
                f"At {tokens:,} tokens every batch has its best loss at the highest rate tried, {highest:g}: the large batches may be "
                "undertuned there, and look worse than they are."
            )
    settings = loss_fit()["settings"]
    public = [settings["batch"] * (tokens / 1e10) ** settings["batch_tokens"] for tokens in losses]
    return [
        *lines,
        "",
        *untuned,
        "A best batch at the edge of those that were run is a bound: at most, or at least, so many tokens.",
        "",
        f"The far end is public for AdamW alone: the best batch of the sweep of AdamW's runs that the expected loss is fitted on (docs/accuracy.md) is {settings['batch']:,.0f} tokens for 10 B and grows "
        f"with the tokens' power of {settings['batch_tokens']:.2f}, which says {', '.join(f'{batch:,.0f}' for batch in public)} tokens for the lengths here. `recommend` halves a batch while the run would have fewer than 1,000 steps, "
        "and with AdamW while its expected loss falls by it, down to 65,536 tokens. For Muon no public rule says how the best batch grows with the tokens.",
        "",
    ]


def lowest_point(losses: Mapping[float, float]) -> float:
    """Where a loss over rates, or batches, is lowest: of the parabola through the best one and its neighbours, over the
    logarithm; at an edge the edge itself.

    >>> round(lowest_point({0.01: 2.0, 0.02: 1.5, 0.04: 1.5, 0.08: 2.0}), 4)
    0.0283
    """
    tried = sorted(losses)
    at = tried.index(min(losses, key=losses.__getitem__))
    if at in (0, len(tried) - 1):
        return tried[at]
    left, middle, right = (losses[each] for each in tried[at - 1 : at + 2])
    shift = (left - right) / (2 * (left - 2 * middle + right))
    return float(tried[at] * (tried[at + 1] / tried[at]) ** shift)


def edge_words(losses: Mapping[float, float]) -> tuple[str, str]:
    """Before a best batch that is the smallest or largest tried, and before the number of its steps.

    >>> edge_words({2: 1.8, 4: 1.9}), edge_words({2: 1.9, 4: 1.8, 8: 1.9})
    (('at most ', 'at least '), ('', ''))
    """
    best = min(losses, key=losses.__getitem__)
    if best == min(losses):
        return "at most ", "at least "
    return ("at least ", "at most ") if best == max(losses) else ("", "")
