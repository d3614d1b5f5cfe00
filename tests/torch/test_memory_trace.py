"""The simulation of planner/memory against a trace of the trainer's own step, and against the CPU's allocator."""

import statistics
import sys
from pathlib import Path

import pytest
from memory_oracle import Traced, traced
from traced_settings import SMALL, seeded

from onecard.config import KEYS, RunConfig, choices
from onecard.facts.here import cpu
from onecard.planner.memory import step_memory
from onecard.planner.memory.order import breadth_first
from onecard.planner.memory.sizes import Sizes
from onecard.planner.memory.step import host_bytes, simulate
from onecard.planner.workload import Workload

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.saver_memory import GOALS, ON_CARD, ON_HOST, whole_row


def check(config: RunConfig, dtype: str, within: float = 0.01, on_cuda: bool = True) -> Traced:
    trace = traced(config, dtype, on_cuda)
    work = Workload.of(config, dtype) if on_cuda else Workload.on(cpu(), config, dtype)
    predicted = simulate(work).peak()
    assert predicted.bytes == pytest.approx(trace.bytes, rel=within), (
        f"{config.changed()} {dtype}, traced at {trace.at}, simulated at {predicted}"
    )
    return trace


def error(seed: int, compile: bool) -> float:
    """How far the simulated peak is from the traced one."""
    config, dtype = seeded(seed, compile)
    return simulate(Workload.of(config, dtype)).peak().bytes / traced(config, dtype).bytes - 1


def check_settings(seeds: range, compile: bool, within: float) -> None:
    """Every one of these settings, and half of them within a tenth of a per cent."""
    errors = {seed: abs(error(seed, compile)) for seed in seeds}
    assert max(errors.values()) < within, errors
    assert statistics.median(errors.values()) < 0.001, errors


@pytest.mark.parametrize("first", range(0, 48, 12))
def test_eager_steps_as_traced(first: int) -> None:
    check_settings(range(first, first + 12), False, 0.03)


@pytest.mark.parametrize("first", range(0, 6, 3))
def test_compiled_steps_as_traced(first: int) -> None:
    check_settings(range(first, first + 3), True, 0.04)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(48, 248))
def test_eager_steps_as_traced_at_length(seed: int) -> None:
    assert abs(error(seed, False)) < 0.03


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 108))
def test_compiled_steps_as_traced_at_length(seed: int) -> None:
    assert abs(error(seed, True)) < 0.04


def test_the_trace_names_what_is_alive_at_its_peak() -> None:
    trace = traced(SMALL, "bfloat16")
    assert sum(size for size, _ in trace.tensors) == trace.bytes
    largest = max(trace.tensors)
    assert "optimizer" in largest[1] or "loss" in largest[1]


CHOICES = [
    (key, choice)
    for key in KEYS
    if "memory" in RunConfig.facts(key).affects and key != "dtype"
    for choice in choices(key)
]


@pytest.mark.parametrize(("key", "choice"), CHOICES)
def test_every_choice_that_can_be_trained_is_modelled(key: str, choice: str) -> None:
    """A mode that the trainer gains without its memory model shows here."""
    check(SMALL.replace(**{key: choice}), "bfloat16", within=0.012)


@pytest.mark.parametrize(
    "recompute",
    # with "block", seed 1 above is of this recipe
    ["none", "cheap", pytest.param("block", marks=pytest.mark.long)],
)
def test_the_modern_recipe_compiled(recompute: str) -> None:
    check(SMALL.replace(recipe="modern", tied=False, compile=True, recompute=recompute), "bfloat16")


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "gib"),
    [
        ({"n_embd": 384, "batch_size": 16}, 7.87),
        ({"batch_size": 8}, 6.96),
        ({"n_layer": 10, "n_head": 10, "n_embd": 640, "batch_size": 8}, 5.47),
    ],
)
def test_whole_models_compiled(shape: dict[str, int], gib: float) -> None:
    trace = check(RunConfig(**shape, gradient_accumulation_steps=2), "bfloat16", within=0.002)
    assert trace.bytes / 2**30 == pytest.approx(gib, abs=0.006)


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({}, True),
        ({"batch_size": 4}, False),
        # the layers computed again at once are more than the head
        pytest.param({"vocab_size": 512}, True, marks=pytest.mark.long),
        pytest.param({"tied": False, "n_layer": 6}, True, marks=pytest.mark.long),
        pytest.param({"recipe": "modern"}, True, marks=pytest.mark.long),
    ],
)
def test_recomputed_layers_with_small_micro_batches(change: dict[str, object], first: bool) -> None:
    """With all logits, and all gradients more than anything before: Inductor takes another order then."""
    config = SMALL.replace(n_embd=512, n_head=8, batch_size=1, compile=True, recompute="block")
    config = config.replace(**change)
    assert breadth_first(Sizes(Workload.of(config, "bfloat16"))) == first
    check(config, "bfloat16", within=0.015)


IN_BACKWARD = {**ON_CARD, "update_in_backward": True, "grad_clip": 0.0}
IN_BACKWARD["gradient_accumulation_steps"] = 1


@pytest.mark.parametrize(
    "change",
    [
        ON_CARD,
        {**ON_CARD, "compile": False},
        {**ON_HOST, "offload_activations": True},
        {**IN_BACKWARD, "compile": False, "recipe": "modern", "optimizer": "muon"},
        pytest.param(IN_BACKWARD, marks=pytest.mark.long),
        {**ON_CARD, "recipe": "modern", "optimizer": "muon"},
    ],
)
def test_every_saver_together(change: dict[str, object]) -> None:
    """One layer's weights count for more than its activations here, as in a large model at micro-batch 1."""
    config = SMALL.replace(n_embd=512, n_head=8, batch_size=1, vocab_size=4096, compile=True)
    config = config.replace(**change)
    trace = check(config, "bfloat16", within=0.02)
    assert host_bytes(Workload.of(config, "bfloat16")) == pytest.approx(trace.host_bytes, rel=0.02)


@pytest.mark.long
@pytest.mark.timeout(3600)  # a few minutes of processor time each: XL's update has 743 slices
@pytest.mark.parametrize("name", GOALS)
def test_large_models_on_small_cards(name: str) -> None:
    row = whole_row(*GOALS[name])
    assert row["tokens_per_step"] == pytest.approx(2**19, rel=0.07)
    assert row["traced"] + row["overhead"] <= row["goal"]
    assert row["predicted"] == pytest.approx(row["traced"], rel=0.02)
    assert row["host_predicted"] == pytest.approx(row["host_traced"], rel=0.02)


@pytest.mark.parametrize("n_layer", [6, 24])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_that_muon_makes_orthogonal_together(dtype: str, n_layer: int) -> None:
    """On a CPU in full precision. A deep, narrow model peaks there; of 24 layers not all matrices of a shape are stacked."""
    config = SMALL.replace(n_layer=n_layer, n_embd=512, batch_size=1, vocab_size=512)
    config = config.replace(optimizer="muon", recompute="block")
    on_cuda = dtype == "bfloat16"
    work = Workload.of(config, dtype) if on_cuda else Workload.on(cpu(), config, dtype)
    assert simulate(work).peak().place == "optimizer"
    check(config, dtype, within=0.001, on_cuda=on_cuda)


def test_real_steps_on_this_cpu_take_what_was_predicted() -> None:
    from bench.memory_cpu import measured

    config = RunConfig(
        n_layer=3,
        n_head=4,
        n_embd=128,
        block_size=128,
        batch_size=4,
        vocab_size=2000,
        compile=False,
        gradient_accumulation_steps=2,
    )
    predicted = step_memory(Workload.of(config, "float32"), cpu()).allocated.mid
    assert predicted == pytest.approx(measured(config), rel=0.03)
