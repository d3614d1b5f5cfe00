"""docs/performance.md and its plots, from the newest stored result of each benchmark; and fit/data/own_comparisons.csv.

python bench/performance.py          writes them;  --check only says whether they are up to date
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench import autotune, card_step, recipe_sections, step_cost_section, waiting  # noqa: E402
from bench.lengths_section import lengths  # noqa: E402
from bench.lengths_verdict import write_comparisons  # noqa: E402
from bench.plots import plot, reached  # noqa: E402
from bench.saver_sections import saver_loss_section, saver_memory_section  # noqa: E402
from bench.ui_section import ui_section  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"
RESULTS = Path(__file__).parent / "results"
COMPARISONS = ROOT / "fit" / "data" / "own_comparisons.csv"


def stored(name: str) -> list[dict[str, Any]]:
    """All results of a benchmark, the oldest first."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}-[0-9]*.json"))]


def newest(name: str) -> dict[str, Any] | None:
    return next(reversed(stored(name)), None)


def machine_line(result: dict[str, Any]) -> str:
    m = result["machine"]
    return (
        f"{result['date']}, {m['processor']}, {m['threads']} threads, {m['instructions']}, torch {m['torch']}; "
        f"its own fp32 matmul: {m['matmul_flops'] / 1e9:.0f} GFLOPS."
    )


def speed_section(result: dict[str, Any]) -> list[str]:
    lines = ["## The same model, step for step", "", machine_line(result), ""]
    lines += [
        "| shape | nanoGPT eager | compiled | onecard eager | compiled | speed | goal | matmul rate | memory |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for name, r in result["shapes"].items():
        s, shape = r["step_seconds"], r["shape"]
        cells = [
            f"{s[f'{who} {mode}'] * 1e3:.1f} ms"
            for who in ("nanogpt", "onecard")
            for mode in ("eager", "compiled")
        ]
        words = f"{name}: {shape['n_layer']}L/{shape['n_head']}H/{shape['n_embd']}, {shape['batch_size']} × {shape['block_size']}"
        lines.append(
            f"| {words}, vocabulary {shape['vocab_size']:,} | {' | '.join(cells)} | {r['speed']:.2f} × | "
            f"{r['goal']['speed']} ×: {reached(r['speed'], r['goal']['speed'])} | {r['matmul_share']:.0%} | {r['memory']:.2f} × |"
        )
    lines.append("")
    for name, r in result["shapes"].items():
        lines += wall(name, r)
    return lines


def wall(name: str, r: dict[str, Any]) -> list[str]:
    """Where onecard's step goes, the goals beside speed, and what the step could be if all but its matmuls were free."""
    step, alone = r["step_seconds"][r["onecard"]], r["matmuls_alone"]
    spent = ", ".join(
        f"{kind} {seconds * 1e3:.1f}"
        for kind, seconds in r["profile"].items()
        if seconds > 0.01 * step
    )
    between = step - sum(r["profile"].values())  # threads that wait for each other, Python
    lines = [
        f"**Shape {name}**, {r['onecard']}, one step of {step * 1e3:.1f} ms: {spent}, between these {between * 1e3:.1f} ms."
    ]
    lines[0] += (
        f" Its matrix products by themselves take {alone * 1e3:.1f} ms: were everything else free, the step would be "
        f"{r['step_seconds'][r['nanogpt']] / alone:.2f} × as fast as nanoGPT's, at {r['matmul_share'] * step / alone:.0%} of the "
        "rate of a large square product."
    )
    for key, words, at_most in (
        ("matmul_share", "of the matmul rate", False),
        ("memory", "of its memory", True),
    ):
        if key in r["goal"]:
            word = "at most" if at_most else "at least"
            verdict = reached(r[key], r["goal"][key], at_most)
            lines[0] += f" Goal: {word} {r['goal'][key]:.0%} {words}; here {r[key]:.0%}, {verdict}."
    lines[0] += (
        f" Memory is what torch's allocator had handed out at most; resident, with torch itself ({r['peak_bytes'][r['onecard']] / 1e6:,.0f} "
        f"against {r['peak_bytes'][r['nanogpt']] / 1e6:,.0f} MB), it is {r['memory_resident']:.2f} ×."
    )
    return [*lines, ""]


def recipe_section(name: str, result: dict[str, Any]) -> list[str]:
    for key, label in (("tokens", "tokens"), ("seconds", "seconds of training")):
        (IMAGES / f"recipe-{name}-{key}.svg").write_text(plot(result, key, label), encoding="utf-8")
    goal = result["goal"]
    lines = [f"## The modern recipe on {name}", "", machine_line(result), ""]
    lines += [
        f"nanoGPT ends at {result['target']:.4f} after {result['nanogpt'][-1]['tokens']:,} tokens."
    ]
    if result["reached"]:
        lines += [
            f"The modern recipe is there ({result['reached']['loss']:.4f}) after {result['reached']['tokens']:,}: "
            f"{result['tokens']:.3f} of the tokens (goal {goal['tokens']}: {reached(result['tokens'], goal['tokens'], True)}), "
            f"{result['time']:.3f} of the time"
            + (
                f" (goal {goal['time']}: {reached(result['time'], goal['time'], True)})."
                if "time" in goal
                else "."
            )
        ]
    else:
        lines += [
            f"The modern recipe ended at {result['modern'][-1]['loss']:.4f} without reaching it."
        ]
    lines += [
        "",
        *(
            f"![loss against {key}](images/recipe-{name}-{key}.svg)"
            for key in ("tokens", "seconds")
        ),
        "",
    ]
    return lines


def sample_section(result: dict[str, Any]) -> list[str]:
    rates = result["tokens_per_second"]
    same = "the same tokens" if result["same_tokens"] else "**not the same tokens**"
    return [
        "## Sampling",
        "",
        machine_line(result),
        "",
        f"GPT-2 small's shape, {result['new_tokens']:,} new tokens: nanoGPT {rates['nanogpt']:.2f} tokens/s, onecard "
        f"{rates['onecard']:.1f}: {result['speed']:.1f} × (goal 10 ×: {reached(result['speed'], 10)}), {same} under greedy decoding.",
        "",
    ]


def evaluation_section(result: dict[str, Any]) -> list[str]:
    theirs = min(min(seconds) for seconds in result["lm_eval_seconds_by_batch"].values())
    ours = min(result["onecard_seconds"])
    same = "the same" if result["same_answers"] else "**not the same**"
    sizes = ", ".join(result["lm_eval_seconds_by_batch"])
    return [
        "## Evaluation",
        "",
        f"{result['date']}, {result['note']} (bench/evaluation.py).",
        "",
        f"GPT-2 small's shape with random weights, {result['items']} items of HellaSwag: lm-evaluation-harness's Hugging Face back end "
        f"{theirs:.1f} s at the best of batch sizes {sizes}, onecard {ours:.1f} s: {result['ratio_to_best']:.1f} × "
        f"(goal 2 ×: {reached(result['ratio_to_best'], 2)}), {result['cpu_ratio_to_best']:.1f} × in CPU time; accuracies are {same}.",
        "",
    ]


def page() -> str:
    IMAGES.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Performance beside nanoGPT",
        "",
        "Generated by `python bench/performance.py` from `bench/results/`; do not edit.",
        "",
    ]
    lines += [
        "The two programs took turns on the same machine (on the prose one after the other). Why: docs/LOG.md.",
        "",
    ]
    for name, section in (("speed", speed_section), ("sample", sample_section)):
        result = newest(name)
        lines += section(result) if result else []
    for name in ("characters", "prose"):
        result = newest(f"recipe-{name}")
        lines += recipe_section(name, result) if result else []
    costs = step_cost_section.step_costs(stored("step_cost"))
    lines += step_cost_section.section(costs) if costs else []
    if card_step.FILE.exists():
        lines += card_step.section(json.loads(card_step.FILE.read_text(encoding="utf-8")))
    kept = RESULTS / "lengths.json"
    if kept.exists():
        lines += lengths(list(json.loads(kept.read_text()).values()), costs, IMAGES)
    soaked = {part: newest(f"soak-{part}") for part in ("memory", "million")}
    lines += recipe_sections.soak(**soaked)
    for name, section in (
        ("transfer", recipe_sections.transfer),
        ("batches", recipe_sections.batches),
        ("ablation", ablation_section),
        ("evaluation", evaluation_section),
        ("autotune", autotune.section),
        ("waiting", waiting.section),
        ("low_bit", low_bit_section),
        ("saver_loss", saver_loss_section),
        ("saver_memory", saver_memory_section),
        ("ui", ui_section),
    ):
        result = newest(name)
        lines += section(result) if result else []
    return "\n".join(lines)


def ablation_section(result: dict[str, Any]) -> list[str]:
    pieces = result["pieces"]
    base = next(iter(pieces.values()))["mean"]
    return [
        "## What each piece is worth",
        "",
        machine_line(result),
        "",
        f"Validation loss after {result['tokens']:,} characters, three seeds; the difference is to the recipe.",
        "",
        "| variant | loss | difference |",
        "|---|---|---|",
        *(
            f"| {name} | {row['mean']:.4f} | {row['mean'] - base:+.4f} |"
            for name, row in pieces.items()
        ),
        "",
    ]


def low_bit_table(found: dict[str, dict[str, list[float]]]) -> str:
    lines = ["| optimizer | moments | loss | against float32 |", "|---|---|---|---|"]
    for optimizer, by_state in found.items():
        plain = by_state["float32"]
        for state, losses in by_state.items():
            more = [loss - base for loss, base in zip(losses, plain, strict=True)]
            cost = f"{statistics.mean(more):+.4f} ± {statistics.stdev(more):.4f}"
            shown = cost if state != "float32" else "–"
            lines.append(f"| {optimizer} | {state} | {statistics.mean(losses):.4f} | {shown} |")
    return "\n".join(lines)


def low_bit_section(result: dict[str, Any]) -> list[str]:
    return [
        "## Moments in 8 and 4 bits",
        "",
        f"`optimizer_state` against full precision: validation loss after {result['steps']} steps on the bytes of "
        f"{result['text']}, 3 layers of 128, three seeds (bench/low_bit.py); the difference seed by seed, with its "
        "standard deviation. What is not in the table was not measured; no card and no large model was.",
        "",
        low_bit_table(result["losses"]),
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = page()
    if args.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    runs = json.loads((RESULTS / "lengths.json").read_text()).values()
    write_comparisons(runs, COMPARISONS)
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
