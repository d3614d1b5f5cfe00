"""`onecard doctor` on the CPU and for cards that are not there: each row right."""

import json
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from good_card import BUSY

from fake_driver import GIB
from onecard.cli import main
from onecard.config import RunConfig
from onecard.facts.nvml import Reading
from onecard.model import machine
from onecard.train.doctor import compute, shared, system
from onecard.train.doctor.answers import Answers, Check
from onecard.train.doctor.diagnose import diagnose
from onecard.train.doctor.kept import file_of, keep, kept_for, with_fallbacks
from onecard.train.doctor.shared import paste, report, scrubbed

pytestmark = pytest.mark.usefixtures("home")


def statuses(found: Answers) -> dict[str, str]:
    checks = (
        system.driver,
        system.build,
        system.paging,
        system.power,
        system.clocks,
        system.compiler,
    )
    return {row.check: row.status for row in (check(found) for check in checks)}


def test_a_good_card_is_good(card):
    assert set(statuses(card).values()) == {"ok"}


@pytest.mark.parametrize(
    ("changed", "check", "status", "words"),
    [
        ({"driver": "550.54.14"}, system.driver, "action", "install 580"),
        ({"driver": None}, system.driver, "fall-back", "NVML does not answer"),
        ({"capability": (7, 0)}, system.build, "action", "CUDA 12.6"),  # older than the build
        ({"capability": (13, 0)}, system.build, "action", "no build"),  # newer than any
        (
            {"hip": "7.0", "gcn_arch": "gfx1010", "kernels": ("gfx1100",)},
            system.build,
            "action",
            "gfx1010",
        ),
        (
            {"hip": "7.0", "gcn_arch": "gfx1100:sramecc+", "kernels": ("gfx1100",)},
            system.build,
            "ok",
            "torch 2.13.0",
        ),
        ({"has_triton": False}, system.compiler, "fall-back", "triton is not installed"),
        ({"capability": (6, 1)}, system.compiler, "fall-back", "7.0 or newer"),
        ({"system": "win32"}, system.paging, "fall-back", "at most the 11.00 GiB"),
        ({"release": "5.15.1-microsoft-standard-WSL2"}, system.paging, "fall-back", "host's"),
        ({"reading": Reading}, system.power, "fall-back", "energy is not logged"),
        (
            {
                "reading": lambda: replace(
                    BUSY, sm_mhz=900, celsius=92, held_back_by=("temperature",)
                )
            },
            system.clocks,
            "action",
            "900 of 2610 MHz, 92 °C: held back by temperature",
        ),
        (  # far below its clock, and not by heat
            {"reading": lambda: replace(BUSY, sm_mhz=1500)},
            system.clocks,
            "action",
            "1500 of 2610 MHz, 65 °C: held back by power limit",
        ),
        ({"reading": lambda: replace(BUSY, sm_mhz=1600)}, system.clocks, "ok", "1600 of 2610"),
    ],
)
def test_what_is_wrong_is_named(card, changed, check, status, words):
    row = check(replace(card, **changed))
    assert row.status == status
    assert words in row.detail


def test_a_cache_that_cannot_be_written(card, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    row = system.compiler(replace(card, cache=blocked / "below"))
    assert (row.status, row.settings) == ("fall-back", (("compile", False),))


def test_too_little_disk(card, tmp_path):
    assert (
        system.disk(replace(card, free_disk=lambda folder: 10 << 20), tmp_path).status == "action"
    )
    few = system.disk(replace(card, free_disk=lambda folder: 2 * GIB), tmp_path, 1 << 20)
    assert (few.status, "few checkpoints" in few.detail) == ("action", True)
    enough = replace(card, free_disk=lambda folder: 5 * GIB)
    assert system.disk(enough, tmp_path, 1 << 20).status == "ok"


def test_mixed_cards_are_listed_as_torch_counts_them(card):
    row = system.device(replace(card, seen=("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3060")))
    assert "torch counts NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 3060" in row.detail


def test_a_dtype_that_computes_wrong_is_left(monkeypatch, card):
    """fp16 only: the card says that it has bf16, and its products are not numbers."""
    here = replace(card, device=torch.device("cpu"))
    monkeypatch.setattr(Answers, "kind", property(lambda self: "cuda"))
    assert compute.precision(here, 64).status == "ok"
    monkeypatch.setitem(compute._MOST_ERROR, "bfloat16", -1.0)
    row = compute.precision(here, 64)
    assert (row.status, row.settings) == ("fall-back", (("dtype", "float16"),))
    monkeypatch.setitem(compute._MOST_ERROR, "float16", -1.0)
    assert compute.precision(here, 64).settings == (("dtype", "float32"),)


def test_attention_without_a_back_end(monkeypatch, card):
    def missing(*args, **more):
        raise RuntimeError("No available kernel")

    monkeypatch.setattr(compute.F, "scaled_dot_product_attention", missing)
    row = compute.attention(replace(card, device=torch.device("cpu"), capability=None))
    assert (row.status, row.settings) == ("fall-back", (("attention", "math"),))


def test_fall_backs_are_kept_for_this_device_torch_and_driver(card):
    assert kept_for(card) is None
    rows = [
        Check("compiler", "fall-back", "no triton", settings=(("compile", False),)),
        Check("precision", "fall-back", "bf16 is wrong", settings=(("dtype", "float16"),)),
    ]
    keep(card, rows)
    kept = kept_for(card)
    config, lines = with_fallbacks(RunConfig(), kept)
    assert (config.compile, config.dtype) == (False, "float16")
    assert any("no triton" in line for line in lines)
    asked, _ = with_fallbacks(RunConfig(dtype="bfloat16"), kept)
    assert asked.dtype == "bfloat16"  # by name: the person knows
    assert kept_for(replace(card, driver="590.1")) is None
    assert kept_for(replace(card, torch_version="2.14.0")) is None


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "onecard.doctor/1"}', "{" * 100_000])
def test_a_damaged_file_is_a_new_device(card, content):
    file_of(card).parent.mkdir(parents=True)
    file_of(card).write_text(content)
    assert kept_for(card) is None


def test_a_file_cannot_ask_for_more_than_fall_backs(card):
    keep(
        card,
        [
            Check(
                "x", "ok", "", settings=(("compile", True), ("dataset", "/etc"), ("dtype", "int8"))
            )
        ],
    )
    assert kept_for(card).settings == {}


def test_a_text_to_paste(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["doctor", "--quick", "--device", "cpu", "--md"])
    out = capsys.readouterr().out
    assert out.startswith("onecard ")
    assert "| step | ok |" in out
    assert str(tmp_path) not in out


def test_a_check_that_fails_is_a_row(monkeypatch, tmp_path):
    monkeypatch.setattr(compute, "attention", lambda found: 1 / 0)
    found = diagnose(torch.device("cpu"), quick=True, folder=tmp_path)
    rows = {row.check: row for row in found}
    assert rows["attention"].status == "action"
    assert "division by zero" in rows["attention"].detail
    assert rows["disk"].status in ("ok", "action")


def test_a_card_that_the_build_does_not_serve_is_not_computed_on(monkeypatch, card, tmp_path):
    monkeypatch.setattr(compute, "precision", lambda found: pytest.fail("computed"))
    rows = diagnose(card.device, True, answers=replace(card, capability=(7, 0)), folder=tmp_path)
    assert "precision" not in {row.check for row in rows}
    assert kept_for(replace(card, capability=(7, 0))) is None


def test_the_whole_of_it_on_this_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "report.json"
    code = main(["doctor", "--quick", "--device", "cpu", "--json", "--report", str(file)])
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert code == int(any(row["status"] == "action" for row in rows.values()))
    assert (
        rows["step"]["status"] == rows["precision"]["status"] == rows["attention"]["status"] == "ok"
    )
    assert rows["step"]["figures"]["seconds"] > 0
    sent = json.loads(file.read_text())
    assert sent["schema"] == "onecard.hardware/1"
    assert str(tmp_path) not in file.read_text()
    assert [line["step"] for line in sent["log"]] == list(range(1, 11))
    for line in sent["log"]:
        assert {"loss", "step_seconds", "memory_bytes"} <= line.keys()
        assert line["step_seconds"] > 0
    assert 6 < sent["log"][0]["loss"] < 12
    plan = sent["plan"]["step_seconds"]
    assert 0 < plan["low"] < plan["mid"] < plan["high"]
    assert "10 steps of" in rows["short run"]["detail"]
    assert ", planned " in rows["short run"]["detail"]
    again = RunConfig.from_values(sent["config"])  # what the figures belong to
    assert (again.n_layer, again.compile, sent["dtype"]) == (2, False, "float32")
    assert {"dataset", "out_dir"}.isdisjoint(sent["config"])
    assert (
        main(["doctor", "--device", "cpu", "--quick", "--report", str(tmp_path / "no" / "r")]) == 2
    )


@pytest.mark.parametrize("part", ["a check", "the resume proof", "the short run"])
def test_ctrl_c_leaves_nothing_behind(tmp_path, monkeypatch, capsys, part):
    places = [tmp_path / name for name in ("here", "temporary")]
    for place in places:
        place.mkdir()
    monkeypatch.chdir(places[0])
    monkeypatch.setattr(tempfile, "tempdir", str(places[1]))

    def interrupted(*_: object) -> None:
        assert part == "a check" or any(places[1].iterdir())  # in the middle of a run
        signal.raise_signal(signal.SIGINT)

    quick = ["--quick"] if part != "the resume proof" else []
    if part == "a check":
        monkeypatch.setattr(compute, "attention", interrupted)
    else:
        monkeypatch.setattr(compute, "step", lambda found, compiled: Check("step", "ok", ""))
        monkeypatch.setattr(machine, "peak_memory_bytes", interrupted)  # asked by every log line
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    try:
        assert main(["doctor", "--device", "cpu", "--report", "r.json", *quick]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "stopped" in capsys.readouterr().err
    assert [list(place.iterdir()) for place in places] == [[], []]


def test_resume_over_ten_steps_on_this_cpu(card):
    here = replace(card, device=torch.device("cpu"))
    assert compute.resume(here).detail == "10 steps, the same to the last bit after a stop"


def test_a_report_holds_nothing_private(card, monkeypatch):
    monkeypatch.setenv("USER", "ana-gomez")
    monkeypatch.setattr(shared.socket, "gethostname", lambda: "anas-tower")
    private = [
        f"cannot write {Path.home()}/out/log.jsonl",
        r"C:\Users\ana\runs\out is full",
        "token hf_ABCDEFGHIJKLMNOP1234 refused",
        "card GPU-0a1b2c3d-0000-1111-2222-333344445555 of ana-gomez on anas-tower, ana@example.org, 192.168.1.7",
        "key 0123456789abcdef0123456789abcdef01234567",
        r"\\server\share\data",
    ]
    rows = [Check("x", "action", line) for line in private]
    text = json.dumps(report(card, rows)) + paste(card, rows)
    for word in (
        "/out",
        "Users",
        "hf_ABC",
        "0a1b2c3d",
        "ana",
        "tower",
        "192.168",
        "0123456789",
        "server",
    ):
        assert word not in text, word
    assert scrubbed("RTX 4070, 11.00 GiB free, 120 MB/s") == "RTX 4070, 11.00 GiB free, 120 MB/s"
