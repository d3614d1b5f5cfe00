"""Cards that torch cannot see or has no kernels for, and memory that the driver pages: what `train` does when it starts."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fake_driver import GIB, FakeCard, FakeLibrary, fake_cuda  # noqa: E402
from onecard.cli import main  # noqa: E402
from onecard.cli import train as train_command  # noqa: E402
from onecard.cli.go_plan import for_what_torch_can_use  # noqa: E402
from onecard.cli.go_record import Question  # noqa: E402
from onecard.config import RunConfig  # noqa: E402
from onecard.facts import here  # noqa: E402
from onecard.facts.builds import BUILDS  # noqa: E402
from onecard.facts.here import Seen  # noqa: E402
from onecard.facts.nvml import Nvml  # noqa: E402
from onecard.model import device_choice, machine  # noqa: E402
from onecard.model.gpt2 import GPT  # noqa: E402

CUDA = torch.device("cuda", 0)
CU130 = tuple(f"sm_{sm}" for sm in BUILDS[0].sm)


def test_a_card_that_torch_cannot_see(monkeypatch):
    monkeypatch.setattr(
        device_choice, "seen_cards", lambda: [Seen("NVIDIA GeForce RTX 4070", 12 << 30, 0)]
    )
    sentence = machine.unseen_card(torch.device("cpu"), "auto")
    assert "RTX 4070" in sentence
    assert "pytorch.org" in sentence
    assert machine.unseen_card(torch.device("cpu"), "cpu") is None


def test_no_card_nothing_said(monkeypatch):
    monkeypatch.setattr(device_choice, "seen_cards", lambda: [])
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
    """The doctor names it; `train` continues without it and says so once; asked for by name, it is an error."""
    fake_cuda(monkeypatch, [FakeCard(name=name, capability=capability)], arch_list=CU130)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert main(["doctor", "--quick", "--json"]) == 1
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["torch build"]["status"] == "action"
    assert "precision" not in rows  # nothing is computed on it
    assert "until then `train` runs on the CPU" in rows["torch build"]["detail"]
    lacks = f"no kernels for the {name}, compute capability {capability[0]}."
    assert main([*small_run, "--device=cuda"]) == 2
    message = capsys.readouterr().err
    assert lacks in message
    assert hint in message
    assert "device = 'cpu' trains without the card" in message
    assert not (tmp_path / "out").exists()
    assert_trains_on_the_cpu(capsys, small_run, lacks, hint)


def assert_trains_on_the_cpu(capsys, small_run: list[str], wrong: str, hint: str) -> None:
    """With device = auto: to the end, and one warning of what is wrong, how long it takes and what to install."""
    assert main([*small_run, "--device=auto"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "finished at step 2" in out
    assert out.count("the CPU trains instead (the plan for the whole run: ") == 1
    warning = out[out.index("card: ") :]
    assert wrong in warning
    assert hint in warning
    assert main([*small_run, "--device=cpu", "--out_dir=other", "--quiet"]) == 0
    assert "instead" not in capsys.readouterr().err  # asked for by name: nothing to warn of


def test_go_plans_for_the_cpu_where_torch_cannot_use_the_card(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    old = FakeCard(name="NVIDIA GeForce GTX 1080", capability=(6, 1))
    for place in (here, device_choice):
        monkeypatch.setattr(place, "seen_cards", lambda: [Seen(old.name, 8 << 30, 0)])
    fake_cuda(monkeypatch, [old], arch_list=CU130)
    assert main(["go", "--hours", "0.05", "--data", "stdlib", "--dry-run"]) == 0
    message = capsys.readouterr().out
    assert message.count("no kernels for the NVIDIA GeForce GTX 1080") == 1
    assert "CPU" in message.split("What will happen")[1].splitlines()[1]
    fake_cuda(monkeypatch, [old], arch_list=("sm_61",))
    asked = Question(("hours", "1"), None, None, None, None, "here")
    assert for_what_torch_can_use(asked) == (asked, None)


def test_train_with_an_old_driver(monkeypatch, capsys, small_run):
    """torch finds no card at all where its CUDA is newer than the driver, which shows one."""
    library = Nvml(FakeLibrary([FakeCard()], driver="550.54.14"))
    monkeypatch.setattr("onecard.facts.nvml.open_nvml", lambda: library)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device_choice.sys, "platform", "linux")
    old = "driver 550.54.14 is too old for CUDA 13.0: install 580 or newer"
    assert main([*small_run, "--device=cuda"]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "although the driver shows a NVIDIA GeForce RTX 4070" in message
    assert old in message
    assert_trains_on_the_cpu(capsys, small_run, "the driver shows a NVIDIA GeForce RTX 4070", old)


@pytest.mark.parametrize(
    ("system", "release", "paged"),
    [
        ("win32", "10", True),
        ("linux", "5.15.153.1-microsoft-standard-WSL2", True),
        ("linux", "6.8.0-45-generic", False),
    ],
    ids=["windows", "wsl", "linux"],
)
def test_train_takes_no_more_than_is_free_where_memory_is_paged(
    monkeypatch, capsys, tmp_path, small_run, system, release, paged
):
    """A card under Windows and WSL, played by the CPU: the run limits itself before its first step, runs out where the
    driver would have moved memory to the host, and continues with a smaller micro-batch."""
    fake_cuda(monkeypatch, [FakeCard(used_bytes=2 * GIB)])
    monkeypatch.setattr(machine.platform, "release", lambda: release)
    monkeypatch.setattr(machine, "sys", SimpleNamespace(platform=system))
    of_the_card, limits = machine.memory_is_paged, []
    monkeypatch.setattr(machine, "memory_is_paged", lambda device: of_the_card(CUDA))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: limits.append(share)
    )
    forward = GPT.forward

    def limited(self, rows, *args, **more):
        if limits and len(rows) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(self, rows, *args, **more)

    monkeypatch.setattr(GPT, "forward", limited)
    assert main([*small_run, "--device=cpu"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "finished at step 2" in out
    assert limits == ([pytest.approx(10 / 12 - 0.02)] if paged else [])
    assert ("the run takes at most 9.76 GiB of 12.00 GiB" in out) == paged
    log = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    found = [line["micro_batch"] for line in log if line["kind"] == "step"]
    assert set(found) == ({1} if paged else {2})


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
    assert train_command._as_this_device_can(RunConfig(), prints=True) == RunConfig()
    assert "a new device" not in capsys.readouterr().out
