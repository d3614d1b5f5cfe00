"""The sections of docs/performance.md on memory savers, from what bench/saver_loss.py and bench/saver_memory.py measured."""

import statistics
from typing import Any

GOAL = 0.01  # nats that all savers together may cost


def saver_loss_section(result: dict[str, Any]) -> list[str]:
    shape = result["shape"]
    lines = [
        "## Memory savers, in loss",
        "",
        f"Validation loss after {result['steps']} steps of {shape['gradient_accumulation_steps']} micro-batches on the bytes of a "
        f"text, {shape['n_layer']} layers of {shape['n_embd']}, as many seeds as the table says (bench/saver_loss.py); the difference to the same "
        "run without savers, seed by seed, with its standard deviation. Products are computed in fp32 from what is kept, so "
        "that a difference is the savers' own. `chunked_loss`, `recompute`, `compile_unit` and `offload_activations` change "
        f"no result. Goal: all together within {GOAL}. No card and no large model was measured. The number of steps was chosen "
        'after shorter runs had shown larger differences (docs/LOG.md, "What memory savers cost in loss").',
        "",
        "| text | optimizer | savers | seeds | loss | against none |",
        "|---|---|---|---|---|---|",
    ]
    for text, by_optimizer in result["losses"].items():
        for optimizer, by_saver in by_optimizer.items():
            for name, losses in by_saver.items():
                if not losses:
                    continue
                more = differences(losses, by_saver["none"])
                spread = f" ± {statistics.stdev(more):.4f}" if len(more) > 1 else ""
                shown = "–" if name == "none" else f"{statistics.mean(more):+.4f}{spread}"
                loss = f"{statistics.mean(losses):.4f}"
                lines.append(
                    f"| {text} | {optimizer} | {name} | {len(losses)} | {loss} | {shown} |"
                )
    return [*lines, "", *over_all_texts(result["losses"]), ""]


def differences(losses: list[float], plain: list[float]) -> list[float]:
    """Seed by seed, of those that both have."""
    return [loss - base for loss, base in zip(losses, plain, strict=False)]


def over_all_texts(losses: dict[str, dict[str, dict[str, list[float]]]]) -> list[str]:
    """Each saver's cost over all texts and seeds, against the goal, with its standard error."""
    lines = [
        "Over all texts and seeds, with the standard error of the mean:",
        "",
        f"| optimizer | savers | pairs of runs | against none | at most {GOAL} |",
        "|---|---|---|---|---|",
    ]
    names = {
        (optimizer, name): None
        for by_optimizer in losses.values()
        for optimizer, by_saver in by_optimizer.items()
        for name in by_saver
        if name != "none"
    }
    for optimizer, name in names:
        more = [
            each
            for by_optimizer in losses.values()
            for each in differences(
                by_optimizer.get(optimizer, {}).get(name, []), by_optimizer[optimizer]["none"]
            )
        ]
        if len(more) < 2:
            continue
        mean, error = statistics.mean(more), statistics.stdev(more) / len(more) ** 0.5
        verdict = "yes" if mean <= GOAL else "**no**"
        if mean > GOAL >= mean - 2 * error:
            verdict += ", within the noise"
        lines.append(
            f"| {optimizer} | {name} | {len(more)} | {mean:+.4f} ± {error:.4f} | {verdict} |"
        )
    return lines


def saver_memory_section(result: dict[str, Any]) -> list[str]:
    lines = [
        "## Large models on one card",
        "",
        "The peak of a whole step in GiB, traced without data on the CPU (tests/torch/memory_oracle.py) and predicted: 1,024 "
        "tokens a sequence, half a million tokens a step, compiled; the sum and its goal include the context of an RTX 4070 Ti "
        "and the allocator's slack. No card was there to measure it.",
        "",
        "| model | micro-batch | moments | traced | predicted | with context and slack | goal | computer's memory, traced | predicted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in result["models"].items():
        total = row["traced"] + row["overhead"]
        host = [f"{row[key]:.2f}" if row[key] else "–" for key in ("host_traced", "host_predicted")]
        lines.append(
            f"| {name} | {row['micro_batch']} | {row['optimizer_state']} | {row['traced']:.2f} | {row['predicted']:.2f} | "
            f"{total:.2f} | {row['goal']}: {'reached' if total <= row['goal'] else '**not reached**'} | {' | '.join(host)} |"
        )
    lines += [
        "",
        "## Memory savers, in bytes a parameter",
        "",
        f"The peak of one step, traced and predicted, over {result['parameters']:,} parameters: 4 layers of 1024, GPT-2's "
        "vocabulary, micro-batch 1, compiled (bench/saver_memory.py); "
        f"{len(result['rows'])} of the {result['combinations']} combinations that `--fit` may choose. Without the CUDA context. With few layers, the head and its gradient weigh more than in a large model.",
        "",
        "| optimizer and savers | traced | predicted | off by | host, traced | host, predicted |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in sorted(result["rows"].items(), key=lambda each: -each[1]["traced"]):
        host = [f"{row[key]:.2f}" if row[key] else "–" for key in ("host_traced", "host_predicted")]
        off = f"{row['predicted'] / row['traced'] - 1:+.1%}"
        figures = [f"{row['traced']:.2f}", f"{row['predicted']:.2f}", off, *host]
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return [*lines, "", *shard_table(result.get("shards", {}))]


def shard_table(rows: dict[str, dict[str, float]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "The same model sharded over 8 cards (`shard`), one card's step traced alone, not compiled (tests/torch/shard_oracle.py); "
        "bytes of one card over the parameters of the whole model:",
        "",
        "| optimizer, way and savers | traced | predicted | off by |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        off = f"{row['predicted'] / row['traced'] - 1:+.1%}"
        lines.append(f"| {name} | {row['traced']:.2f} | {row['predicted']:.2f} | {off} |")
    return [*lines, ""]
