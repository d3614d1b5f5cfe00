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
        f"text, {shape['n_layer']} layers of {shape['n_embd']}, three seeds (bench/saver_loss.py); the difference to the same "
        "run without savers, seed by seed, with its standard deviation. Products are computed in fp32 from what is kept, so "
        "that a difference is the savers' own. `chunked_loss`, `recompute`, `compile_unit` and `offload_activations` change "
        f"no result. Goal: all together within {GOAL}. No card and no large model was measured.",
        "",
        "| text | optimizer | savers | loss | against none |",
        "|---|---|---|---|---|",
    ]
    missing = 0
    for text, by_optimizer in result["losses"].items():
        for optimizer, by_saver in by_optimizer.items():
            plain = by_saver["none"]
            for name, losses in by_saver.items():
                if len(losses) < len(plain):
                    missing += 1
                    continue
                loss = f"{statistics.mean(losses):.4f}"
                shown = "–" if name == "none" else difference(losses, plain)
                lines.append(f"| {text} | {optimizer} | {name} | {loss} | {shown} |")
    if missing:
        lines += ["", f"{missing} rows were not measured to the end and are left out."]
    return [*lines, "", *verdict_on_savers(result["losses"]), ""]


def difference(losses: list[float], plain: list[float]) -> str:
    more = [loss - base for loss, base in zip(losses, plain, strict=False)]
    spread = f" ± {statistics.stdev(more):.4f}" if len(more) > 1 else f" ({len(more)} seed)"
    return f"{statistics.mean(more):+.4f}{spread}"


def verdict_on_savers(losses: dict[str, dict[str, dict[str, list[float]]]]) -> list[str]:
    """All savers together, over both texts, against the goal."""
    lines = []
    for optimizer in ("adamw", "muon"):
        for bits in ("8bit", "4bit"):
            name = f"weights and gradients bfloat16, optimizer_state {bits}"
            more = [
                loss - base
                for by_optimizer in losses.values()
                if optimizer in by_optimizer
                for loss, base in zip(
                    by_optimizer[optimizer].get(name, []),
                    by_optimizer[optimizer]["none"],
                    strict=False,
                )
            ]
            if more:
                mean = statistics.mean(more)
                error = statistics.stdev(more) / len(more) ** 0.5
                verdict = "reached" if mean <= GOAL else "**not reached**"
                lines.append(
                    f"- All together with {optimizer} and moments in {bits[0]} bits: {mean:+.4f} ± {error:.4f} (standard error) "
                    f"over {len(more)} pairs of runs, {verdict}."
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
        "The same model shared out over 8 cards (`shard`), one card's step traced alone, not compiled (tests/torch/shard_oracle.py); "
        "bytes of one card over the parameters of the whole model:",
        "",
        "| optimizer, way and savers | traced | predicted | off by |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        off = f"{row['predicted'] / row['traced'] - 1:+.1%}"
        lines.append(f"| {name} | {row['traced']:.2f} | {row['predicted']:.2f} | {off} |")
    return [*lines, ""]
