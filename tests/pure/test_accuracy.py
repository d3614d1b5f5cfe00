"""The proof: the scripts run on the public tables and on bad ones, and the figures are as good as is claimed."""

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from bench_scripts import ROOT, bench

RUNS = ROOT / "fit" / "data" / "public_runs.csv"


def test_every_row_of_the_table_is_answered():
    found = json.loads(bench("accuracy", RUNS, "--json"))
    with RUNS.open(newline="") as table:
        ids = [row["id"] for row in csv.DictReader(table)]
    for kind in ("memory", "time"):
        assert [row["id"] for row in found["rows"] if row["kind"] == kind] == ids
        assert set(found[kind]) >= {"n", "median_abs_error", "p90_abs_error", "bias", "coverage"}
    for row in found["rows"]:
        assert set(row) >= {"id", "kind", "predicted", "low", "high", "measured", "skipped"}
        assert row["skipped"] or row["low"] <= row["predicted"] <= row["high"]
    assert set(found["families"]["runpod-gpt2-sweep"]) == {"memory", "time"}
    assert (
        found["time"]["median_abs_error"]
        < 0.10
        < found["peers"]["single_mfu"]["time"]["median_abs_error"]
    )


def test_times_of_families_never_seen():
    pytest.importorskip("scipy")
    from fit.runs import TABLES

    words = (*(RUNS.parent / name for name in TABLES), "--json", "--cross-validate")
    found = json.loads(bench("accuracy", *words, "--quality", "AB"))
    time, memory = (found[kind]["pytorch"] for kind in ("time", "memory"))
    assert time["median_abs_error"] <= 0.09
    assert time["mean_of_family_medians"] <= 0.135
    assert 0.75 <= time["coverage"] <= 0.92
    assert memory["median_abs_error"] <= 0.02
    assert memory["mean_of_family_medians"] <= 0.08
    assert memory["coverage"] >= 0.75


def test_many_readings_at_once_are_what_the_planner_says_of_each():
    """The fit works on all readings together; it must be the planner's own arithmetic."""
    pytest.importorskip("scipy")
    from fit.memory import GUESS, Errors, _whole, error, readings

    known = readings()
    values = {key: 0.9 * guess + 1e5 * (guess == 0) for key, guess in GUESS.items()}
    wanted = [error(reading, _whole(values)) for reading in known]
    assert {reading.run.memory_reading for reading in known} == {"allocated", "reserved", "process"}
    assert Errors(known)(values) == pytest.approx(wanted, abs=1e-12)


def test_unseen_rows_by_constants_of_another_table():
    """Neither constants nor ranges saw these rows, their families or most of their projects."""
    pytest.importorskip("scipy")
    data = RUNS.parent
    known = (data / "public_runs_2.csv", data / "extra_runs.csv")
    words = (data / "blind_runs.csv", "--json", "--quality", "AB", "--fit-on", *known)
    found = json.loads(bench("accuracy", *words))
    assert found["time"]["median_abs_error"] <= 0.15
    assert found["time"]["coverage"] >= 0.70
    assert found["memory"]["median_abs_error"] <= 0.10
    assert found["memory"]["coverage"] >= 0.65


def test_the_third_batch_by_constants_of_all_other_tables():
    """Mostly code that is not compiled, of projects in no other table: the goal of 10 % for its time is missed, the ranges hold."""
    pytest.importorskip("scipy")
    from fit.runs import TABLES

    known = [RUNS.parent / name for name in TABLES]
    words = (RUNS.parent / "blind_runs_3.csv", "--json", "--quality", "AB", "--fit-on", *known)
    found = json.loads(bench("accuracy", *words))
    assert found["time"]["median_abs_error"] <= 0.20
    assert 0.70 <= found["time"]["coverage"] <= 0.92
    assert found["memory"]["median_abs_error"] <= 0.10
    assert found["memory"]["coverage"] >= 0.65


def test_the_fourth_batch_by_the_shipped_constants():
    """In no fit: what a newcomer's table gets. The goal of 10 % for its time is missed by a little, the ranges hold."""
    found = json.loads(
        bench("accuracy", RUNS.parent / "blind_runs_4.csv", "--json", "--quality", "AB")
    )
    assert found["time"]["median_abs_error"] <= 0.13
    assert found["time"]["geforce"]["median_abs_error"] <= 0.13
    assert 0.70 <= found["time"]["coverage"] <= 0.92
    assert found["memory"]["median_abs_error"] <= 0.10


def test_the_fifth_batch_by_constants_of_the_tables_before_it():
    """As a newcomer's table, but for the choices made while looking at it: the goal of its time on GeForce cards is met by a little, that of its range (70 %) missed by a row."""
    pytest.importorskip("scipy")
    from fit.runs import ALL_TABLES

    fifth = RUNS.parent / "blind_runs_5.csv"
    known = [path for name in ALL_TABLES if (path := RUNS.parent / name) != fifth]
    found = json.loads(bench("accuracy", fifth, "--json", "--quality", "AB", "--fit-on", *known))
    assert found["time"]["median_abs_error"] <= 0.12
    assert found["time"]["geforce"]["median_abs_error"] <= 0.11
    assert 0.65 <= found["time"]["coverage"] <= 0.92
    assert found["memory"]["median_abs_error"] <= 0.10
    assert found["memory"]["coverage"] >= 0.65


def test_the_sixth_batch_by_the_shipped_constants():
    """In no fit, like the fourth: the goal of 10 % for its time is missed, the ranges hold."""
    found = json.loads(
        bench("accuracy", RUNS.parent / "blind_runs_6.csv", "--json", "--quality", "AB")
    )
    assert found["time"]["median_abs_error"] <= 0.16
    assert found["time"]["geforce"]["median_abs_error"] <= 0.16
    assert 0.65 <= found["time"]["coverage"] <= 0.92
    assert found["memory"]["median_abs_error"] <= 0.10
    assert found["memory"]["coverage"] >= 0.65


def test_the_seventh_batch_by_the_shipped_constants():
    """In no fit: on GeForce cards the goals are met; in all, time and its range are missed."""
    found = json.loads(
        bench("accuracy", RUNS.parent / "blind_runs_7.csv", "--json", "--quality", "AB")
    )
    assert found["time"]["median_abs_error"] <= 0.17
    assert found["time"]["geforce"]["median_abs_error"] <= 0.10
    assert found["time"]["coverage"] >= 0.55
    assert 0.65 <= found["time"]["geforce"]["coverage"] <= 0.92
    assert found["memory"]["median_abs_error"] <= 0.10
    assert found["memory"]["coverage"] >= 0.65


ROW = {
    "id": "a",
    "source_family": "f",
    "gpu": "RTX 4070",
    "n_gpus": "1",
    "framework": "nanoGPT",
    "n_layer": "12",
    "n_head": "12",
    "n_embd": "768",
    "vocab_size": "50304",
    "block_size": "1024",
    "micro_batch": "8",
    "grad_accum": "64",
    "dtype": "bf16",
    "compile": "yes",
    "ms_per_iter": "9340",
    "peak_vram_gb": "8.1",
}
BAD = {
    "unknown GPU": {"gpu": "RTX 9999"},
    "no card": {"gpu": ""},
    "ms_per_iter = 0": {"ms_per_iter": "0"},
    "peak_vram_gb = -3": {"peak_vram_gb": "-3"},
    "more than": {"peak_vram_gb": "500"},
    "not a number": {"n_layer": "twelve"},
    "not possible": {"n_embd": "-768"},
    "not finite": {"micro_batch": "inf"},
    "no n_layer": {"n_layer": ""},
    "n_gpus": {"n_gpus": "-2"},
    "n_head = 5000": {"n_head": "5000"},
    "field larger": {"notes": "x" * 200_000},
    "ms_per_iter = 1e+30": {"ms_per_iter": "1e30"},
    "d_ff = -5": {"d_ff": "-5"},
    "n_kv_head = 99": {"n_kv_head": "99"},
    "grad_accum = 1e+09": {"grad_accum": "1e9"},
    "no unit": {"ms_per_iter": "2.1 it/s"},
    "lora": {"notes": "LoRA r=16"},
    "8 experts": {"notes": "8 experts"},
    "contradict": {"tokens_per_s": "9,999,999"},
    "range too wide": {"ms_per_iter": "5000-9000"},
    "micro_batch = '8-16'": {"micro_batch": "8-16"},
    "no micro_batch": {"micro_batch": "", "grad_accum": ""},
    "is a range too wide": {"peak_vram_gb": "6–12 GB"},
    "tokens_per_s = 'fast'": {"tokens_per_s": "fast", "ms_per_iter": ""},
}


def write(path: Path, rows: list[dict[str, str]], encoding: str = "utf-8") -> None:
    with path.open("w", newline="", encoding=encoding) as out:
        table = csv.DictWriter(
            out,
            [
                *ROW,
                "notes",
                "optimizer",
                "flash_sdpa",
                "act_ckpt",
                "model",
                "parallelism",
                "d_ff",
                "n_kv_head",
                "tokens_per_s",
                "tokens_per_iter",
            ],
        )
        table.writeheader()
        table.writerows(rows)


def test_what_is_left_out_is_counted_by_reason(tmp_path: Path):
    path = tmp_path / "runs.csv"
    odd = [{"n_layer": "twelve"}, {"n_layer": "six"}, {"ms_per_iter": ""}, {"peak_vram_gb": "?"}]
    write(path, [ROW, *({**ROW, **change, "id": str(i)} for i, change in enumerate(odd))])
    found = json.loads(bench("accuracy", path, "--json"))
    number = "n_layer = … is not a number"
    assert found["time"]["skipped"] == {number: 2, "no time was measured": 1}
    assert found["memory"]["skipped"] == {number: 2, "no memory was measured": 1}
    text = bench("accuracy", path)
    assert "time: 2 of 5 rows predicted and compared" in text
    assert found["time"]["geforce"]["n"] == found["time"]["n"] == 2
    assert "GeForce RTX rows" in text
    assert f"     2  {number}" in text


def test_words_that_other_people_write(tmp_path: Path):
    """None of these rows may be skipped, and each lands near the plain one where it says the same."""
    same = [
        {"dtype": "bfloat16-mixed"},
        {"dtype": "torch.bfloat16"},
        {"dtype": "BF16"},
        {"dtype": ""},
        {"compile": "True"},
        {"compile": "1"},
        {"compile": "max-autotune"},
        {"flash_sdpa": "FA2"},
        {"flash_sdpa": "True"},
        {"act_ckpt": "False"},
        {"gpu": "NVIDIA GeForce RTX 4070"},
        {"gpu": "1x RTX 4070 (desktop)"},
        {"micro_batch": "8.0"},
        {"vocab_size": "50,304"},
        {"vocab_size": ""},
        {"n_head": ""},
        {"optimizer": "torch AdamW (fused)"},
        {"n_gpus": ""},
        {"grad_accum": "64 steps"},
        {"compile": "?"},
        {"flash_sdpa": "n/a"},
        {"gpu": "my old RTX 4070"},
        {"framework": "nanoGPT fork with output logging"},
        {"framework": "nanoGPT, CUDA 12.1"},
        {"peak_vram_gb": "8.1 by nvidia-smi"},
        {"ms_per_iter": "9.34 s/iter"},
        {"peak_vram_gb": "7725 MiB (peak)"},
        {"grad_accum": "", "tokens_per_s": "56134"},
        {"notes": "no dropout"},
        {"notes": "without LoRA"},
        {"ms_per_iter": "9.2–9.5 s"},
        {"ms_per_iter": "9340 ± 25 ms"},
        {"peak_vram_gb": "8.0-8.2 GB"},
        {"ms_per_iter": "", "tokens_per_s": "55k to 57k tok/s"},
        {"ms_per_iter": "", "tokens_per_s": "56,134 tok/s per GPU"},
        {"micro_batch": "", "tokens_per_iter": "524,288"},
    ]
    other = [
        {"dtype": "16-mixed"},
        {"dtype": "fp32"},
        {"dtype": "bf16-true"},
        {"dtype": "FP8 (E4M3)"},
        {"compile": "no"},
        {"flash_sdpa": "eager"},
        {"act_ckpt": "gradient checkpointing"},
        {"optimizer": "paged_adamw_8bit"},
        {"optimizer": "Adafactor"},
        {"optimizer": "SGD"},
        {"framework": "HF Trainer", "compile": ""},
        {"framework": "minGPT"},
        {"framework": "litgpt"},
        {"framework": "modded-nanogpt"},
        {"framework": "nanochat"},
        {"framework": "llm.c"},
        {"n_layer": "", "n_embd": "", "n_head": "", "model": "gpt2-medium", "micro_batch": "2"},
        {"gpu": "T4", "dtype": "fp16"},
        {"gpu": "8xH100", "n_gpus": "", "parallelism": "FSDP"},
        {"gpu": "GTX 1080 Ti", "dtype": "fp32"},
        {"peak_vram_gb": "~8.1 GB"},
    ]
    path = tmp_path / "runs.csv"
    rows = [ROW, *({**ROW, **change, "id": str(i)} for i, change in enumerate([*same, *other]))]
    for encoding in ("utf-8", "utf-16"):
        write(path, rows, encoding)
        found = json.loads(bench("accuracy", path, "--json"))["rows"]
        assert [row for row in found if row["skipped"]] == []
    for kind in ("memory", "time"):
        first, *rest = (row["predicted"] for row in found if row["kind"] == kind)
        assert rest[: len(same)] == pytest.approx([first] * len(same), rel=0.06)
        assert all(first / 20 < value < 20 * first for value in rest)


def test_what_differs_in_words_only_is_predicted_alike(tmp_path: Path):
    pairs = [
        ({"compile": "none"}, {"compile": "no"}),
        ({"compile": "not used"}, {"compile": "no"}),
        ({"dtype": "fp32"}, {"dtype": "tf32"}),
        ({"framework": "PyTorch (llm.c train_gpt2.py)"}, {"framework": "PyTorch train_gpt2.py"}),
        ({"framework": "HF Trainer + accelerate"}, {"framework": "HF transformers Trainer"}),
        ({"n_gpus": "2"}, {"n_gpus": "2", "parallelism": "DDP"}),
        ({"gpu": "Colab T4"}, {"gpu": "T4"}),
        ({"gpu": "Mac Studio M2 Ultra"}, {"gpu": "M2 Ultra"}),
        (
            {"framework": "PyTorch", "dtype": "fp32 (TF32 disabled)"},
            {"framework": "PyTorch", "dtype": "fp32"},
        ),
    ]
    path = tmp_path / "runs.csv"
    write(
        path,
        [
            {**ROW, **each, "id": f"{i}{j}"}
            for i, pair in enumerate(pairs)
            for j, each in enumerate(pair)
        ],
    )
    path.write_text(path.read_text().replace("id,source_family,gpu", "id, Source_Family, GPU", 1))
    found = json.loads(bench("accuracy", path, "--json"))["rows"]
    for first, second in zip(found[::4] + found[1::4], found[2::4] + found[3::4], strict=True):
        assert first["predicted"] == pytest.approx(second["predicted"], rel=1e-6), (first, second)


@pytest.mark.parametrize("reason", BAD)
def test_bad_rows_are_reported_and_the_good_ones_still_scored(reason: str, tmp_path: Path):
    path = tmp_path / "runs.csv"
    write(path, [ROW, {**ROW, **BAD[reason], "id": "bad"}, {**ROW, "id": "c"}])
    found = json.loads(bench("accuracy", path, "--json"))
    assert any(
        row["id"] in ("bad", "row 2") and reason in (row["skipped"] or "") for row in found["rows"]
    )
    assert all(row["predicted"] for row in found["rows"] if row["id"] == "c")
    assert all(row["predicted"] for row in found["rows"] if row["id"] == "a")


@pytest.mark.parametrize("name", ["accuracy", "loss_accuracy"])
def test_as_a_program(tmp_path: Path, name: str):
    words = [sys.executable, ROOT / "bench" / f"{name}.py", tmp_path / "none.csv"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: ")


def test_a_file_that_is_no_table(tmp_path: Path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xff\xfe\x00nothing")
    assert "accuracy:" in bench("accuracy", path, code=2)
    assert "accuracy:" in bench("accuracy", tmp_path / "none.csv", code=2)
    assert "loss_accuracy:" in bench("loss_accuracy", path, code=2)


def test_bad_losses_are_reported(tmp_path: Path):
    path = tmp_path / "losses.csv"
    good = "a,f,fineweb,gpt2,12,12,768,gpt2-adamw,10,3.3"
    lines = [
        "id,source_family,dataset,tokenizer,n_layer,n_head,n_embd,recipe,tokens_seen_b,loss_nats",
        good,
        good.replace("3.3", "-1").replace("a,", "b,", 1),
        good.replace(",10,", ",0,").replace("a,", "c,", 1),
        good.replace("fineweb", "secret").replace("a,", "d,", 1),
        good.replace("12,12", ",12").replace("a,", "e,", 1),
    ]
    path.write_text("\n".join(lines))
    rows = {row["id"]: row for row in json.loads(bench("loss_accuracy", path, "--json"))["rows"]}
    assert rows["a"]["skipped"] is None
    assert abs(rows["a"]["predicted"] - 3.27) < 0.05
    assert all(rows[id]["skipped"] for id in "bcde")


def test_how_near_anybody_could_come():
    pytest.importorskip("numpy")
    from bench.noise_floor import errors, groups, in_hindsight, repeated, same_work
    from fit.runs import all_runs

    two = {("card", "code"): {"slow": math.log(2), "fast": 0.0}}
    assert errors(two, repeated) == pytest.approx([0.5, 1.0])
    assert errors(two, in_hindsight) == pytest.approx([1 - 0.5**0.5, 2**0.5 - 1])
    found = groups("fitted_seconds")
    assert all(len(families) > 1 for families in found.values())
    # one configuration of nanoGPT on one kind of card, in two projects' words: what no model can tell apart
    twice = {name: apart for name, apart, _ in same_work(all_runs())}
    assert max(twice.values()) > 1.3
