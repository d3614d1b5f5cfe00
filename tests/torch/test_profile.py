"""`onecard train --profile`: a table that adds up, a trace that opens, and no run begun."""

import json
import time
from pathlib import Path

import pytest
import torch

from onecard.train.profile import _seconds_of, kind_of, profile_run


@pytest.mark.parametrize("recipe", ["gpt2", "modern"])
def test_the_table_and_the_trace(config, recipe):
    optimizer = "muon" if recipe == "modern" else "adamw"
    found = profile_run(config.replace(recipe=recipe, optimizer=optimizer), steps=2)
    folder = Path(config.out_dir)
    assert found.step_seconds > 0
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert "matmul" in {part.kind for part in found.parts}
    assert json.loads(found.trace.read_text())["traceEvents"]
    assert "kind of work" in (folder / "profile" / "profile.txt").read_text()
    assert not (folder / "log.jsonl").exists()


def test_on_a_machine_with_a_card_the_cpus_time_is_counted_where_the_cpu_steps(config, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = profile_run(config, steps=1)
    assert "matmul" in {part.kind for part in found.parts if part.share > 0}


def test_kinds_by_name():
    assert kind_of("aten::_scaled_dot_product_flash_attention") == "attention"
    assert kind_of("aten::native_layer_norm_backward") == "norm"
    assert kind_of("aten::add") == "other"


def test_a_step_s_seconds_are_of_one_step():
    began = time.perf_counter()
    found = _seconds_of(lambda: time.sleep(0.01), 10, on_card=False)
    assert 0.01 <= found <= (time.perf_counter() - began) / 10
