"""The probe: real steps of the trainer, costs that are found again, and an old calibration that survives an interruption."""

from pathlib import Path

import pytest
import torch

from onecard.config import RunConfig
from onecard.facts.here import cpu
from onecard.plan.calibration import WORK, file_of, load_calibration
from onecard.plan.speed import step_work
from onecard.plan.workload import Workload
from onecard.train import probe

CPU = torch.device("cpu")


def tiny(kind: str) -> list[RunConfig]:
    return [RunConfig(n_embd=32, n_head=2, n_layer=n, batch_size=2, block_size=16, vocab_size=64,
                      gradient_accumulation_steps=1, compile=False) for n in (1, 2)]  # fmt: skip


def test_costs_that_made_the_times_are_found_again():
    rates = [(64.0, 1e11), (1024.0, 1e11)]
    true = dict(zip(WORK, (1.1, 1.3, 3e-11, 1.2e-10, 0.9e-10, 5e-6, 1.1e-10), strict=True))
    pairs = []
    for config in probe.probe_shapes("cpu"):
        w = Workload.of(config, "float32")
        pairs.append((w, sum(true[key] * amount for key, amount in step_work(w, rates).items())))
    mode = probe.solve(pairs, rates, 1e10, 5e-6)
    assert mode.error < 0.03
    assert mode.costs["layers"] == pytest.approx(1.1, rel=0.15)


def test_a_short_probe_is_kept_and_an_interrupted_one_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "probe_shapes", tiny)
    known = cpu()
    found = probe.probe(CPU, known, 1)
    probe.save(found)
    kept = load_calibration(known)
    assert kept == found
    assert kept.modes is not None
    assert kept.modes["float32/eager"].steps == 2
    path = file_of(found.device, found.torch, found.power_limit_watts)
    before = path.read_bytes()

    def stop(what: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probe.save(probe.probe(CPU, known, 1, stop))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]
