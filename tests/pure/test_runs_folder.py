"""Our own run folders: read back, listed, compared with others."""

import json
import math

import pytest
from run_logs import small_run

from onecard.cli import main
from onecard.config import RunConfig
from onecard.facts import find_gpu
from onecard.planner import plan
from onecard.runs.compare import compare
from onecard.runs.explain import explain
from onecard.runs.figures import figures
from onecard.runs.folder import read_folder
from onecard.runs.log import LogWriter
from onecard.runs.read import read_runs
from onecard.runs.record import environment
from run_folders import new_folder

CONFIG = RunConfig(
    n_embd=384,
    batch_size=16,
    gradient_accumulation_steps=32,
    max_iters=1000,
    lr_decay_iters=1000,
    warmup_iters=100,
    dataset="fineweb",
    learning_rate=1e-3,
    min_lr=1e-4,
)
PEAK = find_gpu("RTX 4070").matmul_flops("bfloat16")


def make(path, steps=1000, config=CONFIG, wait=0.01, state="finished"):
    planned = plan(config, "RTX 4070")
    record = new_folder(path, config, planned, environment(gpu="NVIDIA GeForce RTX 4070"))
    record.begin()
    log = LogWriter(record.log_path)
    log.write(
        kind="start",
        step=0,
        resumed=False,
        parameters=planned.params.total,
        device="NVIDIA GeForce RTX 4070",
        dtype="bfloat16",
        peak_flops=PEAK,
        dataset_tokens=3_680_000_000,
    )
    for step in range(10, steps + 1, 10):
        loss = 4 + 6 * math.exp(-step / 300)
        log.write(
            kind="step",
            step=step,
            tokens=step * 524_288,
            loss=loss,
            lr=1e-3,
            step_seconds=3.9,
            tokens_per_second=134_433.0,
            mfu=0.69,
            data_wait=wait,
            memory_bytes=7 * 2**30,
            watts=190.0,
            kwh=190 * step * 3.9 / 3.6e6,
            seconds=step * 3.9 + step / 10,
        )
        if step % 500 == 0:
            log.write(
                kind="eval",
                step=step,
                val_loss=loss + 0.02,
                bits_per_byte=1.1,
                perplexity=math.exp(loss),
            )
    if state:
        log.write(kind="end", step=steps, state=state)
        record.end(state)
    log.close()
    return record


def test_our_clock_stops_for_evaluations(tmp_path):
    """A step after one that took longer is a slow step, not one that carries the evaluation."""
    folder = tmp_path / "run"
    make(folder, steps=400)
    log = LogWriter(folder / "log.jsonl")
    for step in range(401, 601):
        log.write(kind="step", step=step, loss=4.0, step_seconds=6.0 if step % 50 == 1 else 3.9)
        if step % 50 == 0:
            log.write(kind="eval", step=step, tokens=0, val_loss=4.0, eval_seconds=30.0)
    log.close()
    times = read_folder(folder).times
    assert (times.leaks, times.leaked_seconds) == (0, 0.0)


def test_a_folder_comes_back_with_its_figures(tmp_path):
    record = make(tmp_path / "out")
    f = figures(read_folder(record.path))
    assert f.device.name == "RTX 4070"
    assert (f.step_seconds, f.tokens_per_step, f.params_nanogpt) == (3.9, 524_288, 40_560_000)
    assert f.mfu_card == pytest.approx(0.69, abs=0.005)
    assert (f.final_loss_kind, f.run.state) == ("val", "finished")
    assert f.kwh == pytest.approx(190 * 3900 / 3.6e6)
    assert "kwh" not in f.inferred
    planned = plan(CONFIG, "RTX 4070")  # as in its own plan.json
    assert f.predicted["step_seconds"] == planned.time.step_seconds.mid
    # the log of a CUDA card has what torch allocates, so that is what it is compared with
    assert f.predicted["memory_bytes"] == planned.memory.allocated_bytes.mid
    assert f.final_bits_per_byte == 1.1
    assert not f.problems


def test_data_wait_is_a_finding_only_where_it_hurts(tmp_path):
    waiting = figures(read_folder(make(tmp_path / "a", wait=0.3).path))
    assert "data-wait" in [finding.note.code for finding in explain(waiting)]
    calm = figures(read_folder(make(tmp_path / "b").path))
    assert "data-wait" not in [finding.note.code for finding in explain(calm)]


def test_ours_against_a_nanogpt_log(tmp_path):
    make(tmp_path / "out")
    (tmp_path / "theirs.log").write_text(small_run())
    runs = [*read_runs(str(tmp_path / "out")), *read_runs(str(tmp_path / "theirs.log"))]
    c = compare([figures(run, find_gpu("RTX 4070")) for run in runs])
    assert c.winners["tokens_per_second"] is None
    assert c.at_equal["steps"][-1].at == 1000


def test_a_damaged_log_or_config_is_counted(tmp_path):
    record = make(tmp_path / "out")
    with record.log_path.open("ab") as file:
        file.write(b'{"kind": "step", "step": "many"}\n{"kind": "?"}\n{"kind": "step", "st')
    run = read_folder(record.path)
    assert run.unreadable == 3
    (record.path / "config.toml").write_text("n_embd = [[[")
    assert read_folder(record.path).unreadable == 4


def test_a_nan_is_kept(tmp_path):
    record = make(tmp_path / "out", state=None)
    log = LogWriter(record.log_path)
    log.write(kind="step", step=1010, loss=float("nan"), step_seconds=3.9)
    log.close()
    record.end("stopped")
    f = figures(read_folder(record.path))
    assert f.run.not_finite == (1010,)
    assert "not-finite" in [finding.note.code for finding in explain(f)]
    json.dumps(f.to_json(), allow_nan=False)


def test_the_list(tmp_path, capsys, monkeypatch):
    make(tmp_path / "a" / "deep" / "run")
    make(tmp_path / "b", steps=500, state="stopped")
    empty = new_folder(tmp_path / "c", CONFIG)
    empty.begin()
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "--json", "--price", "0.25EUR"]) == 0
    rows = {row["path"]: row for row in json.loads(capsys.readouterr().out)}
    assert [rows[name]["state"] for name in ("a/deep/run", "b", "c")] == [
        "finished",
        "stopped",
        "running",
    ]
    assert (rows["b"]["step"], rows["b"]["max_steps"], rows["c"]["step"]) == (500, 1000, None)
    assert rows["a/deep/run"]["cost"] == pytest.approx(190 * 3900 / 3.6e6 * 0.25)
    assert rows["a/deep/run"]["hours"] == pytest.approx((3900 + 100) / 3600)
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out
    assert "finished" in shown
    assert "500 / 1,000" in shown
    assert main(["runs", "--lang", "es"]) == 0
    shown = capsys.readouterr().out
    assert "terminada" in shown
    assert "500 / 1.000" in shown
    assert main(["runs", "nowhere"]) == 2
    empty.end("stopped")


def test_no_runs_is_said(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 0
    assert "No runs here" in capsys.readouterr().out
