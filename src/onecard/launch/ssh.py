"""A script for a rented machine over ssh: it sets the machine up, trains there and keeps the run's folder here in step.

The script runs at home, in any POSIX shell. What trains is detached from the connection (nohup): a dropped one, a closed
laptop or Ctrl-C loses nothing, and the same script started again looks on, or starts the run where it had stopped.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from onecard.errors import UserError
from onecard.launch.install import Install, wheel_name
from onecard.launch.job import Job, plain
from onecard.launch.shell import config_written, data_folder, quoted, training
from onecard.launch.ssh_script import HELPERS, START, WATCH

_JOB_END = "END_OF_ONECARD_JOB"
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
_OPTION = re.compile(r"[A-Za-z]+=[A-Za-z0-9_./@%+,-]+")


@dataclass(frozen=True)
class SshOptions:
    host: str  # user@address
    install: Install
    port: int | None = None
    python: str = "python3"  # there
    set_up: tuple[str, ...] = ()  # lines of shell for that machine, as the user wrote them
    prepare: str | None = None  # a line of shell that makes the data there
    upload: Path | None = None  # the prepared data, sent along
    every_seconds: int = 300
    ssh_options: tuple[str, ...] = ()


def ssh_text(job: Job, options: SshOptions) -> str:
    settings = [
        f"host={check_host(options.host)}",
        f"there=onecard-jobs/{job.name}",
        f"here={quoted(str(Path(job.config.out_dir).absolute()), 'out_dir')}",
        f"every={options.every_seconds}",
        f"ssh='{_ssh(options)}'",
    ]
    return "\n".join(
        [
            "#!/bin/sh",
            f"# {job.name}: made by `onecard launch`",
            "# run it here: sh FILE         starts the job there, or looks on where it runs already",
            "#              sh FILE stop    asks it to save and end",
            "set -u",
            *settings,
            HELPERS,
            "start() {",
            *_sent(options),
            f"connect \"cat > $there/job.sh\" <<'{_JOB_END}' || fail 'the job could not be sent'",
            _job(job, options) + _JOB_END,
            START,
            "}",
            WATCH,
        ]
    )


def check_host(host: str) -> str:
    """user@address for ssh; never something that ssh, rsync or a shell would take for anything else."""
    if not _HOST.fullmatch(host):
        raise UserError(
            f"{host!r} is not a host for ssh",
            hint="write it like user@address, with the option `port=N` for another port",
        )
    return host


def _ssh(options: SshOptions) -> str:
    """The command, as words without blanks: rsync takes it as one text too."""
    words = ["ssh", "-o ServerAliveInterval=30", "-o ConnectTimeout=20"]
    for each in options.ssh_options:
        if not _OPTION.fullmatch(each):
            raise UserError(
                f"{each!r} is not an option of ssh without blanks and quotes",
                hint="such as the option `ssh_option=IdentityFile=/home/me/key`; others belong in ~/.ssh/config",
            )
        words.append(f"-o {each}")
    if options.port is not None:
        words.append(f"-p {options.port}")
    return " ".join(words)


def _sent(options: SshOptions) -> list[str]:
    """Lines that copy what the machine needs; a name there has no characters that a shell could read."""
    lines = []
    local = options.install.local
    if local is not None and local.is_dir():
        files = " ".join(options.install.files)
        lines.append(f"send_folder {quoted(str(local), '--install')} source {files}")
    elif local is not None:
        lines.append(f"send_file {quoted(str(local), '--install')} source/{wheel_name(local)}")
    if options.upload is not None:
        folder = str(options.upload.resolve())
        lines.append(f"send_folder {quoted(folder, '--upload')} {data_folder(options.upload)} .")
    return lines


def _job(job: Job, options: SshOptions) -> str:
    """What runs on the rented machine."""
    python = quoted(options.python, "--python")
    lines = [
        'cd "$(dirname "$0")" || exit 1',
        "trap 'echo $? > job.code' EXIT",
        "set -e",
        "export PYTHONUNBUFFERED=1",
        *(plain(line, "the option `set_up`") for line in options.set_up),
    ]
    if options.install.needed:
        lines += [
            # the image's own torch, which suits its driver, serves where it is recent enough
            f"[ -x venv/bin/python ] || {python} -m venv --system-site-packages venv",
            'PATH="$PWD/venv/bin:$PATH"',
            "export PATH",
            f"python -m pip --disable-pip-version-check install -q {_requirement(options.install)}",
        ]
        python = "python"
    if options.prepare is not None:
        lines.append(plain(options.prepare, "the option `prepare`"))
    lines += [
        config_written(job, options.upload),
        training(job, python, "run.toml") + " &",
        "echo $! > train.pid",
        'wait "$!"',
    ]
    return "\n".join(lines) + "\n"


def _requirement(install: Install) -> str:
    if install.local is None:
        return quoted(install.requirement or "", "--install")
    folder = "./source" if install.local.is_dir() else f"./source/{wheel_name(install.local)}"
    return f"'{folder}[train]'"
