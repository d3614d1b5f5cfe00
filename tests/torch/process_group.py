"""Runs of several processes on this machine, many after one another in the same processes: torch is imported once in each.

    with Processes() as several:
        several.train(config, 2)
        several.train(config, 4, resume=True)  # two more are started

Each job is `train(config)` as torchrun would start it, in a process group of its own.
"""

import functools
import json
import os
import socket
import sys
from dataclasses import asdict

from forked import Piped

SILENCE = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}


class Processes:
    def __init__(self) -> None:
        self._running: list[Piped] = []

    def _started(self, count: int) -> list[Piped]:
        environment = {**os.environ, **SILENCE, "MASTER_ADDR": "127.0.0.1"}
        self._running += [
            Piped("process_group", "serve", {**environment, "RANK": str(rank)})
            for rank in range(len(self._running), count)
        ]
        return self._running[:count]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_) -> None:
        for process in self._running:
            process.kill()  # nothing is under way, or a test failed
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def train(
        self, config, processes: int, machines: int = 1, fault: str = "", slow: float = 0, **more
    ) -> list[str]:
        """Each process's last words: "finished", or its error. `fault`: as in train/run/faults.py, or where one process
        runs out of memory within a layer, forward@CALL:RANK or backward@CALL:RANK; full@RANK: a disk without room for its
        part; rows@STEP:RANK and val@CALL:RANK: data that cannot be read; copy@0: no room for a copy of the model;
        benchmark@SECONDS: one that takes longer than exchanges wait, which is three seconds less. `slow`: seconds that a process takes to write a file."""
        job = {"config": asdict(config), "fault": fault, "slow": slow, "more": more}
        return self._answers(job, processes, machines)

    def energy(self, processes: int) -> list[str]:
        """The watts and kWh that each counts for all, where they draw 100 W, 200 W, … for 36 s."""
        return self._answers({"energy": True}, processes)

    def _answers(self, job: dict, processes: int, machines: int = 1) -> list[str]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            job["port"] = found.getsockname()[1]
        job |= {"processes": processes, "machines": machines}
        chosen = self._started(processes)
        for process in chosen:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        return [process.stdout.readline().strip() for process in chosen]


def serve() -> None:
    import torch

    from onecard.config import RunConfig
    from onecard.errors import OnecardError
    from onecard.runs import record
    from onecard.train.run import loop
    from onecard.train.run.faults import Faults

    torch.set_num_threads(1)
    loop.write_sample = functools.partial(loop.write_sample, count=8)  # as in conftest.py,
    record.git_state = functools.cache(record.git_state)  # and this
    rank, answers, sys.stdout = int(os.environ["RANK"]), sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        os.environ["WORLD_SIZE"] = str(job["processes"])
        os.environ["LOCAL_WORLD_SIZE"] = str(job["processes"] // job["machines"])
        os.environ["MASTER_PORT"] = str(job["port"])
        if "energy" in job:
            answers.write(f"{energy_in_all()}\n")
            answers.flush()
            continue
        fault = job["fault"]
        inside = fault.startswith(
            ("forward", "backward", "full", "rows", "val", "copy", "benchmark")
        )
        try:
            with (
                memory_gone(fault if fault.startswith(("forward", "backward")) else "", rank),
                disk(job["slow"], fault == f"full@{rank}"),
                unreadable(fault, rank),
                no_room(fault, rank),
            ):
                if fault.startswith("benchmark"):
                    job["more"]["benchmark"] = slow_benchmark(float(fault.partition("@")[2]))
                faults = Faults.parse("" if inside else fault, rank)
                config = RunConfig(**job["config"])
                answer = loop.train(config, faults=faults, **job["more"]).state
        except OnecardError as error:
            answer = f"{type(error).__name__}: {error.message}"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        answers.write(answer.replace("\n", " ") + "\n")
        answers.flush()


def energy_in_all() -> tuple[float, float]:
    import torch

    from onecard.train.run.energy import EnergyMeter
    from onecard.train.run.workers import Workers

    with Workers("gloo", torch.device("cpu")) as workers:
        ticks, watts = iter([0.0, 36.0]), 100.0 * (workers.rank + 1)
        total, kwh = EnergyMeter(lambda: watts, workers, lambda: next(ticks)).read_all()
        return total, round(kwh, 9)


def memory_gone(fault: str, rank: int):
    """Out of memory at the n-th call of an MLP with gradients, or in its backward pass; in one process."""
    import contextlib
    from unittest import mock

    import torch

    from onecard.model import gpt2

    where, _, at = fault.partition("@")
    call, _, only = at.partition(":")
    if not only or int(only) != rank:
        return contextlib.nullcontext()
    real, calls = gpt2.MLP.forward, [0]

    def gone(*_):
        raise torch.OutOfMemoryError("out of memory (ordered by the test)")

    def forward(self, x):
        if torch.is_grad_enabled():
            calls[0] += 1
        now = calls[0] == int(call)
        if now and where == "forward":
            gone()
        y = real(self, x)
        if now and y.requires_grad:
            y.register_hook(gone)
        return y

    return mock.patch.object(gpt2.MLP, "forward", forward)


def slow_benchmark(seconds: float):
    import datetime
    import time

    from onecard.train.run import workers

    workers._TIMEOUT = datetime.timedelta(seconds=seconds - 3)

    def benchmark(model, data, step):
        time.sleep(seconds)
        return {"slow": {"acc": 0.5}}

    return benchmark


def unreadable(fault: str, rank: int):
    """A shard that is gone when the rows of a step, or the windows of the n-th evaluation batch, are read; in one process."""
    import contextlib
    from unittest import mock

    from onecard.errors import RunFailure
    from onecard.train.io.loader import Loader
    from onecard.train.run import validation

    kind, _, at = fault.partition("@")
    number, _, only = at.partition(":")
    if kind not in ("rows", "val") or int(only) != rank:
        return contextlib.nullcontext()
    calls = [0]

    def failing(real):
        def read(first, step, *more):
            calls[0] += 1
            if (step if kind == "rows" else calls[0]) == int(number):
                raise RunFailure("the shard is gone (ordered by the test)")
            return real(first, step, *more)

        return read

    if kind == "rows":
        return mock.patch.object(Loader, "rows", failing(Loader.rows))
    return mock.patch.object(validation, "read_windows", failing(validation.read_windows))


def no_room(fault: str, rank: int):
    """copy@RANK: none in the computer's memory for the model's copy, from the second on."""
    import contextlib
    from unittest import mock

    from onecard.train.run.sharding import Sharding

    if fault != f"copy@{rank}":
        return contextlib.nullcontext()
    real, calls = Sharding._empty_model, [0]

    def empty(self):
        calls[0] += 1
        if calls[0] > 1:  # the first is the preflight's
            raise MemoryError("ordered by the test")
        return real(self)

    return mock.patch.object(Sharding, "_empty_model", empty)


def disk(slow: float, full: bool):
    """Files that take long to write, or find no room."""
    import errno
    import time
    from unittest import mock

    from onecard.train.run import part_saver

    real = part_saver.write_tensors

    def write(path, tensors):
        time.sleep(slow)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, tensors)

    return mock.patch.object(part_saver, "write_tensors", write)
