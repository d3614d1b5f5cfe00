"""On a real card: `make test-gpu`. Everything here is skipped where torch finds none."""

import json

import numpy as np
import pytest
import torch

from onecard.cli import main
from onecard.config import RunConfig
from onecard.facts.here import seen_cards
from onecard.model import machine
from onecard.model.power import power_meter
from onecard.train.optim.muon import orthogonal
from onecard.train.run.loop import train
from onecard.train.verify import verify_resume

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA card"),
]
CUDA = torch.device("cuda", 0)


@pytest.fixture
def config(tmp_path) -> RunConfig:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train", "val"):
        np.random.default_rng(7).integers(0, 512, 200_000).astype("<u2").tofile(
            folder / f"{name}.bin"
        )
    return RunConfig(
        dataset=str(folder),
        out_dir=str(tmp_path / "out"),
        n_layer=4,
        n_head=4,
        n_embd=256,
        block_size=256,
        batch_size=8,
        gradient_accumulation_steps=2,
        max_iters=20,
        lr_decay_iters=20,
        warmup_iters=2,
        eval_interval=10,
        eval_iters=2,
        compile=False,
        device="cuda",
    )


def log_of(config: RunConfig) -> list[dict]:
    from pathlib import Path

    return [json.loads(line) for line in (Path(config.out_dir) / "log.jsonl").open()]


@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_a_run_learns_in_every_dtype(config, dtype):
    outcome = train(config.replace(dtype=dtype))
    losses = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    assert outcome.state == "finished"
    assert losses[-1] < losses[0]


def test_a_compiled_run_is_compiled_once(config):
    train(config.replace(compile=True, mask_documents=False))
    said = [line.get("text", "") for line in log_of(config)]
    assert not [text for text in said if text.startswith("compile: off")], said
    counters = torch._dynamo.utils.counters
    assert counters["stats"]["unique_graphs"] <= 3  # training, evaluation, its last rows


def test_the_modern_recipe_steps(config):
    modern = config.replace(recipe="modern", optimizer="muon", learning_rate=0.02, min_lr=0.002)
    assert train(modern).state == "finished"


def test_resume_is_exact_with_deterministic_kernels(config):
    assert verify_resume(config, steps=6).largest_loss_difference < 1e-3


def test_the_card_is_found_in_the_driver_by_uuid():
    assert machine.uuid_of(CUDA) in {card.uuid for card in seen_cards()} or torch.version.hip
    assert machine.facts_of(CUDA).usable_bytes > 2**30


def test_watts_are_read():
    watts = power_meter(CUDA).read_watts()
    assert watts is None or 1 < watts < 2000


def test_memory_can_be_limited_and_runs_out(monkeypatch):
    monkeypatch.setattr(machine, "memory_is_paged", lambda device: True)
    try:
        assert "takes at most" in machine.limit_paged_memory(CUDA)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(torch.cuda.mem_get_info(CUDA)[1], dtype=torch.uint8, device=CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def test_too_large_a_batch_is_halved(config):
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5e9 / total), CUDA)
    try:
        outcome = train(config.replace(batch_size=512, gradient_accumulation_steps=1, max_iters=2))
        assert outcome.step == 2
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def test_muon_in_the_cards_dtype():
    matrices = torch.randn(2, 128, 256, device=CUDA)
    found, wanted = orthogonal(matrices), orthogonal(matrices, torch.float32)
    assert (found - wanted).norm() < 0.1 * wanted.norm()


def test_doctor_and_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json", "--report", "report.json"]) in (0, 1)
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["torch build"]["status"] == rows["step"]["status"] == "ok"
    assert main(["probe", "--quick", "--keep", "--json"]) == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one card")
def test_two_cards_do_one_cards_run(config, tmp_path):
    import subprocess
    import sys

    from onecard.config import to_toml

    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *("-m", "onecard", "train", str(file), "--quiet"),
        ],
        check=False,
    )
    assert done.returncode == 0
    two = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    alone = config.replace(out_dir=str(tmp_path / "alone"))
    train(alone)
    one = [line["loss"] for line in log_of(alone) if line["kind"] == "step"]
    assert two == pytest.approx(one, rel=0.02)
