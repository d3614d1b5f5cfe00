"""Checkpoints of a model that is sharded: every process writes its own part, in the background, while the run continues.

`begin` copies this process's part to the host; a thread writes it into a folder aside. When all have written theirs, the
first process writes state.json and gives the folder its name: until then no reader sees it, and a process that dies
leaves the checkpoint before. There is one at a time: the next waits for it.

On several machines the first one's processes write; the others hold copies of the same parts.
"""

import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from onecard.model.checkpoint import MODEL, OPTIMIZER, SCHEMA_PARTS, Writing, part_name
from onecard.model.tensor_file import NotFiniteError, not_finite, write_tensors
from onecard.train.optim.sharded_rows import Slices
from onecard.train.run.outputs import in_words
from onecard.train.run.workers import Workers

_FILE = struct.Struct("<Q32s")  # bytes and checksum


@dataclass(frozen=True)
class SavedParts:
    """How it went."""

    step: int
    seconds: float
    folder: Path
    why: str | None  # it is not there; None: it is


class PartSaver:
    """All processes call the same methods in the same order."""

    def __init__(self, workers: Workers, slices: Slices, bits: int):
        self._workers, self._slices, self._bits = workers, slices, bits
        self._group = dist.new_group(backend="gloo")  # the threads' own
        self._writes = workers.rank < slices.count  # the first machine
        self._thread: threading.Thread | None = None
        self._answer: SavedParts | None = None

    def begin(
        self,
        out_dir: Path,
        step: int,
        model: Mapping[str, Tensor],
        optimizer: Mapping[str, Tensor],
        record: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Copies, and the folder aside; then a thread writes. `record` is what state.json holds beside the tensors, asked
        in the first process. NotFiniteError or OSError in every process where one cannot begin."""
        assert self._thread is None
        bad = not_finite((*model.items(), *optimizer.items()))
        if self._workers.any(bad is not None)[0]:
            raise NotFiniteError(bad or "a number in another process")
        copies: dict[str, dict[str, Tensor]] = {}
        state: dict[str, Any] = {"step": step}
        writing, failure = None, None
        try:
            if self._writes:
                copies = {MODEL: self._copied(model), OPTIMIZER: self._copied(optimizer)}
            if self._workers.first:
                state |= record()
                writing = Writing.begin(out_dir, step)
        except Exception as error:  # the others are waiting
            failure = error
        if self._workers.any(failure is not None)[0]:
            if writing is not None:
                writing.give_up()
            why = "another process cannot begin it" if failure is None else in_words(failure)
            raise OSError(why) from failure
        name = self._workers.name_from_first("" if writing is None else writing.aside.name)
        begun = Waiting(copies, out_dir / "checkpoints" / name, writing, state)
        self._answer = None
        self._thread = threading.Thread(
            target=self._write, args=(begun,), name="onecard-checkpoint"
        )
        self._thread.start()

    def finished(self, wait: bool) -> SavedParts | None:
        """How the save at hand went; None where there is none, or it is still being written and not waited for."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        self._thread, answer = None, self._answer
        return answer

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process writes: its rows, and the first one all that is whole everywhere."""
        return {
            name: tensor.detach().to("cpu", copy=True)
            for name, tensor in tensors.items()
            if self._slices.index == 0 or self._slices.span(name, self._bits) is not None
        }

    def _write(self, begun: "Waiting") -> None:
        began = time.perf_counter()
        try:
            why = self._written(begun)
        except BaseException as error:  # without an answer it would pass for a save that never was
            why = in_words(error)
        if why is not None and begun.writing is not None:
            begun.writing.give_up()
        seconds = time.perf_counter() - began
        folder = begun.aside if begun.writing is None else begun.writing.final
        self._answer = SavedParts(begun.state["step"], seconds, folder, why)

    def _written(self, begun: "Waiting") -> str | None:
        """Why it is not there, or None."""
        why: str | None = None
        written: dict[str, dict[str, Any]] = {}
        count = self._slices.count
        try:
            for name, tensors in begun.copies.items():
                file = part_name(name, self._slices.index, count)
                written[file] = write_tensors(begun.aside / file, tensors)
        except Exception as error:  # the disk is full, say; the others hear of it
            why = in_words(error)
        try:
            why, files = self._gathered(why, written)
            if why is None and begun.writing is not None:
                try:
                    names = [name for part in begun.copies.values() for name in part]
                    begun.writing.finish(self._manifest(begun.state, files, names))
                except Exception as error:
                    why = in_words(error)
            return self._agreed(why)
        except RuntimeError:  # how gloo reports a broken connection
            return "a process of the run ended while it was written"

    def _gathered(
        self, why: str | None, written: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str | None, dict[str, dict[str, Any]]]:
        """Every process's files with size and checksum; why not, where one could not write its part."""
        mine = bytearray([why is None])
        for name in (MODEL, OPTIMIZER):
            file = written.get(part_name(name, self._slices.index, self._slices.count))
            size, digest = (0, "") if file is None else (file["bytes"], file["sha256"])
            mine += _FILE.pack(size, bytes.fromhex(digest))
        sent = torch.frombuffer(mine, dtype=torch.uint8)
        got = [torch.empty_like(sent) for _ in range(self._workers.processes)]
        dist.all_gather(got, sent, group=self._group)
        files: dict[str, dict[str, Any]] = {}
        for rank, answer in enumerate(got):
            content = bytes(answer.tolist())
            if not content[0]:
                return why or f"process {rank} could not write its part", {}
            if rank < self._slices.count:
                for place, name in enumerate((MODEL, OPTIMIZER)):
                    size, digest = _FILE.unpack_from(content, 1 + place * _FILE.size)
                    file_name = part_name(name, rank, self._slices.count)
                    files[file_name] = {"sha256": digest.hex(), "bytes": size}
        return None, files

    def _agreed(self, why: str | None) -> str | None:
        """The first process's answer: the checkpoint is there or not."""
        there = torch.tensor([why is None], dtype=torch.int32)
        dist.broadcast(there, 0, group=self._group)
        return None if there.item() else why or "the first process could not finish it"

    def _manifest(
        self, state: Mapping[str, Any], files: Mapping[str, Any], names: Iterable[str]
    ) -> dict[str, Any]:
        return {
            "schema": SCHEMA_PARTS,
            **state,
            "files": files,
            "parts": self._slices.count,
            "tensors": self._slices.places(names, self._bits),
        }


@dataclass(frozen=True)
class Waiting:
    """A part on the host, to be written."""

    copies: Mapping[str, Mapping[str, Tensor]]
    aside: Path
    writing: Writing | None  # the first process's
    state: Mapping[str, Any]
