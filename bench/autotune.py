"""`probe --autotune` on two CPU configs, beside the defaults and beside what `recommend` would set, as ratios of one run.

    python bench/autotune.py [--json] [--limit 40]

Each config is tuned; then the config as given, the memory savers and micro-batch that `recommend` chooses for this CPU, and the
tuned one take turns, and the quickest of their steps are compared.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from onecard.advise.savers import fastest, micro_batches  # noqa: E402
from onecard.config import RunConfig  # noqa: E402
from onecard.facts.here import cpu  # noqa: E402

CONFIGS = {
    "4 layers of 256, GPT-2's vocabulary": RunConfig(
        n_layer=4,
        n_head=4,
        n_embd=256,
        block_size=128,
        batch_size=8,
        gradient_accumulation_steps=4,
        vocab_size=50304,
        compile=False,
        device="cpu",
    ),
    "6 layers of 128, characters": RunConfig(
        n_layer=6,
        n_head=4,
        n_embd=128,
        block_size=64,
        batch_size=2,
        gradient_accumulation_steps=32,
        vocab_size=65,
        compile=False,
        device="cpu",
    ),
}


def compared(config: RunConfig, limit: float) -> dict[str, object]:
    import torch

    from onecard.train.autotune import autotune, measured, measured_rows
    from onecard.train.probe import start

    found = autotune(config, limit)
    chosen = fastest(config, cpu(), "float32", micro_batches(config, 1))
    assert chosen is not None
    candidates = {"as given": config, "recommend": chosen.config, "autotune": found.config}
    rows, device = measured_rows(config), torch.device("cpu")
    turns = {}
    for name, each in candidates.items():
        turn = start(device, measured(each, rows))
        assert turn is not None
        turn.steps(1)
        turns[name] = turn
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(4):
        for name, turn in turns.items():
            seconds[name] += turn.steps(2)
    best = {name: min(taken) for name, taken in seconds.items()}
    return {
        "seconds": best,
        "against_given": best["as given"] / best["autotune"],
        "against_recommend": best["recommend"] / best["autotune"],
        "autotune": {k: str(v) for k, v in found.changes.items()},
        "recommend": {k: str(v) for k, v in vars(chosen.config).items() if v != getattr(config, k)},
        "searched_seconds": found.spent_seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--limit", type=float, default=40.0, help="seconds of each search")
    args = parser.parse_args()
    answers = {name: compared(config, args.limit) for name, config in CONFIGS.items()}
    if args.json:
        print(json.dumps(answers, indent=1))
        return 0
    for name, each in answers.items():
        print(
            f"{name}: {each['against_given']:.2f} × the config, {each['against_recommend']:.2f} × recommend's"
        )
        print(f"  autotune {each['autotune']}; recommend {each['recommend']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
