"""What is suggested where a step does not fit, and `plan --explain-memory`: both of the very step that is planned."""

import ast
import json
from dataclasses import replace

import pytest

from onecard.config import RunConfig, load
from onecard.facts.gpus import find_gpu
from onecard.facts.here import cpu
from onecard.planner.memory import peak_memory
from onecard.planner.memory.explain import explain_memory
from onecard.planner.memory.step import simulate
from onecard.planner.workload import Workload
from onecard.units import GIB

CARD = find_gpu("RTX 4070")


def test_explained_memory_sums_to_the_peak_and_names_what_savers_take() -> None:
    config = RunConfig(batch_size=8)
    explained = explain_memory(config, CARD, "bfloat16")
    allocated = peak_memory(config, CARD, "bfloat16").allocated_bytes.mid
    assert explained.peak.bytes == allocated == max(point.bytes for point in explained.course)
    assert sum(tensor.bytes for tensor in explained.tensors) == allocated
    assert len(explained.largest) == 10
    by_name = {tensor.name: tensor for tensor in explained.tensors}
    logits, kept = by_name["logits"], by_name["c_fc output"]
    assert logits.bytes == 2 * 50304 * 8 * 1024
    assert logits.taken_by["chunked_loss = True"] == logits.bytes
    assert kept.layers == 12
    assert "recompute = 'cheap'" not in kept.taken_by
    assert kept.taken_by["recompute = 'block'"] == kept.bytes
    for saving in explained.savings:
        alone = config.replace(**dict(_setting(part) for part in saving.setting.split(", ")))
        assert saving.allocated_bytes == peak_memory(alone, CARD, "bfloat16").allocated_bytes.mid
        assert saving.saved_bytes == allocated - saving.allocated_bytes
    assert {saving.setting.split(" ")[0] for saving in explained.savings} == {
        "chunked_loss",
        "recompute",
        "optimizer_state",
        "weights",
        "gradients",
        "offload_optimizer",
        "batch_size",
    }


@pytest.mark.parametrize(
    ("others", "saves"), [({}, False), ({"chunked_loss": True, "recompute": "block"}, True)]
)
def test_a_setting_is_named_only_where_it_takes_memory_away(
    others: dict[str, object], saves: bool
) -> None:
    """Layers compiled one by one hold more logits than a whole compiled model, and fewer gradients."""
    config = load("gpt2-large").replace(batch_size=1, **others)
    explained = explain_memory(config, CARD, "bfloat16")
    assert all(saving.saved_bytes > 0 for saving in explained.savings)
    named = {name for tensor in explained.tensors for name in tensor.taken_by}
    named |= {saving.setting for saving in explained.savings}
    assert ("compile_unit = 'block'" in named) == saves
    changes = peak_memory(config, CARD, "bfloat16").changes
    assert any(str(note).startswith("compile_unit = 'block':") for note in changes) == saves


def _setting(words: str) -> tuple[str, object]:
    key, value = words.split(" = ")
    return key, ast.literal_eval(value)


@pytest.mark.parametrize("format", ["--json", "--html", "--markdown", "--full"])
def test_plan_explains_memory_in_every_format(
    format: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from onecard.cli import main

    monkeypatch.setenv("COLUMNS", "140")
    words = ["plan", "gpt2", "--gpu", "RTX 4070", "--batch_size=8", "--lang", "en"]
    assert main([*words, "--explain-memory", format]) == 0
    shown = capfd.readouterr().out
    assert "zeros for unused logits" in shown
    if format == "--json":
        answer = json.loads(shown)
        assert answer["memory"]["fits"] == "yes"
        phases = [point["phase"] for point in answer["memory_explained"]["course"]]
        assert list(dict.fromkeys(phases)) == ["forward", "loss", "backward", "optimizer"]
    else:
        assert "Where the memory goes" in shown
        assert "6.96" in shown


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({}, {"stack": "hf"}),
        ({"shard": "full"}, {"gpus": 8}),
        ({"shard": "full"}, {"gpus": 16, "nodes": 2}),
    ],
)
def test_the_explained_step_is_the_planned_one(
    keys: dict[str, object], where: dict[str, object]
) -> None:
    config = load("gpt2").replace(gradient_accumulation_steps=64, **keys)
    memory = peak_memory(config, CARD, "bfloat16", **where)  # type: ignore[arg-type]
    explained = explain_memory(config, CARD, "bfloat16", **where)  # type: ignore[arg-type]
    assert explained.peak.bytes == memory.allocated_bytes.mid


def test_nothing_is_suggested_that_other_keys_exclude() -> None:
    config = load("gpt2-xl").replace(compile_mode="reduce-overhead")
    settings = [saving.setting for saving in explain_memory(config, CARD, "bfloat16").savings]
    changes = [note.values["change"] for note in peak_memory(config, CARD, "bfloat16").changes]
    assert settings
    assert changes
    for change in [*settings, *changes]:
        config.replace(**dict(_setting(part) for part in change.split(", ")))


def test_each_process_of_a_machine_keeps_its_own_moments_there() -> None:
    config = load("gpt2").replace(offload_optimizer=True, gradient_accumulation_steps=64)
    one = peak_memory(config, CARD, "bfloat16").host_bytes
    assert peak_memory(config, CARD, "bfloat16", 4).host_bytes == 4 * one
    assert peak_memory(config, CARD, "bfloat16", 8, nodes=2).host_bytes == 4 * one
    shared = config.replace(shard="grads")
    assert peak_memory(shared, CARD, "bfloat16", 4).host_bytes == pytest.approx(one, rel=0.01)


def test_cards_that_share_the_moments_share_their_roots() -> None:
    config = load("gpt2-xl").replace(shard="full", fused_optimizer=False)
    step = simulate(Workload.of(config.replace(gradient_accumulation_steps=16), "bfloat16", 16))
    size = {tensor.name: tensor.bytes for tensor in step.tensors}
    assert size["root of the second moment"] == pytest.approx(size["optimizer state"] / 2, rel=0.01)


def test_only_what_the_device_can_use_is_suggested() -> None:
    """A card without bf16 keeps no weights in it, and a CPU has no other memory beside its own."""
    config = load("gpt2").replace(batch_size=16, compile=False)
    for device, dtype, unsuited in (
        (find_gpu("RTX 2080"), "float16", ("bfloat16",)),
        (cpu(), "float32", ("bfloat16", "offload")),
    ):
        explained = explain_memory(config, device, dtype)
        changes = peak_memory(config, replace(device, usable_bytes=3 * GIB), dtype).changes
        named = [saving.setting for saving in explained.savings]
        named += [note.values["change"] for note in changes]
        assert len(named) > 5
        assert not [setting for setting in named if any(word in setting for word in unsuited)]
