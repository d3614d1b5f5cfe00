"""`onecard launch` with the real engines: a job that is preempted, or whose connection drops, ends as the calm run does."""

import getpass
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engines import free_port, output_of, program, slurm, ssh_server, wait_for
from runs_in_tests import losses

from onecard.cli import main
from onecard.config import to_toml
from onecard.launch import make_job
from onecard.launch.slurm import SlurmOptions, slurm_text
from onecard.runs.log import read_log
from onecard.runs.record import RunRecord

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix"),
]
STEPS = 800


@pytest.fixture
def long_enough(config, monkeypatch):
    """A run of some twenty seconds, in one thread whoever starts it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return config.replace(
        max_iters=STEPS, lr_decay_iters=STEPS, eval_interval=500, log_interval=1, n_embd=64
    )


def write(config, path):
    path.write_text(to_toml(config))
    return str(path)


def calm(config, tmp_path, processes: int) -> dict[int, float]:
    quiet = config.replace(out_dir=str(tmp_path / "calm"))
    several = ["torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    command = [sys.executable, "-m", *(several if processes > 1 else []), "onecard", "train"]
    command.append(write(quiet, tmp_path / "calm.toml"))
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return losses(quiet.out_dir)


def reached(config) -> int:
    try:
        return max(losses(config.out_dir), default=0)
    except (OSError, ValueError):
        return 0


def starts(config) -> list[dict]:
    lines = read_log(Path(config.out_dir) / "log.jsonl")
    return [line for line in lines if line["kind"] == "start"]


def a_worker_of(file: str) -> int:
    """A process that trains the config, other than its launcher."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if file.encode() in words and b"torch.distributed.run" not in words:
            return int(folder.name)
    raise AssertionError("nothing trains")


@pytest.mark.timeout(600)
@pytest.mark.skipif(program("slurmctld") is None, reason="Slurm is not installed here")
@pytest.mark.parametrize(("cards", "restarts"), [(1, 0), (2, 0), (2, 2)])
def test_a_slurm_job_that_is_preempted_ends_as_the_calm_run(
    long_enough, tmp_path, capsys, monkeypatch, cards, restarts
):
    config = long_enough
    monkeypatch.chdir(tmp_path)
    file = write(config, tmp_path / "run.toml")
    with slurm(tmp_path / "slurm"):
        words = ["launch", file, "--on", "slurm", "--gpu", "cpu", "--cpus", "1"]
        words += ["--cards", str(cards), "--max-restarts", str(restarts)]
        assert main([*words, "--submit", "--json"]) == 0
        job = json.loads(capsys.readouterr().out)["job_id"]

        def shown(what: str) -> bool:
            return what in output_of("scontrol", "show", "job", job)

        wait_for("the first steps", lambda: reached(config) >= 100, 200)
        if restarts:
            os.kill(a_worker_of(file), signal.SIGKILL)
            wait_for("the restart", lambda: len(starts(config)) == 2, 200)
            wait_for("steps after it", lambda: reached(config) >= 150, 200)
        assert output_of("scontrol", "requeue", job) == ""  # as a preemption with requeue does
        wait_for("the preempted job's end", lambda: shown("Restarts=1"))
        stopped = reached(config)
        assert stopped < STEPS
        wait_for("the second part", lambda: reached(config) > stopped + 50, 200)
        output_of(
            "scancel", "--batch", "--signal=USR1", job
        )  # as Slurm does when the time is nearly up
        wait_for("the third part", lambda: shown("Restarts=2"), 200)
        wait_for("the end", lambda: shown("JobState=COMPLETED"), 300)
    log = next(tmp_path.glob("run-*.log")).read_text()
    assert "queued again" in log
    assert log.count("resumed: step") == 2 + bool(restarts)
    assert RunRecord(tmp_path / "run").state == "finished"
    assert losses(config.out_dir) == pytest.approx(calm(config, tmp_path, cards), rel=1e-6)


@pytest.mark.timeout(600)
@pytest.mark.skipif(program("slurmctld") is None, reason="Slurm is not installed here")
def test_data_and_training_on_one_slurm_as_the_guide_has_it(config, tmp_path, capsys, monkeypatch):
    """docs/launch.md's own script, on a few texts and with a small model."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    pytest.importorskip("datatrove")
    (tmp_path / "texts").mkdir()
    texts = [f"Text {n} says that {n} times {n} is {n * n}. " * 20 for n in range(300)]
    parquet.write_table(arrow.table({"text": texts}), tmp_path / "texts" / "a.parquet")
    guide = Path(__file__).parents[2] / "docs" / "launch.md"
    script = re.search(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)[1]
    for there, here in (
        ("hf://datasets/HuggingFaceFW/fineweb-edu/sample/100BT", str(tmp_path / "texts")),
        ("tasks=64", "tasks=2"),
        ('partition="cpu"', 'partition="debug"'),
        ("mem_per_cpu_gb=8", "mem_per_cpu_gb=1"),
        ("mem_per_cpu_gb=4", "mem_per_cpu_gb=1"),
    ):
        assert there in script
        script = script.replace(there, here)
    (tmp_path / "prepare.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    small = config.replace(dataset="data/fineweb-edu-100B", vocab_size=50304, block_size=32)
    file = write(small, tmp_path / "run.toml")
    with slurm(tmp_path / "slurm"):
        done = subprocess.run(
            [sys.executable, "prepare.py"], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        shards = done.stdout.splitlines()[-1]
        words = ["launch", file, "--on", "slurm", "--gpu", "cpu", "--cpus", "1"]
        words += ["--sbatch=--partition=debug", f"--sbatch=--dependency=afterok:{shards}"]
        assert main([*words, "--submit", "--json"]) == 0
        job = json.loads(capsys.readouterr().out)["job_id"]
        wait_for(
            "the end",
            lambda: "JobState=COMPLETED" in output_of("scontrol", "show", "job", job),
            400,
        )
    assert RunRecord(Path(small.out_dir)).state == "finished"
    assert len(losses(small.out_dir)) == small.max_iters


@pytest.mark.timeout(300)
def test_two_launchers_that_meet_train_one_run(config, tmp_path, monkeypatch):
    """As on two machines that share a file system: a torchrun on each, by the words of the batch script."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("first", "127.0.0.1")
    monkeypatch.setenv("port", str(free_port()))
    config = config.replace(dropout=0.0)
    file = write(config, tmp_path / "run.toml")
    job = make_job(config, "cpu", cards=1, nodes=2)
    text = slurm_text(job, SlurmOptions(file, python=sys.executable))
    script = text[text.index("run() {") : text.index("export -f run")] + "run"
    nodes = [subprocess.Popen(["bash", "-c", script], stderr=subprocess.PIPE) for _ in range(2)]
    for node in nodes:
        _, err = node.communicate(timeout=200)
        assert node.returncode == 0, err.decode()
    assert losses(config.out_dir) == pytest.approx(calm(config, tmp_path, 2), rel=1e-6)


@pytest.mark.timeout(600)
@pytest.mark.skipif(program("sshd") is None, reason="there is no ssh server here")
def test_a_run_over_ssh_survives_its_connection_and_comes_home(
    long_enough, data, tmp_path, capsys, monkeypatch
):
    config = long_enough
    monkeypatch.chdir(tmp_path)
    file = write(config, tmp_path / "run.toml")
    with ssh_server(tmp_path / "server") as server:
        words = [
            "launch",
            file,
            "--on",
            "ssh",
            "--gpu",
            "cpu",
            "--every",
            "1s",
            "--install",
            "none",
        ]
        words += ["--host", f"{getpass.getuser()}@127.0.0.1", "--port", str(server.port)]
        words += ["--python", sys.executable, "--upload", str(data), "--out", "job.sh"]
        words += [
            "--set-up",
            "export OMP_NUM_THREADS=1",
        ]  # a session there has an environment of its own
        for option in server.options:
            words += ["--ssh-option", option]
        assert main([*words, "--json"]) == 0
        capsys.readouterr()
        at_home = subprocess.Popen(["sh", "job.sh"], stdout=subprocess.PIPE, start_new_session=True)
        wait_for("the first steps at home", lambda: reached(config) >= 100, 200)
        os.killpg(at_home.pid, signal.SIGKILL)  # the laptop is closed
        at_home.communicate()
        seen = reached(config)
        time.sleep(1)
        done = subprocess.run(["sh", "job.sh"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "looking on" in done.stdout or "finished there" in done.stdout
    assert seen < STEPS
    assert RunRecord(tmp_path / "run").state == "finished"
    assert losses(config.out_dir) == calm(config, tmp_path, 1)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert "finished" in capsys.readouterr().out
