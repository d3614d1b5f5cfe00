"""Processes of their own that begin with everything imported: forked from one that has it. To import torch, or to read
GPT-2's vocabulary, takes longer than most of what the tests ask for. Where a system cannot fork, they are started from nothing.

    process = start_onecard("train", "run.toml")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
"""

import functools
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

CAN_FORK = "forkserver" in multiprocessing.get_all_start_methods()
PRELOADED = ["torch._dynamo", "onecard.cli.train", "onecard.train.run.loop", "preloaded"]
# no threads before a fork; data/preparation/crew.py sets these for its workers
ONE_THREAD = {
    f"{library}_THREADS": "1"
    for library in ("RAYON_NUM", "FASTOKENS_BPE", "OMP_NUM", "OPENBLAS_NUM")
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1"]


@functools.cache
def _server() -> Any:
    from multiprocessing import forkserver

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with mock.patch.dict(os.environ, {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(path)}):
        forkserver.ensure_running()
    return context


def started(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A call in a process of its own; its exit code is `.exitcode` after `.join()`. One that was forked itself has everything
    imported, and is forked again."""
    if CAN_FORK:
        context = multiprocessing.get_context("fork") if _is_forked() else _server()
    else:
        context = multiprocessing.get_context("spawn")
    process: BaseProcess = context.Process(target=function, args=arguments)
    process.start()
    return process


def _is_forked() -> bool:
    return CAN_FORK and multiprocessing.parent_process() is not None


def start_onecard(
    *words: object,
    env: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    file_limit: int | None = None,
    first: str = "",
) -> "Forked | subprocess.Popen[str]":
    """`file_limit`: bytes; larger files fail as on a full disk. `first`: Python to run before the command."""
    command = list(map(str, words))
    if CAN_FORK:
        return Forked(_onecard, command, dict(env), str(cwd or Path.cwd()), file_limit, first)
    last = "import sys; from onecard.cli import main; sys.exit(main(sys.argv[1:]))"
    return from_nothing(["-c", f"{first}\n{last}", *command], env, cwd)


def exit_code_of(*words: object, out: str, err: str) -> int | None:
    """Of a command whose output and errors go to these files, /dev/full for one, until Python itself has ended."""
    process = started(_to_the_end, list(map(str, words)), out, err, dict(os.environ))
    process.join(120)
    return process.exitcode


def _to_the_end(words: list[str], out: str, err: str, environment: dict[str, str]) -> None:
    import ctypes

    from onecard.cli import main

    _begin(environment, os.getcwd())
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), number)
    # a process of multiprocessing ends without Python's own end, at which the streams are flushed a last time
    ctypes.pythonapi.Py_Exit(main(words))


def start_torchrun(
    *words: object, env: Mapping[str, str] = os.environ, fork: bool = True
) -> "Forked | subprocess.Popen[str]":
    """torchrun's own launcher; forked, its workers are forked from it. `words`: its options and `-m onecard …`."""
    command = list(map(str, words))
    if CAN_FORK and fork:
        return Forked(_torchrun, [*TORCHRUN[2:], *command], dict(env), str(Path.cwd()))
    return from_nothing([*TORCHRUN, *command], env)


def from_nothing(
    command: list[str], env: Mapping[str, str], cwd: Path | None = None
) -> "subprocess.Popen[str]":
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *command], env=dict(env), cwd=cwd, **pipes)


class Forked:
    """As subprocess.Popen: real signals, exit codes and limits."""

    def __init__(self, function: Callable[..., None], *arguments: Any):
        self._place = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
        self._process = started(_written_down, self._place, function, *arguments)

    @property
    def pid(self) -> int | None:
        return self._process.pid

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


def _written_down(place: str, function: Callable[..., None], *arguments: Any) -> None:
    for stream, name in ((sys.stdout, "out"), (sys.stderr, "err")):
        file = os.open(Path(place, name), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(file, stream.fileno())
    function(*arguments)


def _begin(environment: dict[str, str], cwd: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)


def _onecard(
    words: list[str],
    environment: dict[str, str],
    cwd: str,
    file_limit: int | None = None,
    first: str = "",
) -> None:
    _begin(environment, cwd)
    quicken_data_workers()
    exec(first)
    if file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    from onecard.cli import main

    sys.exit(main(words))


def _torchrun(words: list[str], environment: dict[str, str], cwd: str) -> None:
    _begin(environment, cwd)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.SubprocessHandler._popen = lambda handler, command, env: _Rank(command, env)
    run.main(words)


class _Rank:
    """What torchrun asks of a worker's subprocess.Popen."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]):
        words = command[command.index("onecard") + 1 :]
        self.args, self.returncode = command, None
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for name in ("SIGTERM", "SIGHUP", "SIGQUIT"):  # the launcher's own
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = 1
            try:
                _onecard(list(words), environment, os.getcwd())
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)  # nothing of the launcher's is ended here

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        import time

        end = time.monotonic() + (3600 if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        return self.returncode


def quicken_data_workers() -> None:
    """Data is prepared in processes that need not import everything first."""
    from onecard.data.preparation import crew

    def forked(command: list[str], env: dict[str, str], **pipes: object) -> Piped:
        assert command[1] == "-m"
        return Piped(command[2], "main", env)

    crew.subprocess = types.SimpleNamespace(Popen=forked, PIPE=None)


class Piped:
    """A function of a module in a process with pipes, of which subprocess.Popen gives these: real exit codes and kills."""

    def __init__(self, module: str, function: str, environment: Mapping[str, str]):
        questions, to_process = os.pipe()
        from_process, answers = os.pipe()
        ours = (to_process, from_process) if _is_forked() else ()
        there = (_Fd(questions), _Fd(answers), ours, dict(environment), os.getcwd())
        self._process = started(_piped, *there, module, function)
        os.close(questions)
        os.close(answers)
        self.stdin = os.fdopen(to_process, "w", encoding="utf-8")
        self.stdout = os.fdopen(from_process, encoding="utf-8")

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode


class _Fd:
    """Has the number that the file has in the process."""

    def __init__(self, number: int):
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:  # on its way through the server
        return _number_there, (reduction.DupFd(self.number),)


def _number_there(inherited: Any) -> _Fd:
    return _Fd(inherited.detach())


def _piped(
    questions: _Fd,
    answers: _Fd,
    ours: tuple[int, ...],
    environment: dict[str, str],
    cwd: str,
    module: str,
    function: str,
) -> None:
    _begin(environment, cwd)
    for number in ours:  # the other ends, which a fork has too
        os.close(number)
    for file, number in ((questions, 0), (answers, 1)):
        os.dup2(file.number, number)
        os.close(file.number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    getattr(importlib.import_module(module), function)()
