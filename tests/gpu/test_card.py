"""On a real card: `make test-gpu`. Everything here is skipped where torch finds none."""

import gc
import json
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from card_runs import log_of

from onecard.cli import main
from onecard.config import RunConfig
from onecard.data import Dataset
from onecard.facts.here import seen_cards
from onecard.model import machine
from onecard.model.build import lowered, make_model
from onecard.model.generate import Sampling, generate
from onecard.model.power import power_meter
from onecard.planner import plan
from onecard.train.optim import make_optimizer
from onecard.train.optim.muon import orthogonal
from onecard.train.probe import start
from onecard.train.profile import profile_run
from onecard.train.run.faults import Faults
from onecard.train.run.loop import train
from onecard.train.verify import verify_resume

pytestmark = [
    pytest.mark.gpu,
    # torch warns of much that is no fault of a run's; elsewhere in the tests a warning is an error
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA card"),
    pytest.mark.timeout(900),  # compilers are slow where the processor is
]
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("dtype", ["auto", "float16", "float32"])
def test_a_run_learns_in_every_dtype(config, dtype):
    outcome = train(config.replace(dtype=dtype))
    losses = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    assert outcome.state == "finished"
    assert losses[-1] < losses[0] - 0.1


@pytest.fixture
def compiler():
    """torch's compiler as in a new process: graphs and counts of the tests before would be counted too."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"recompute": "block", "chunked_loss": True},
        {"recipe": "modern", "optimizer": "muon", "learning_rate": 0.02, "min_lr": 0.002},
    ],
    ids=["plain", "savers", "modern"],
)
def test_a_compiled_run_is_compiled_once(config, compiler, change):
    train(config.replace(compile=True, **change))
    message = [line.get("text", "") for line in log_of(config)]
    assert not [text for text in message if text.startswith("compile: off")], message
    assert compiler["stats"]["unique_graphs"] <= 3  # training, evaluation, its last rows


def test_a_compiled_run_gives_an_eager_ones_losses(config, compiler, tmp_path):
    eager = config.replace(out_dir=str(tmp_path / "eager"))
    train(eager)
    train(config.replace(compile=True))
    wanted, found = (
        [line["loss"] for line in log_of(each) if line["kind"] == "step"]
        for each in (eager, config)
    )
    assert found == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(
    "change",
    [{"attention": "math"}, {"recompute": "block"}, {"chunked_loss": True}, {"dropout": 0.1}],
    ids=lambda change: next(iter(change)),
)
def test_each_way_of_computing_learns(config, change):
    train(config.replace(**change))
    losses = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("state", ["8bit", "4bit"])
def test_moments_in_few_bits_are_those_of_a_cpu(state, optimizer):
    """Rounding draws the same numbers on every device: whole numbers that wrap round at 32 bits."""
    from onecard.train.optim.low_bit import LowBit

    values = torch.randn(5000)
    found = []
    for device in (CUDA, torch.device("cpu")):
        low = LowBit.zeros(5000, 8 if state == "8bit" else 4, optimizer == "muon", device)
        given = values if optimizer == "muon" else values.square()
        low.write(given.clone().to(device), 0, key=12345)
        found.append(low.codes.cpu())
    assert (found[0] == found[1]).float().mean() > 0.999  # a root may differ in its last bit


@pytest.mark.parametrize("state", ["8bit", "4bit"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_moments_in_few_bits_learn(config, state, optimizer):
    train(config.replace(optimizer=optimizer, optimizer_state=state))
    losses = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    assert losses[-1] < losses[0]


LEAN = {"weights": "bfloat16", "gradients": "bfloat16", "optimizer_state": "8bit"}


@pytest.mark.parametrize(
    "savers",
    [
        {"weights": "bfloat16"},
        {"gradients": "bfloat16"},
        {"compile_unit": "block", "recompute": "block", "chunked_loss": True},
        {"offload_optimizer": True},
        {"recompute": "block", "offload_activations": True},
        {**LEAN, "compile_unit": "block", "recompute": "block", "chunked_loss": True},
        {**LEAN, "recompute": "block", "offload_optimizer": True, "offload_activations": True},
        {**LEAN, "offload_optimizer": True, "update_in_backward": True, "grad_clip": 0.0},
    ],
)
def test_memory_savers_learn_and_resume_exactly(config, tmp_path, savers):
    config = config.replace(**savers)
    straight = config.replace(out_dir=str(tmp_path / "straight"))
    train(straight)
    train(config.replace(max_iters=10))
    train(config, resume=True, change=["max_iters"])
    found, wanted = (
        [line["loss"] for line in log_of(run) if line["kind"] == "step"]
        for run in (config, straight)
    )
    assert wanted[-1] < wanted[0]
    assert found == wanted


@pytest.mark.parametrize("state", ["float32", "8bit"])
def test_copies_in_streams_of_their_own_change_nothing(state):
    """Far more parameters than there are streams; gradients are dropped while their updates may be under way."""
    config = RunConfig(optimizer_state=state, weights="bfloat16", gradients="bfloat16")
    config = config.replace(n_layer=4, n_head=4, n_embd=256, vocab_size=4096, learning_rate=1e-2)
    found = []
    for lanes in (True, False):
        torch.manual_seed(1)
        model = lowered(make_model(config), config).to(CUDA)
        optimizer = make_optimizer(config.replace(offload_optimizer=True), model)
        if not lanes:
            optimizer._lanes = None
        for step in range(3):
            torch.manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
                optimizer.update(parameter)
                parameter.grad = None
            optimizer.step()
        found.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_run_is_resumed_profiled_and_sampled(config, tmp_path):
    train(config.replace(max_iters=10))
    assert train(config, resume=True, change=["max_iters"]).step == 20
    steps = [line["step"] for line in log_of(config) if line["kind"] == "step"]
    assert steps == list(range(1, 21))
    model = make_model(config.replace(vocab_size=50304)).to(config.device)
    tokens = list(generate(model, [[1, 2, 3]], 8, Sampling(top_k=5), vocab_size=512))
    assert len(tokens) == 8
    profile = profile_run(config.replace(out_dir=str(tmp_path / "profile")))
    assert profile.to_json()


def test_the_commands_that_use_a_model_run_on_the_card(config, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    letters = [chr(ord("0") + i) for i in range(512)]
    meta = {"vocab_size": 512, "itos": dict(enumerate(letters))}
    meta["stoi"] = {letter: i for i, letter in enumerate(letters)}
    (Path(config.dataset) / "meta.pkl").write_bytes(pickle.dumps(meta))
    train(config.replace(max_iters=4))
    device = f"--device={config.device}"
    assert main(["sample", config.out_dir, "--tokens", "8", device]) == 0
    text = tmp_path / "text.txt"
    text.write_text("0123456789" * 50)
    assert main(["eval", config.out_dir, "--text", str(text), "--json", device]) == 0
    assert "bits_per_byte" in capsys.readouterr().out


def test_documents_are_kept_apart(config, monkeypatch):
    monkeypatch.setattr(Dataset, "eot", 3, raising=False)
    opened = Dataset.__init__

    def with_eot(self, layout):
        opened(self, layout)
        self.eot = 3

    monkeypatch.setattr(Dataset, "__init__", with_eot)
    train(config.replace(mask_documents=True))
    losses = [line["loss"] for line in log_of(config) if line["kind"] == "step"]
    assert losses[-1] < losses[0]


def test_float16_that_overflows_goes_on_with_a_smaller_scale(config):
    outcome = train(config.replace(dtype="float16"), faults=Faults.parse("overflow@5"))
    assert outcome.state == "finished"


@pytest.mark.parametrize("savers", [{}, {**LEAN, "offload_optimizer": True}])
def test_the_step_waits_for_the_card_once(config, savers):
    """torch counts every copy that makes the host wait: one a step, the loss and the norm."""
    turn = start(CUDA, config.replace(vocab_size=512, **savers))
    turn.steps(2)
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            turn.stepper.gradients(turn.rows, 3, seed=3)
            turn.stepper.apply(1e-4, 3)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    # not torch's notice, at the first call, that the mode does not find "all synchronizing operations"
    found = [str(each.message) for each in waits]
    assert sum("called a synchronizing" in each for each in found) <= 1, found


def test_memory_is_what_the_plan_says(config):
    """The allocator's peak of a small model; larger ones are held to a trace on the CPU."""
    gc.collect()
    before = torch.cuda.memory_allocated(CUDA)  # what other tests have left
    train(config)
    peak = max(line["memory_bytes"] for line in log_of(config) if line["kind"] == "step")
    planned = plan(config.replace(vocab_size=50304), machine.facts_of(CUDA)).memory
    assert peak - before == pytest.approx(planned.allocated_bytes.mid, rel=0.15)


def test_the_modern_recipe_steps(config):
    modern = config.replace(recipe="modern", optimizer="muon", learning_rate=0.02, min_lr=0.002)
    assert train(modern).state == "finished"


@pytest.mark.parametrize("attention", ["math", "flash"])
def test_resume_with_deterministic_kernels(config, attention):
    """Exact with plain attention; Flash's backward pass has a deterministic form on some cards only."""
    found = verify_resume(config.replace(attention=attention), steps=6)
    assert found.exact or (attention == "flash" and found.largest_loss_difference < 1e-3)


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
        found = [line["micro_batch"] for line in log_of(config) if line["kind"] == "step"]
        assert found[-1] < 512
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, CUDA)


def test_muon_in_the_cards_dtype():
    matrices = torch.randn(2, 128, 256, device=CUDA)
    low = machine.fast_low_dtype(CUDA)
    found, wanted = orthogonal(matrices, low), orthogonal(matrices)
    assert (found - wanted).norm() < 0.1 * wanted.norm()


def test_doctor_and_probe(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json", "--report", "report.json"]) in (0, 1)
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["torch build"]["status"] == rows["step"]["status"] == "ok"
    assert main(["probe", "--quick", "--keep", "--json"]) == 0
