"""`onecard …` in processes of their own that begin with torch imported: forked from one that has it. To import it takes longer
than most of what the tests ask for. Where a system cannot fork, they are started from nothing.

    process = start_onecard("train", "run.toml")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
"""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()
PRELOADED = ["torch._dynamo", "onecard.cli.train", "onecard.train.run.loop"]


def start_onecard(
    *words: object,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    file_limit: int | None = None,
) -> "Forked | subprocess.Popen[str]":
    """`file_limit`: bytes; larger files fail as on a full disk."""
    command = list(map(str, words))
    if CAN_FORK:
        return Forked(command, dict(env), str(cwd or Path.cwd()), file_limit)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-m", "onecard", *command], env=dict(env), cwd=cwd, **pipes
    )


class Forked:
    """As subprocess.Popen: real signals, exit codes and limits."""

    def __init__(
        self, command: list[str], environment: dict[str, str], cwd: str, file_limit: int | None
    ):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(PRELOADED)
        self._place = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        arguments = (command, environment, cwd, self._place, file_limit)
        self._process = server.Process(target=_main, args=arguments)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("onecard", timeout)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (Path(self._place, name).read_text() for name in ("out", "err"))
        return out, err


def _main(
    words: list[str], environment: dict[str, str], cwd: str, place: str, file_limit: int | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        file = os.open(Path(place, name), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, stream.fileno())
    if file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    from onecard.cli import main

    sys.exit(main(words))
