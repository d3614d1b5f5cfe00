"""The plans that the tests of reports show: one that fits, one that does not."""

from datetime import UTC, datetime

from onecard.config import RunConfig, load
from onecard.planner import plan
from onecard.planner.result import RunPlan

NOW = datetime(2026, 3, 13, 9, 30, tzinfo=UTC)


def plan_4070() -> RunPlan:
    """The worked example: 40.95M parameters, 20,000 steps over 3.68 B tokens."""
    return plan(load("fineweb-41M-12gb"), "RTX 4070", data=3_680_000_000, price="0.25EUR", now=NOW)


def plan_too_large() -> RunPlan:
    """GPT-2 XL on 12 GB, with choices that raise warnings, for some years."""
    config = load("gpt2-xl").replace(
        n_head=20, vocab_size=50257, warmup_iters=9_000, learning_rate=2e-2
    )
    return plan(config, "RTX 4070 Ti", data=10_000_000, price="IN", now=NOW)


def plan_tiny() -> RunPlan:
    """A model of seconds, on data nobody published a loss for."""
    return plan(
        RunConfig(
            n_layer=4,
            n_head=4,
            n_embd=128,
            block_size=64,
            batch_size=12,
            gradient_accumulation_steps=1,
            max_iters=2000,
            lr_decay_iters=2000,
            warmup_iters=100,
            vocab_size=65,
            dataset="unheard-of",
        ),
        "RTX 3060 12GB",
        now=NOW,
    )
