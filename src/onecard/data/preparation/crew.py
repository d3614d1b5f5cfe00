"""The worker processes: started as plain commands, given JSON lines, ended when the parent ends.

with Crew(2, setup) as crew:
    for answer in crew.run(jobs): ...
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onecard.errors import RunFailure, UserError

Job = dict[str, Any]


class Crew:
    """`size` workers. A job goes to a worker that is free; answers come back as they are ready."""

    def __init__(self, size: int, setup: Job):
        self.setup = setup
        self.size = size
        self.events: queue.Queue[tuple[int, Job | None]] = queue.Queue()
        self.workers: list[subprocess.Popen[str]] = []
        self.free: list[int] = []  # those that have answered every job

    def __enter__(self) -> "Crew":
        home = str(Path(__file__).resolve().parents[2])  # so that a worker finds this very package
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        # One thread each: the crew is what is parallel (rayon is tokenizers' pool; fastokens has its own, whose second
        # thread is in the other workers' way). The rest keeps freed memory for the next batch: giving it back and
        # faulting it in again took a fifth of the system time (0.47 to 0.39 s on 72 MB).
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONUTF8": "1",
            "RAYON_NUM_THREADS": "1",
            "FASTOKENS_BPE_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "MALLOC_MMAP_THRESHOLD_": str(1 << 28),
            "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
            "MALLOC_TOP_PAD_": str(1 << 25),
        }
        for index in range(self.size):
            worker = subprocess.Popen(
                [sys.executable, "-m", "onecard.data.preparation.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
            )
            self.workers.append(worker)
            threading.Thread(target=self._listen, args=(index, worker), daemon=True).start()
            self._send(index, self.setup)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.kill()
        for worker in self.workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()

    def run(
        self, next_job: Callable[[], Job | None], idle: Callable[[], None] | None = None
    ) -> Iterator[Job]:
        """Answers until `next_job` has given its last (None) and all are in.

        `next_job` may raise `NotYet`; then it is asked again at the next answer, or every tenth of a second.
        """
        more, out = True, 0
        while more or out:
            while more and self.free:
                try:
                    job = next_job()
                except NotYet:
                    break
                if job is None:
                    more = False
                else:
                    self._send(self.free.pop(), job)
                    out += 1
            if not more and not out:
                return
            try:
                index, answer = self.events.get(timeout=0.1)
            except queue.Empty:
                if idle is not None:
                    idle()
                continue
            if answer is None:
                raise _died(self.workers[index])
            if "error" in answer:
                raise _raised(answer)
            self.free.append(index)
            if "done" in answer:
                out -= 1
                yield answer

    def _listen(self, index: int, worker: "subprocess.Popen[str]") -> None:
        assert worker.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in worker.stdout:
                self.events.put((index, json.loads(line)))
        self.events.put((index, None))

    def _send(self, index: int, job: Job) -> None:
        pipe = self.workers[index].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(job) + "\n")
            pipe.flush()
        except OSError:
            raise _died(self.workers[index]) from None


class NotYet(Exception):
    """The next job is not ready."""


def _died(worker: "subprocess.Popen[str]") -> RunFailure:
    code = worker.wait()
    why = f"signal {-code}" if code < 0 else f"exit code {code}"
    return RunFailure(
        f"a tokenising process died ({why})",
        hint="nothing is lost: the same command continues; with little memory choose fewer with the option `workers`",
    )


def _raised(answer: Job) -> Exception:
    kinds = {"user": UserError, "run": RunFailure}
    if answer["error"] in kinds:
        return kinds[answer["error"]](answer["message"], answer["hint"])
    return RuntimeError(f"{answer['message']}\n{answer['hint']}")
