"""The table of docs/assistant.md: what pre-training for 20 hours and tuning take on cards of 8, 12 and 24 GB.

python bench/tune_guide.py

Everything is the planner's: no card was there. Tuning is on 10,000 conversations of 300 tokens, 5 % held out, windows of
1,024 filled to 95 %, 10 % of them base text, three passes.
"""

from onecard.advise.budget import Budget
from onecard.advise.recommend import recommend
from onecard.facts.gpus import find_gpu
from onecard.planner import plan
from onecard.planner.result import RunPlan
from onecard.units import HOUR

CARDS = ("RTX 4060", "RTX 4070", "RTX 4090")
WINDOWS = round(10_000 * 0.95 * 300 / 1024 / 0.95 / 0.9)
SEQUENCES = 64


def tuning(base: RunPlan, card: str) -> RunPlan:
    """The plan of the tuning run, the micro-batch halved until it fits, as `onecard tune` does."""
    steps = round(WINDOWS * 3 / SEQUENCES)
    micro = 8
    while True:
        config = base.config.replace(
            batch_size=micro,
            gradient_accumulation_steps=SEQUENCES // micro,
            max_iters=steps,
            lr_decay_iters=steps,
            warmup_iters=3,
            eval_interval=steps // 10,
            eval_iters=max(1, 160 // micro),
            mask_documents=True,
            learn_from="answers",
        )
        found = plan(config, card)
        if found.memory.fits != "no" or micro == 1:
            return found
        micro //= 2


def main() -> None:
    for card in CARDS:
        base = recommend(find_gpu(card), Budget(seconds=20 * HOUR), data="fineweb-edu-10B").plan
        tuned = tuning(base, card)
        minutes = [getattr(tuned.time.total_seconds, key) / 60 for key in ("low", "mid", "high")]
        loss = base.loss.expected.mid if base.loss else float("nan")
        print(
            f"{card}: {base.params.total / 1e6:.0f} M parameters, {base.tokens.total / 1e9:.1f} B tokens, "
            f"loss {loss:.2f}; tuning {minutes[1]:.0f} min ({minutes[0]:.0f} to {minutes[2]:.0f}), "
            f"{tuned.memory.process_bytes.mid / 2**30:.1f} GiB, micro-batch {tuned.config.batch_size}"
        )


if __name__ == "__main__":
    main()
