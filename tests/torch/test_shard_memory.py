"""The memory of a card that shares a model out: the plan against a trace of one process's step."""

import pytest
from shard_oracle import traced

from onecard.config import RunConfig
from onecard.planner.memory.step import simulate
from onecard.planner.workload import Workload

# most of the memory is in the layers, or in the logits
LAYERS = RunConfig(
    n_layer=4,
    n_head=4,
    n_embd=512,
    block_size=64,
    batch_size=2,
    vocab_size=2048,
    compile=False,
    gradient_accumulation_steps=12,
)
LOGITS = LAYERS.replace(n_layer=2, n_embd=256, block_size=256, batch_size=8, vocab_size=8192)
MODERN = {"recipe": "modern", "tied": False, "optimizer": "muon"}
LONG = [
    (config, way, dtype, {**recipe, **more})
    for config in (LAYERS, LOGITS)
    for way in ("grads", "full")
    for dtype in ("bfloat16", "float32")
    for recipe in ({}, MODERN)
    for more in ({}, {"recompute": "block", "chunked_loss": True}, {"optimizer_state": "8bit"})
]


def check(config: RunConfig, dtype: str, within: float = 0.06) -> None:
    trace = traced(config, dtype, processes=4)
    predicted = simulate(Workload.of(config, dtype, 4)).peak()
    assert predicted.bytes == pytest.approx(trace.bytes, rel=within), (trace.at, predicted)


@pytest.mark.parametrize("way", ["grads", "full"])
@pytest.mark.parametrize("recipe", [{}, MODERN], ids=["gpt2", "modern"])
def test_a_card_holds_what_the_plan_says(way: str, recipe: dict[str, object]) -> None:
    check(LAYERS.replace(shard=way, **recipe), "bfloat16", within=0.03)


def test_the_last_gathered_layer_is_held_through_the_loss() -> None:
    """Few, wide layers and many logits: that buffer is 3 % of the peak at the loss."""
    config = LAYERS.replace(n_layer=2, vocab_size=8192, batch_size=16, shard="full")
    check(config, "bfloat16", within=0.015)


@pytest.mark.long
@pytest.mark.parametrize(("config", "way", "dtype", "changes"), LONG)
def test_a_card_holds_what_the_plan_says_at_length(config, way, dtype, changes) -> None:
    check(config.replace(shard=way, **changes), dtype)
