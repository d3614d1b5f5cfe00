"""Hand a job file to its engine: sbatch, SkyPilot's client, or the shell that runs the ssh script."""

import re
import shutil
import subprocess
from pathlib import Path

from onecard.errors import RunFailure, UserError

_PROGRAMS = {"slurm": "sbatch", "skypilot": "sky", "ssh": "ssh"}
_ELSEWHERE = {
    "slurm": "leave --submit out, and run `sbatch FILE` on a machine of the cluster",
    "skypilot": '`pip install "skypilot[aws]"` (or your cloud\'s name) brings it; without --submit the file is only written',
    "ssh": "install OpenSSH's client, or leave --submit out",
}


def command(engine: str, path: Path) -> list[str]:
    """What starts the job; `./` keeps a name from being taken for an option."""
    file = str(path) if path.is_absolute() else f"./{path}"
    return {
        "slurm": ["sbatch", file],
        "skypilot": ["sky", "jobs", "launch", "--yes", file],
        "ssh": ["sh", file],
    }[engine]


def require_program(engine: str) -> None:
    """Checked before anything is written."""
    program = _PROGRAMS[engine]
    if shutil.which(program) is None:
        raise UserError(f"{program} is not installed here", hint=_ELSEWHERE[engine])


def submit(engine: str, path: Path, quiet: bool = False) -> str | None:
    """Start the job; Slurm's job id, None for engines that are followed until they end."""
    if engine == "slurm":
        done = subprocess.run(command(engine, path), capture_output=True, text=True)
        match = re.search(r"Submitted batch job (\d+)", done.stdout)
        if done.returncode or match is None:
            why = (done.stderr or done.stdout).strip().splitlines()
            raise RunFailure(
                f"sbatch refused the job: {why[-1] if why else done.returncode}",
                hint=f"{path} is written; sbatch's options are in its first lines",
            )
        return match[1]
    code = subprocess.run(
        command(engine, path), stdout=subprocess.DEVNULL if quiet else None
    ).returncode
    if code:
        raise RunFailure(
            f"`{' '.join(command(engine, path))}` ended with code {code}",
            hint="its own words are above; the same command continues",
        )
    return None
