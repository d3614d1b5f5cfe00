"""Files that a person names: those without a run, a config beside a log, what is inferred, and huge ones."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_logs import small_run

from onecard.errors import UserError
from onecard.facts import find_gpu
from onecard.runs.figures import figures
from onecard.runs.read import read_runs


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"hello\nworld\n", b"\x00" * 100, b"\xff\xfe", b"{}", b"x" * 200_000]
)
@pytest.mark.parametrize("name", ["a.log", "a.csv", "a.json", "a"])
def test_a_file_without_a_run_is_one_sentence(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match="no step of any training run"):
        read_runs(str(path))


def test_other_things_that_are_no_runs(tmp_path):
    with pytest.raises(UserError, match="no run at"):
        read_runs(str(tmp_path / "gone.log"))
    with pytest.raises(UserError, match="not a run folder"):
        read_runs(str(tmp_path))
    (tmp_path / "a.log").write_text(small_run())
    with pytest.raises(UserError, match="holds 1 runs, not 3"):
        read_runs(str(tmp_path / "a.log#3"))


def test_a_config_beside_the_log_and_flags_over_it(tmp_path):
    (tmp_path / "a.log").write_text(small_run(header=False))
    (run,) = read_runs(str(tmp_path / "a.log"))
    f = figures(run, find_gpu("RTX 4070"))
    assert (f.params_nanogpt, f.tokens_per_step, f.mfu_card) == (None, None, None)
    (tmp_path / "a.py").write_text(
        "n_embd = 384\nbatch_size = 16\ngradient_accumulation_steps = 32\n"
    )
    (run,) = read_runs(str(tmp_path / "a.log"))
    f = figures(run, find_gpu("RTX 4070"))
    assert (f.params_nanogpt, f.tokens_per_step) == (40_560_000, 524_288)
    assert f.mfu_card == pytest.approx(0.69, abs=0.01)
    (run,) = read_runs(str(tmp_path / "a.log"), flags={"n_embd": 768})
    assert run.config["n_embd"].how == "flag"
    assert [note.code for note in figures(run).problems] == ["mfu-disagrees"]


def test_the_missing_piece_is_inferred_and_marked(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(small_run(header=False))
    shape = {"n_layer": 12, "n_head": 12, "n_embd": 384, "block_size": 1024}
    (run,) = read_runs(str(path), flags=shape)
    f = figures(run, find_gpu("RTX 4070"))
    assert f.tokens_per_step == pytest.approx(524_288, rel=0.01)
    assert f.tokens_per_step % 1024 == 0
    assert {"tokens_per_step", "tokens_per_second", "tflops", "mfu_card"} <= set(f.inferred)
    assert f.mfu_card == pytest.approx(0.69, abs=0.01)
    path.write_text("tokens per iteration will be: 524,288\n" + small_run(header=False))
    run = read_runs(str(path))[0]
    # tokens known, model not: the FLOPs per token follow from the MFU
    f = figures(replace(run, signs=run.signs - {"header"}))
    assert f.flops_per_token == pytest.approx(299_983_104, rel=0.01)
    assert "flops_per_token" in f.inferred


@pytest.mark.parametrize(
    ("size", "limit"), [(8_000_000, 80), pytest.param(1_000_000_000, 200, marks=pytest.mark.long)]
)
@pytest.mark.timeout(1800)
def test_a_huge_log_streams(tmp_path, size, limit):
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc to ask for the peak")
    path = tmp_path / "huge.log"
    lines = "".join(
        f"iter {{}}{i:04d}: loss 5.{i:04d}, time 39{i % 90 + 10}.22ms, mfu 12.93%\n"
        for i in range(10_000)
    )
    with path.open("w") as file:
        for block in range(size // len(lines) + 1):
            file.write(lines.replace("{}", str(block + 1)))
    # VmHWM is this process's own peak; ru_maxrss would carry over what pytest had when it forked.
    code = (
        "import sys, re; from onecard.runs.read import read_runs; r, = read_runs(sys.argv[1]);"
        "peak = re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1];"
        "print(r.last_step, len(r.curve), int(peak) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    last, points, megabytes = map(int, done.stdout.split())
    assert last > size // 70
    assert points <= 4096
    assert megabytes < limit
