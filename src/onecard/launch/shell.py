"""Pieces of shell that the engines share: quoting, the training command, a config carried inside a script.

>>> quoted("a b; $(rm)")
"'a b; $(rm)'"
"""

import shlex
from pathlib import Path

from onecard.config import to_toml
from onecard.launch.job import Job, job_name, plain

SECONDS_TO_SAVE = 110  # torchrun's own are 30; less than what Slurm gives before the time limit
_END = "END_OF_ONECARD_CONFIG"


def quoted(text: str, what: str = "a name") -> str:
    """One word of a POSIX shell, whatever it holds; control characters are refused."""
    return shlex.quote(plain(text, what))


def training(job: Job, python: str, config: str, rendezvous: str = "--standalone") -> str:
    """The command that starts or continues with the run: plain Python for one process, torchrun for more, and for
    restarts. When torchrun is asked to end, or one of its processes ends, the others have time to save.

    `python` and `config` are words of the shell already.
    """
    train = f"-m onecard train {config} --continue"
    if not job.by_torchrun:
        return f"{python} {train}"
    again = f" --max-restarts={job.restarts}" if job.restarts else ""
    return (
        f"env TORCH_ELASTIC_SHUTDOWN_TIMEOUT={SECONDS_TO_SAVE} \\\n"
        f"    {python} -m torch.distributed.run {rendezvous} --nproc_per_node={job.cards}{again} \\\n"
        f"    {train}"
    )


def config_written(job: Job, upload: Path | None) -> str:
    """Lines that write the config to run.toml on a rented machine, with the folders of that place."""
    config = job.config.replace(out_dir="run")
    if upload is not None:
        config = config.replace(dataset=data_folder(upload))
    text = to_toml(config, head=f"{job.name}: made by `onecard launch`")
    assert _END not in text.splitlines()  # strings of TOML are one line in quotes
    return f"cat > run.toml <<'{_END}'\n{text}{_END}"


def data_folder(upload: Path) -> str:
    """Where uploaded data lies on the machine that trains: a name that no shell reads anything into."""
    return f"data/{job_name(upload.resolve().name)}"
