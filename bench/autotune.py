"""`probe --autotune` on CPU configs, beside the config as it is given and beside what `recommend` chooses, as ratios of one run.

    python bench/autotune.py [--limit 90] [--rounds 5] [--write]

Each config is tuned. Then the config as given, the same model and total batch as `recommend --fit` would set them on this
CPU, and the tuned one take turns, and the medians of their steps' ratios are compared, turn by turn. The third config is what `recommend` writes for
this CPU; there the given config is recommend's own. --write keeps the result in bench/results/ for docs/performance.md.
"""

import argparse
import json
import statistics
import sys
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from onecard.advise.savers import fastest, micro_batches  # noqa: E402
from onecard.advise.small_run import small_run  # noqa: E402
from onecard.config import RunConfig  # noqa: E402
from onecard.facts.here import cpu  # noqa: E402

TURN_SECONDS = 1.0  # of counted steps, one at least


def configs() -> dict[str, RunConfig]:
    """nanoGPT's README shape for CPUs, GPT-2's vocabulary on a CPU, and recommend's own for an hour here."""
    common: dict[str, Any] = {"gradient_accumulation_steps": 1, "compile": False, "device": "cpu"}
    shape: dict[str, Any] = {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 128,
        "block_size": 64,
        "batch_size": 12,
    }
    large: dict[str, Any] = {
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "block_size": 256,
        "batch_size": 8,
    }
    return {
        "4 layers of 128, 65 characters": RunConfig(vocab_size=65, **shape, **common),
        "6 layers of 384, GPT-2's vocabulary": RunConfig(vocab_size=50304, **large, **common),
        "what recommend writes for an hour": small_run("cpu", 3600, data=100_000_000).config,
    }


def recommended(config: RunConfig) -> RunConfig:
    found = fastest(config, cpu(), "float32", micro_batches(config, 1))
    assert found is not None
    return found.config.replace()


def compared(config: RunConfig, limit: float, rounds: int) -> dict[str, Any]:
    import torch

    from onecard.model import processor
    from onecard.train.autotune import autotune
    from onecard.train.autotune_choices import measured, measured_rows, words
    from onecard.train.probe import start

    found = autotune(config, limit, asked="cpu")
    candidates = {"given": config, "recommend": recommended(config), "autotune": found.config}
    rows, device = measured_rows(config), torch.device("cpu")
    turns: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, each in candidates.items():
            with processor.as_before():
                processor.prepare(each, device)
                if name not in turns:
                    turns[name] = start(device, measured(each, rows))
                # not counted: threads that were moved or started for this turn settle
                settling = turns[name].steps(1)[0]
                count = max(1, round(TURN_SECONDS / settling))
                seconds[name].append(statistics.median(turns[name].steps(count)))
    median = {name: statistics.median(taken) for name, taken in seconds.items()}

    def gained(other: str) -> float:
        """Turn by turn: what else the machine does then slows both."""
        pairs = zip(seconds[other], seconds["autotune"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    tried = [
        {"changes": words(t.changes), "seconds": t.seconds, "against": t.against, "note": t.note}
        for t in found.trials
    ]
    return {
        "seconds": median,
        "against_given": gained("given"),
        "against_recommend": gained("recommend"),
        "autotune": words(found.changes),
        "recommend": words(candidates["recommend"].changed(since=config)),
        "searched_seconds": found.spent_seconds,
        "tried": tried,
    }


def section(result: dict[str, Any]) -> list[str]:
    """For docs/performance.md."""
    lines = [
        "## The fastest settings, measured",
        "",
        f"`python bench/autotune.py --write`, {result['date']}, {result['cores']} cores, torch {result['torch']}: "
        f"`probe --autotune` with {result['limit_seconds']:.0f} s for each config, then by turns, medians. Above 1: autotune's is faster; where both are the same config, the figure is the noise.",
        "",
        "| config | × as given | × recommend's | autotune | recommend |",
        "|---|---:|---:|---|---|",
    ]
    for name, row in result["configs"].items():
        lines.append(
            f"| {name} | {row['against_given']:.2f} | {row['against_recommend']:.2f} "
            f"| {row['autotune']} | {row['recommend']} |"
        )
    return [*lines, ""]


def main() -> int:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of each search")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="configs whose name contains this")
    parser.add_argument("--write", action="store_true", help="into bench/results/")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "date": date.today().isoformat(),
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "limit_seconds": args.limit,
        "configs": {
            name: compared(config, args.limit, args.rounds)
            for name, config in configs().items()
            if not args.only or args.only in name
        },
    }
    print("\n".join(section(result)))
    if args.write:
        path = ROOT / "bench" / "results" / f"autotune-{result['date']}.json"
        if path.exists():  # configs measured earlier that day
            result["configs"] = json.loads(path.read_text())["configs"] | result["configs"]
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
