"""The table of docs/assistant.md: what pre-training for 20 hours and tuning take on cards of 8, 12 and 24 GB.

tools/docs.py writes it into the page. Everything is the planner's: no card was there. Tuning is on 10,000 conversations of 300 tokens, 5 % held out, windows of
1,024 filled to 95 %, 10 % of them base text, three passes.
"""

from onecard.advise.budget import Budget
from onecard.advise.recommend import recommend
from onecard.facts.gpus import find_gpu
from onecard.planner import plan
from onecard.planner.result import RunPlan
from onecard.units import GIB, HOUR, MINUTE

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
        answer = plan(config, card)
        if answer.memory.fits != "no" or micro == 1:
            return answer
        micro //= 2


def lines() -> list[str]:
    rows = [
        "| card | model for 20 hours | expected loss | tuning on 10,000 conversations | memory then |",
        "|---|---|---|---|---|",
    ]
    for name in CARDS:
        card = find_gpu(name)
        base = recommend(card, Budget(seconds=20 * HOUR), data="fineweb-edu-10B").plan
        tuned = tuning(base, name)
        low, minutes, high = (
            getattr(tuned.time.total_seconds, key) / MINUTE for key in ("low", "mid", "high")
        )
        assert base.loss is not None
        rows.append(
            f"| {round(card.memory_bytes / GIB):.0f} GB ({name}) | {base.params.total / 1e6:.0f} M parameters on "
            f"{base.tokens.total / 1e9:.1f} B tokens | {base.loss.expected.mid:.2f} | {minutes:.0f} min ({low:.0f} to {high:.0f}) | "
            f"{tuned.memory.process_bytes.mid / GIB:.1f} GiB |"
        )
    return rows
