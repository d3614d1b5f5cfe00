"""Cards that torch cannot see or has no kernels for, and memory that the driver pages: what `train` does when it starts."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_driver import GIB, FakeCard, fake_cuda  # noqa: E402
from onecard.cli import main  # noqa: E402
from onecard.cli import train as train_command  # noqa: E402
from onecard.config import RunConfig  # noqa: E402
from onecard.facts.builds import BUILDS  # noqa: E402
from onecard.facts.here import Seen  # noqa: E402
from onecard.model import machine  # noqa: E402

CUDA = torch.device("cuda", 0)
CU130 = tuple(f"sm_{sm}" for sm in BUILDS[0].sm)


def test_a_card_that_torch_cannot_see(monkeypatch):
    monkeypatch.setattr(
        machine, "seen_cards", lambda: [Seen("NVIDIA GeForce RTX 4070", 12 << 30, 0)]
    )
    sentence = machine.unseen_card(torch.device("cpu"), "auto")
    assert "RTX 4070" in sentence
    assert "pytorch.org" in sentence
    assert machine.unseen_card(torch.device("cpu"), "cpu") is None


def test_no_card_nothing_said(monkeypatch):
    monkeypatch.setattr(machine, "seen_cards", lambda: [])
    assert machine.unseen_card(torch.device("cpu"), "auto") is None


@pytest.fixture
def small_run(tmp_path, monkeypatch) -> list[str]:
    """The words of a `train` of two steps, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train", "val"):
        (np.arange(2000) % 60).astype("<u2").tofile(folder / f"{name}.bin")
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "batch_size": 2}
    sizes |= {"max_iters": 2, "lr_decay_iters": 2, "warmup_iters": 0, "eval_iters": 1}
    words = {"dataset": folder, "out_dir": tmp_path / "out", "vocab_size": 50304, "compile": False}
    given = [f"--{key}={value}" for key, value in (sizes | words).items()]
    return ["train", "train_shakespeare_char", *given]


@pytest.mark.parametrize(
    ("name", "capability", "hint"),
    [
        ("NVIDIA Quadro P1000", (6, 1), "CUDA 12.6"),
        ("NVIDIA GeForce RTX 9090", (13, 0), "none of torch"),
    ],
    ids=["older than the build", "newer than the build"],
)
def test_train_on_a_card_outside_the_build(
    monkeypatch, capsys, tmp_path, small_run, name, capability, hint
):
    """The doctor names it; `train` ends in a sentence before it writes anything, and runs where its hint says."""
    fake_cuda(monkeypatch, [FakeCard(name=name, capability=capability)], arch_list=CU130)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert main(["doctor", "--quick", "--json"]) == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["torch build"]["status"] == "action"
    assert "precision" not in rows  # nothing is computed on it
    for asked in ("auto", "cuda"):
        assert main([*small_run, f"--device={asked}"]) == 2
        said = capsys.readouterr().err
        assert f"no kernels for the {name}, compute capability {capability[0]}." in said
        assert hint in said
        assert "device = 'cpu' trains without the card" in said
        assert not (tmp_path / "out").exists()
    assert main([*small_run, "--device=cpu"]) == 0
    assert "finished at step 2" in capsys.readouterr().out


@pytest.mark.parametrize("release", ["5.15.153.1-microsoft-standard-WSL2", "6.8.0-45-generic"])
def test_train_takes_no_more_than_is_free_where_memory_is_paged(
    monkeypatch, capsys, small_run, release
):
    """A card under WSL, played by the CPU: the limit is set by the run itself, before its first step."""
    fake_cuda(monkeypatch, [FakeCard(used_bytes=2 * GIB)])
    monkeypatch.setattr(machine.platform, "release", lambda: release)
    paged, events = machine.memory_is_paged, []
    monkeypatch.setattr(machine, "memory_is_paged", lambda device: paged(CUDA))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: events.append(share)
    )
    forget = machine.forget_peak_memory  # after the trial, before the first step
    monkeypatch.setattr(
        machine, "forget_peak_memory", lambda device: (events.append("steps"), forget(device))
    )
    assert main([*small_run, "--device=cpu"]) == 0
    out = capsys.readouterr().out
    assert "steps" in events
    if "microsoft" in release:
        assert events[0] == pytest.approx(10 / 12 - 0.02)
        assert "the run takes at most 9.76 GiB of 12.00 GiB" in " ".join(out.split())
    else:
        assert set(events) == {"steps"}
        assert "takes at most" not in out


def test_paging_changes_no_setting_of_the_config(monkeypatch, capsys, tmp_path):
    """On Windows the doctor's row is a fall-back without settings: the limit is `train`'s own, not the config's."""
    from onecard.train.doctor import system
    from onecard.train.doctor.answers import Answers
    from onecard.train.doctor.kept import keep

    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    fake_cuda(monkeypatch, [FakeCard()])
    found = Answers(CUDA, "card", memory_bytes=12 * GIB, free_bytes=11 * GIB, system="win32")
    row = system.paging(found)
    assert row.status == "fall-back"
    keep(found, [row])
    monkeypatch.setattr("onecard.train.doctor.answers.ask", lambda device: found)
    assert machine.choose_device("auto") == CUDA
    assert train_command._as_this_device_can(RunConfig(), speaks=True) == RunConfig()
    assert "a new device" not in capsys.readouterr().out
