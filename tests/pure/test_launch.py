"""Job files for Slurm, SkyPilot and ssh: what they hold, that names cannot become commands, mistakes in one sentence."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from onecard.cli import main
from onecard.config import load, read_file
from onecard.errors import UserError
from onecard.facts.gpus import find_gpu
from onecard.facts.rentals import rentals
from onecard.launch import make_job
from onecard.launch.install import Install, install_of
from onecard.launch.job import job_name, plain
from onecard.launch.skypilot import SkyOptions, skypilot_text
from onecard.launch.slurm import SlurmOptions, slurm_text
from onecard.launch.ssh import SshOptions, check_host, ssh_text

pytestmark = pytest.mark.usefixtures("tuned_once")
NASTY = [
    "a b",
    "it's",
    'say "hi"',
    "$(touch INJECTED)",
    "`touch INJECTED`",
    "; touch INJECTED #",
    "-rf",
    "${HOME}",
    "a\\b",
    "END_OF_ONECARD_CONFIG",
    "कार्ड",
    "a: {b}, [c]",
]
JOB = make_job(load("gpt2"), "A100 80GB", cards=8)


def parses(text: str, shell: str) -> None:
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    if shutil.which("shellcheck"):
        # info: a function that srun calls looks unreachable; $ssh is several words on purpose
        options = ["-s", shell, "-S", "warning", "-"]
        done = subprocess.run(["shellcheck", *options], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout


def yaml(text: str) -> dict:
    return pytest.importorskip("yaml").safe_load(text)


def sky(job=JOB, **more) -> str:
    options = {"bucket": "s3://runs", "install": Install(requirement="onecard[train]==0.1.0")}
    return skypilot_text(job, SkyOptions(**{**options, **more}))


def ssh(job=JOB, **more) -> str:
    options = {"host": "root@203.0.113.7", "install": Install(requirement="onecard[train]==0.1.0")}
    return ssh_text(job, SshOptions(**{**options, **more}))


def test_a_batch_script_saves_and_queues_again():
    text = slurm_text(JOB, SlurmOptions("run.toml", ("n_layer=6",), set_up=("module load cuda",)))
    parses(text, "bash")
    for line in ("--requeue", "--signal=B:USR1@120", "--nodes=1", "--gres=gpu:8"):
        assert f"#SBATCH {line}\n" in text
    assert "torch.distributed.run --standalone --nproc_per_node=8" in text
    assert "-m onecard train run.toml --n_layer=6 --continue" in text
    assert text.index("module load cuda") < text.index("run()")
    days, hours, minutes = re.search(r"--time=(\d+)-(\d+):(\d+):00", text).groups()
    limit = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60
    assert limit > 1.2 * JOB.plan.time.total_seconds.high


def test_one_process_needs_no_torchrun_and_a_cpu_no_card():
    job = make_job(load("train_shakespeare_char"), "cpu")
    text = slurm_text(job, SlurmOptions("run.toml"))
    assert "torch.distributed" not in text
    assert "gres" not in text
    parses(text, "bash")


def test_several_machines_meet_at_the_first():
    text = slurm_text(make_job(load("gpt2"), "A100 80GB", 4, nodes=2), SlurmOptions("run.toml"))
    parses(text, "bash")
    assert "#SBATCH --nodes=2" in text
    assert '--rdzv_endpoint="$first:$port"' in text
    assert "--standalone" not in text


def test_a_config_for_a_cpu_is_not_sent_to_a_card():
    with pytest.raises(
        UserError, match="the config trains on a CPU, and the job is for the MI300X"
    ):
        make_job(load("gpt2", ["device=cpu"]), "MI300X")


def test_processes_that_die_are_started_again_and_the_launcher_ends_when_time_is_up():
    several = make_job(load("gpt2"), "A100 80GB", 4, restarts=3)
    for text in (slurm_text(several, SlurmOptions("run.toml")), sky(several), ssh(several)):
        assert "--nproc_per_node=4 --max-restarts=3 " in text
    script = slurm_text(several, SlurmOptions("run.toml"))
    assert (
        "scancel --signal=TERM" in script
    )  # SIGUSR1 would end the processes alone, to be restarted
    parses(script, "bash")
    one = make_job(load("train_shakespeare_char"), "cpu", restarts=1)
    assert "--nproc_per_node=1 --max-restarts=1 " in slurm_text(one, SlurmOptions("run.toml"))
    assert "max-restarts" not in slurm_text(JOB, SlurmOptions("run.toml"))
    with pytest.raises(UserError, match="-1 restarts cannot be"):
        make_job(load("gpt2"), "A100 80GB", restarts=-1)


def test_a_task_of_skypilot_is_yaml_with_the_config_in_it(tmp_path):
    text = sky(most_per_hour=48.0, prepare="onecard data fineweb-edu --tokens 3B")
    task = yaml(text)
    assert task["resources"]["accelerators"] == ["A100-80GB:8", "A100-80GB-SXM:8"]
    assert task["resources"]["use_spot"] is True
    assert task["resources"]["max_hourly_cost"] == 48.0
    assert task["file_mounts"]["/onecard-bucket"] == {"source": "s3://runs", "mode": "MOUNT"}
    for script in (task["setup"], task["run"]):
        parses("#!/bin/bash\n" + script, "bash")
    config = re.search(r"END_OF_ONECARD_CONFIG'\n(.*)\nEND_OF", task["run"], re.DOTALL)[1]
    (tmp_path / "run.toml").write_text(config)
    assert load(tmp_path / "run.toml") == JOB.config.replace(out_dir="run")
    assert read_file(tmp_path / "run.toml")


def test_every_rented_card_has_skypilots_name():
    for rental in rentals():
        job = make_job(load("gpt2"), rental.gpu)
        assert job.rental == rental
        assert yaml(sky(job))["resources"]["accelerators"]
    assert {rental.gpu for rental in rentals()} >= {"MI300X"}


def test_a_script_for_ssh_is_posix():
    for more in ({}, {"port": 2222, "prepare": "true", "ssh_options": ("IdentityFile=/k/e-y",)}):
        parses(ssh(**more), "sh")
    assert "-p 2222" in ssh(port=2222)
    assert "-o IdentityFile=/k/e-y" in ssh(ssh_options=("IdentityFile=/k/e-y",))


@pytest.mark.skipif(sys.platform == "win32", reason="jobs run on Unix")
@pytest.mark.parametrize("name", NASTY)
def test_names_never_become_commands(name, tmp_path):
    """What the shell reads of a name is that name: the script prints its words instead of running them."""
    config = load("gpt2").replace(out_dir=name, dataset=name)
    job = make_job(config, "A100 80GB")
    assert re.fullmatch(r"[A-Za-z0-9._-]+", job.name)
    batch = slurm_text(job, SlurmOptions(name, (f"dataset={name}",), python=name))
    run = batch[batch.index("run() {") : batch.index("export -f run")]
    shown = run.replace("exec ", "printf '%s\\n' ") + "run"
    done = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[0] == name
    assert f"--dataset={name}" in done.stdout.splitlines()
    for text, shell in ((ssh(job), "sh"), (yaml(sky(job))["run"], "bash")):
        written = re.search(r"cat > run.toml <<'END.*?\nEND_OF_ONECARD_CONFIG", text, re.DOTALL)[0]
        subprocess.run([shell, "-c", written], check=True, cwd=tmp_path)
        assert load(tmp_path / "run.toml").dataset == name
    here = next(line for line in ssh(job).splitlines() if line.startswith("here="))
    shown = subprocess.run(
        ["sh", "-c", f'{here}\nprintf %s "$here"'], capture_output=True, text=True, cwd=tmp_path
    )
    assert shown.stdout.endswith(f"/{name}")
    assert not (tmp_path / "INJECTED").exists()


@pytest.mark.parametrize("folder", ['a"b', "a\\b"])
def test_a_folder_that_slurm_cannot_name_is_refused(folder):
    with pytest.raises(UserError, match="Slurm cannot run a job in a folder of this name"):
        slurm_text(JOB, SlurmOptions("run.toml", folder=folder))


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "x\x1b[2J", "\u202eabc"])
def test_control_characters_are_refused(text):
    with pytest.raises(UserError, match="control character"):
        plain(text, "a name")
    for make in (
        lambda: make_job(load("gpt2").replace(out_dir=text), "A100 80GB"),
        lambda: slurm_text(JOB, SlurmOptions(text)),
        lambda: slurm_text(JOB, SlurmOptions("run.toml", set_up=(text,))),
        lambda: slurm_text(JOB, SlurmOptions("run.toml", directives=(f"--x={text}",))),
        lambda: slurm_text(JOB, SlurmOptions("run.toml", folder=text)),
        lambda: ssh(prepare=text),
        lambda: sky(prepare=text),
        lambda: sky(install=Install(requirement=text)),
    ):
        with pytest.raises(UserError):
            make()


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a;b", "h:p", "$(x)", "a\nb"])
def test_a_host_is_a_host(host):
    with pytest.raises(UserError, match="host for ssh"):
        check_host(host)


def test_job_names():
    assert job_name("out/My run!") == "out-My-run"
    assert job_name("…") == "onecard"
    assert len(job_name("x" * 500)) <= 48


def test_what_is_installed_there(tmp_path):
    assert install_of("onecard[train]==9") == Install(requirement="onecard[train]==9")
    assert not install_of("none").needed
    assert install_of(None).needed
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "data").mkdir()
    found = install_of(str(tmp_path))
    assert found.files == ("pyproject.toml",)
    for missing in ("./nothing", str(tmp_path / "data"), "./x.whl"):
        with pytest.raises(UserError):
            install_of(missing)


REMOTE = ["--prepare", "true", "--install", "none"]
SKY = ["--on", "skypilot", "--gpu", "MI300X", "--bucket", "s3://b", *REMOTE]
SSH = ["--on", "ssh", "--gpu", "RTX 4090", *REMOTE]


def message_of(words, capsys) -> str:
    code = main(["launch", "gpt2", *words])
    err = capsys.readouterr().err
    assert code == 2, err
    assert err.count("\n") == 2, err  # a sentence and a hint
    return err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on", "pbs"], "invalid choice: 'pbs'"),
        ([], "--on"),
        (SSH, "needs --host"),
        ([*SSH, "--host", "a b"], "not a host"),
        (["--on", "ssh", "--host", "h"], "nothing brings the data"),
        ([*SSH, "--host", "h", "--upload", "nowhere"], "no folder nowhere"),
        ([*SSH, "--host", "h", "--nodes", "2"], "--nodes is not for --on ssh"),
        (["--on", "skypilot", *REMOTE], "needs --bucket"),
        ([*SKY, "--bucket", "a b"], "not a bucket"),
        (
            ["RTX 4070" if word == "MI300X" else word for word in SKY],
            "what SkyPilot calls the RTX 4070",
        ),
        ([*SKY, "--accelerator", "a b"], "not a name of SkyPilot's"),
        ([*SKY, "--budget", "30EUR"], "in EUR"),
        ([*SKY, "--budget", "0.01USD"], "minutes"),
        ([*SKY, "--budget", "lots"], "lots"),
        ([*SKY, "--budget", "30USD", "--max-price", "-1"], "no price"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--cards", "1000"], "more than the 512 rows"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--cards", "0"], "0 cards"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--cards", "3"], "cannot be shared by 3 cards"),
        (["--on", "slurm", "--gpu", "GTX 1050", "--n_embd=4608", "--n_head=36"], "GTX 1050"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--host", "h"], "--host is not for --on slurm"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--sbatch", "gpu"], "not an option of sbatch"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--out", "no/where"], "there is no folder"),
        (["--on", "slurm", "--gpu", "A100 80GB", "--time", "soon"], "soon"),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in message_of(words, capsys)
    assert not list(tmp_path.iterdir())


def test_programs_that_are_missing_are_said_before_anything_is_written(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm = ["--on", "slurm", "--gpu", "A100 80GB"]
    for words, name in ((slurm, "sbatch"), (SKY, "sky"), ([*SSH, "--host", "h"], "ssh")):
        assert f"{name} is not installed here" in message_of([*words, "--submit"], capsys)
    assert not list(tmp_path.iterdir())


def test_the_plan_is_shown_and_a_file_is_not_replaced_unasked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "gpt2", "--on", "slurm", "--gpu", "MI300X", "--cards", "2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "2 × MI300X: about" in shown
    assert all(word in shown for word in ("GiB", "$", "2026-05-18"))
    assert (tmp_path / "out-gpt2.sbatch").is_file()
    assert "exists already" in message_of(words[2:], capsys)
    assert main([*words, "--force", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "onecard.launch/1"
    assert answer["command"] == ["sbatch", "./out-gpt2.sbatch"]
    hours = answer["seconds"]["mid"] / 3600
    assert answer["cost"]["amount"] == pytest.approx(2 * hours * 1.99)


def test_a_budget_ends_the_run_in_time(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["launch", "gpt2", *SKY, "--budget", "10USD", "--max-price", "2.5"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_hours"] == 4.0
    task = yaml((tmp_path / "out-gpt2.sky.yaml").read_text())
    assert "max_hours = 4.0" in task["run"]
    assert task["resources"]["max_hourly_cost"] == 2.5
    assert main([*words, "--force"]) == 0
    assert "max_hours = 4 ends it earlier" in capsys.readouterr().out


def test_a_run_at_home_is_not_copied_over(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out-gpt2").mkdir()
    (tmp_path / "out-gpt2" / "run.json").write_text("{}")
    assert "holds a run already" in message_of([*SSH, "--host", "h"], capsys)


def test_recommend_ends_with_a_launch_that_can_be_typed(capsys, tmp_path, monkeypatch):
    import shlex

    monkeypatch.chdir(tmp_path)
    words = ["recommend", "--gpu", "RTX 4070", "--hours", "20", "--rent", "--out", "run.toml"]
    assert main([*words, "--markdown", "--lang", "en"]) == 0
    shown = capsys.readouterr().out.replace("\\", "")  # Markdown's escapes
    command = re.findall(r"`(onecard launch .*?)`", shown)[-1]
    typed = shlex.split(command.replace("BUCKET", "runs"))
    assert main([*typed[1:], "--install", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["card"] == find_gpu(typed[typed.index("--gpu") + 1]).name
