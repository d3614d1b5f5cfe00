"""One worker process: reads jobs as JSON lines, writes answers as JSON lines, and ends with its parent.

Started as `python -m onecard.data.preparation.worker`; a closed standard input means that the parent is gone, however
it ended. The first line is the set-up. Libraries are loaded before the thread that waits for jobs starts: on Windows,
loading one while another thread reads a piped standard input can block for ever (numpy issue 24290).
"""

import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from onecard.data.preparation.order import Order, write_shard
from onecard.data.preparation.parts import Cutting, PartBuilder, open_part, part_path
from onecard.data.sources.documents import batches
from onecard.data.sources.unit import Reading, Unit
from onecard.data.tokenizers.load import load_tokenizer
from onecard.errors import OnecardError, UserError
from onecard.files import DISK_FULL

PART_BYTES = 96 * 1024 * 1024  # of text in one part file; about 42 MB of tokens
_MOST_MEMORY = 6 * 2**30  # a worker takes about 300 MB; a hostile file must not take the machine


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not mix with the answers
    # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    setup = sys.stdin.readline()
    if not setup:
        return
    worker: _Worker | None = None
    try:
        worker = _Worker(json.loads(setup))
        _answer(out, {"ready": True})
    except BaseException as error:
        _answer(out, _failure(error))
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        job = jobs.get()
        try:
            assert worker is not None
            answer = worker.encode(job) if job["op"] == "encode" else worker.shard(job)
        except BaseException as error:
            answer = _failure(error)
        _answer(out, answer)


def _answer(out: IO[str], answer: dict[str, Any]) -> None:
    try:
        out.write(json.dumps(answer) + "\n")
        out.flush()
    except OSError:  # the parent is gone, and nobody reads this or an error
        os._exit(1)


def _limit_memory() -> None:
    """A last resort where the system has one: too much memory is then an error here, not a machine that swaps."""
    if sys.platform == "linux":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == resource.RLIM_INFINITY or soft > _MOST_MEMORY:
            resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, hard))


def _listen(jobs: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        jobs.put(json.loads(line))
    os._exit(0)


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, OnecardError):
        kind = "user" if isinstance(error, UserError) else "run"
        return {"error": kind, "message": error.message, "hint": error.hint}
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return {
            "error": "run",
            "message": f"the disk is full ({error.strerror})",
            "hint": "free some space, then run the same command: it continues where it stopped",
        }
    if isinstance(error, OSError):
        return {
            "error": "run",
            "message": f"{error.filename or 'a file'}: {error.strerror or error}",
            "hint": None,
        }
    if isinstance(error, MemoryError):
        return {
            "error": "run",
            "message": "out of memory",
            "hint": "choose fewer with the option `workers`; the same command continues",
        }
    return {
        "error": "bug",
        "message": f"{type(error).__name__}: {error}",
        "hint": traceback.format_exc(),
    }


class _Worker:
    def __init__(self, setup: dict[str, Any]):
        for library in setup["libraries"]:
            importlib.import_module(library)
        self.work = Path(setup["work"])
        self.readings = [Reading.from_json(raw) for raw in setup["readings"]]
        self.cuttings = [Cutting(**raw) for raw in setup["cuttings"]]
        self.part_bytes = int(setup.get("part_bytes") or PART_BYTES)
        tokenizer = load_tokenizer(setup["tokenizer"], self.work)
        tokenizer.encode_batch([""])  # loads the engine now, not in the first job
        self.builder = PartBuilder(tokenizer, self.cuttings[0])
        self.order: Order | None = None

    def encode(self, job: dict[str, Any]) -> dict[str, Any]:
        """One unit into part files; parts that an earlier run finished are kept."""
        unit, limit = Unit.from_json(job["unit"]), job.get("limit")
        number = tokens = skip = 0
        while (path := part_path(self.work, unit.index, number)).exists():
            head = open_part(path).head
            skip, tokens, number = skip + head["batches"], tokens + head["tokens"], number + 1
        builder = self.builder
        builder.clear()
        builder.cutting = self.cuttings[unit.source]
        for batch in batches(unit, self.readings[unit.source]):
            if skip:
                skip -= 1
                continue
            builder.add(batch)
            if limit is not None and tokens + builder.tokens >= limit:
                break
            if builder.held_bytes >= self.part_bytes:
                tokens += builder.tokens
                path = part_path(self.work, unit.index, number)
                builder.write(path, last=False, source=unit.source)
                number += 1
        path = part_path(self.work, unit.index, number)
        builder.write(path, last=True, source=unit.source)
        return {"done": unit.index}

    def shard(self, job: dict[str, Any]) -> dict[str, Any]:
        if self.order is None:
            self.order = Order(self.work)
        path = self.work / "shards" / job["file"]
        return {"done": write_shard(self.order, job["split"], job["start"], job["stop"], path)}


if __name__ == "__main__":
    main()
